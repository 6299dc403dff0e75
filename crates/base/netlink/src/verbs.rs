//! Requests about links, addresses, routes and neighbours. Pure: whoever asks for more adds attributes.

use std::net::IpAddr;

use flannel_common::Mac;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::Request;

pub fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// A link that does not exist yet, or that is told by its name.
pub fn named_link(name: &str, attributes: impl IntoIterator<Item = LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message.attributes.extend(attributes);
    message
}

pub fn indexed_link(
    index: u32,
    attributes: impl IntoIterator<Item = LinkAttribute>,
) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.extend(attributes);
    message
}

pub fn mac_attribute(mac: Mac) -> LinkAttribute {
    LinkAttribute::Address(mac.0.to_vec())
}

pub fn kind_attribute(kind: InfoKind, data: Option<InfoData>) -> LinkAttribute {
    let mut infos = vec![LinkInfo::Kind(kind)];
    infos.extend(data.map(LinkInfo::Data));
    LinkAttribute::LinkInfo(infos)
}

pub fn veth_end(name: &str, mac: Mac, mtu: Option<u32>) -> LinkMessage {
    // Unasked, the kernel makes a queue for every processor, takes all but one into disuse, and waits until that is
    // known everywhere.
    let one_queue = [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];
    let attributes = [mac_attribute(mac)].into_iter().chain(one_queue);
    named_link(name, attributes.chain(mtu.map(LinkAttribute::Mtu)))
}

/// An address of a link. `detect_duplicates`: IPv6 asks around first whether somebody has it already.
pub fn address(link: u32, address: IpNet, detect_duplicates: bool) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.scope = AddressScope::Universe;
    message.header.index = link;
    if address.addr().is_ipv6() && !detect_duplicates {
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message.attributes =
        vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
    message
}

/// A unicast route of the main table, through this link, if any, and this gateway, if any.
pub fn route(
    dst: IpNet,
    protocol: RouteProtocol,
    link: Option<u32>,
    via: Option<IpAddr>,
) -> RouteMessage {
    let ends_on_link = link.is_some() && via.is_none() && dst.addr().is_ipv4();
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(dst.addr()),
        destination_prefix_length: dst.prefix_len(),
        table: RouteHeader::RT_TABLE_MAIN,
        protocol,
        // As `ip route` does it.
        scope: if ends_on_link { RouteScope::Link } else { RouteScope::Universe },
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    if dst.prefix_len() > 0 {
        message.attributes.push(RouteAttribute::Destination(dst.network().into()));
    }
    message.attributes.extend(link.map(RouteAttribute::Oif));
    message.attributes.extend(via.map(|via| RouteAttribute::Gateway(via.into())));
    message
}

pub fn neighbour(
    family: AddressFamily,
    link: u32,
    ip: Option<IpAddr>,
    mac: Option<Mac>,
) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    message.header.ifindex = link;
    message.attributes.extend(ip.map(|ip| NeighbourAttribute::Destination(ip.into())));
    message.attributes.extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())));
    message
}

impl Request {
    fn plain(message: RouteNetlinkMessage) -> Self {
        Self { message, flags: 0 }
    }

    /// Fails where it is there already.
    fn create(message: RouteNetlinkMessage) -> Self {
        Self { message, flags: NLM_F_CREATE | NLM_F_EXCL }
    }

    fn create_or_replace(message: RouteNetlinkMessage) -> Self {
        Self { message, flags: NLM_F_CREATE | NLM_F_REPLACE }
    }

    pub fn create_link(message: LinkMessage) -> Self {
        Self::create(RouteNetlinkMessage::NewLink(message))
    }

    /// Both ends as [`veth_end`] makes them, and what was added to them.
    pub fn create_veth(mut near: LinkMessage, far: LinkMessage) -> Self {
        let peer = InfoData::Veth(InfoVeth::Peer(far));
        near.attributes.push(kind_attribute(InfoKind::Veth, Some(peer)));
        Self::create_link(near)
    }

    /// Changes what the message says of a link that is there.
    pub fn set_link(message: LinkMessage) -> Self {
        Self::plain(RouteNetlinkMessage::NewLink(message))
    }

    pub fn set_link_flags(mut message: LinkMessage, flags: LinkFlags, on: bool) -> Self {
        message.header.flags = if on { flags } else { LinkFlags::empty() };
        message.header.change_mask = flags;
        Self::set_link(message)
    }

    pub fn delete_link(index: u32) -> Self {
        Self::plain(RouteNetlinkMessage::DelLink(indexed_link(index, [])))
    }

    pub fn create_address(message: AddressMessage) -> Self {
        Self::create(RouteNetlinkMessage::NewAddress(message))
    }

    pub fn put_address(message: AddressMessage) -> Self {
        Self::create_or_replace(RouteNetlinkMessage::NewAddress(message))
    }

    pub fn delete_address(link: u32, net: IpNet) -> Self {
        Self::plain(RouteNetlinkMessage::DelAddress(address(link, net, true)))
    }

    /// Beside others of the same destination.
    pub fn add_route(message: RouteMessage) -> Self {
        Self { message: RouteNetlinkMessage::NewRoute(message), flags: NLM_F_CREATE }
    }

    pub fn create_route(message: RouteMessage) -> Self {
        Self::create(RouteNetlinkMessage::NewRoute(message))
    }

    pub fn put_route(message: RouteMessage) -> Self {
        Self::create_or_replace(RouteNetlinkMessage::NewRoute(message))
    }

    pub fn delete_route(message: RouteMessage) -> Self {
        Self::plain(RouteNetlinkMessage::DelRoute(message))
    }

    /// One that stays until it is deleted.
    pub fn put_neighbour(mut message: NeighbourMessage) -> Self {
        message.header.state = NeighbourState::Permanent;
        Self::create_or_replace(RouteNetlinkMessage::NewNeighbour(message))
    }

    pub fn delete_neighbour(message: NeighbourMessage) -> Self {
        Self::plain(RouteNetlinkMessage::DelNeighbour(message))
    }
}
