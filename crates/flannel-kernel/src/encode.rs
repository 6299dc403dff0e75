//! Entries as requests to the kernel. Pure: what to send, given the indices of the devices.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::observed::{Hop, ObservedRoute, RouteKind};
use crate::{IfName, IpTunnel, IpTunnelKind, Link, LinkKind, Mac, ROUTE_PROTOCOL, Route, Vxlan};
use flannel_netlink::Request;

pub(crate) fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Makes a device, complete and up. `parent`: the index of the device that it sends through, if it
/// names one.
pub(crate) fn create_link(link: &Link, parent: Option<u32>) -> Request {
    let info = match &link.kind {
        LinkKind::Vxlan(vxlan) => vxlan_info(new_vxlan(vxlan, parent)),
        LinkKind::IpTunnel(tunnel) => ip_tunnel_info(tunnel),
        LinkKind::Wireguard => LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Wireguard)]),
        // Never used: the kernel creates a TUN device only for the process that opens it.
        LinkKind::Tun => LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Tun)]),
        LinkKind::Dummy => LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Dummy)]),
    };
    let mut message = LinkMessage::default();
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message.attributes = vec![
        LinkAttribute::IfName(link.name.to_string()),
        LinkAttribute::Mtu(link.mtu),
        LinkAttribute::TxQueueLen(0),
        info,
    ];
    message.attributes.extend(link.mac.map(mac_attribute));
    Request { message: RouteNetlinkMessage::NewLink(message), flags: NLM_F_CREATE | NLM_F_EXCL }
}

/// One change to a device that is there. Each is asked for on its own, so that what the kernel refuses does not
/// keep the rest from being put right, and is known by name.
fn alter(index: u32, attributes: Vec<LinkAttribute>) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = attributes;
    Request { message: RouteNetlinkMessage::NewLink(message), flags: 0 }
}

pub(crate) fn set_mac(index: u32, mac: Mac) -> Request {
    alter(index, vec![mac_attribute(mac)])
}

pub(crate) fn set_mtu(index: u32, mtu: u32) -> Request {
    alter(index, vec![LinkAttribute::Mtu(mtu)])
}

pub(crate) fn set_name(index: u32, name: IfName) -> Request {
    alter(index, vec![LinkAttribute::IfName(name.to_string())])
}

pub(crate) fn release_from_master(index: u32) -> Request {
    alter(index, vec![LinkAttribute::Controller(0)])
}

pub(crate) fn clear_protodown(index: u32) -> Request {
    alter(index, vec![LinkAttribute::ProtoDown(0)])
}

/// Sets or clears the flags of a device.
pub(crate) fn set_flags(index: u32, flags: LinkFlags, on: bool) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = if on { flags } else { LinkFlags::empty() };
    message.header.change_mask = flags;
    Request { message: RouteNetlinkMessage::NewLink(message), flags: 0 }
}

/// Of a vxlan its parent, local address, learning and TTL.
pub(crate) fn set_vxlan(index: u32, vxlan: &Vxlan, parent: Option<u32>) -> Request {
    alter(index, vec![vxlan_info(vxlan_changeable(vxlan, parent))])
}

fn new_vxlan(vxlan: &Vxlan, parent: Option<u32>) -> Vec<InfoVxlan> {
    let mut data = vxlan_changeable(vxlan, parent);
    data.push(InfoVxlan::Id(vxlan.vni));
    data.push(InfoVxlan::Tos(0));
    data.extend(vxlan.port.map(InfoVxlan::Port));
    if vxlan.gbp {
        data.push(InfoVxlan::Gbp);
    }
    data
}

fn vxlan_changeable(vxlan: &Vxlan, parent: Option<u32>) -> Vec<InfoVxlan> {
    let mut data = vec![
        match vxlan.local {
            IpAddr::V4(ip) => InfoVxlan::Local(ip),
            IpAddr::V6(ip) => InfoVxlan::Local6(ip),
        },
        InfoVxlan::Learning(vxlan.learning),
        InfoVxlan::Ttl(0),
    ];
    data.extend(parent.map(InfoVxlan::Link));
    data
}

fn vxlan_info(data: Vec<InfoVxlan>) -> LinkAttribute {
    LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Vxlan),
        LinkInfo::Data(InfoData::Vxlan(data)),
    ])
}

/// Sets the MTU too: otherwise the kernel chooses one itself when the end of a tunnel changes.
pub(crate) fn set_ip_tunnel(index: u32, tunnel: &IpTunnel, mtu: u32) -> Request {
    alter(index, vec![ip_tunnel_info(tunnel), LinkAttribute::Mtu(mtu)])
}

fn ip_tunnel_info(tunnel: &IpTunnel) -> LinkAttribute {
    let data = vec![
        InfoIpTunnel::Local(tunnel.local.into()),
        InfoIpTunnel::Remote(Ipv4Addr::UNSPECIFIED.into()),
        InfoIpTunnel::Link(0),
        // Taken from the inner packet. With a fixed TTL the tunnel would have to discover path MTUs itself.
        InfoIpTunnel::Ttl(0),
        InfoIpTunnel::PMtuDisc(false),
    ];
    let kind = match tunnel.kind {
        IpTunnelKind::Ipip => InfoKind::IpIp,
        IpTunnelKind::Sit => InfoKind::SitTun,
    };
    LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(InfoData::IpTunnel(data))])
}

fn mac_attribute(mac: Mac) -> LinkAttribute {
    LinkAttribute::Address(mac.0.to_vec())
}

pub(crate) fn delete_link(index: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    Request { message: RouteNetlinkMessage::DelLink(message), flags: 0 }
}

/// Deletes a device in another network namespace, which our own knows by this number.
pub(crate) fn delete_link_elsewhere(namespace: i32, index: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::IfNetnsId(namespace));
    Request { message: RouteNetlinkMessage::DelLink(message), flags: 0 }
}

pub(crate) fn put_address(link: u32, addr: IpNet) -> Request {
    let message = RouteNetlinkMessage::NewAddress(address(link, addr));
    Request { message, flags: NLM_F_CREATE | NLM_F_REPLACE }
}

pub(crate) fn delete_address(link: u32, addr: IpNet) -> Request {
    Request { message: RouteNetlinkMessage::DelAddress(address(link, addr)), flags: 0 }
}

fn address(link: u32, addr: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: family(addr.addr()),
        prefix_len: addr.prefix_len(),
        // Nobody else can have the address of our subnet, and the second that duplicate address
        // detection takes would be a second without traffic after every repair.
        flags: if addr.addr().is_ipv6() {
            AddressHeaderFlags::Nodad
        } else {
            AddressHeaderFlags::empty()
        },
        scope: AddressScope::Universe,
        index: link,
    };
    message.attributes =
        vec![AddressAttribute::Local(addr.addr()), AddressAttribute::Address(addr.addr())];
    message
}

pub(crate) fn put_route(route: &Route, link: u32) -> Request {
    let hop = Hop { link, via: route.via, onlink: route.onlink };
    let message = route_message(route.dst, route.metric, ROUTE_PROTOCOL, Some(&hop));
    Request { message: RouteNetlinkMessage::NewRoute(message), flags: NLM_F_CREATE | NLM_F_REPLACE }
}

pub(crate) fn put_blackhole(dst: IpNet, metric: u32) -> Request {
    let mut message = route_message(dst, metric, ROUTE_PROTOCOL, None);
    message.header.kind = RouteType::BlackHole;
    Request { message: RouteNetlinkMessage::NewRoute(message), flags: NLM_F_CREATE | NLM_F_REPLACE }
}

/// Deletes exactly this route: one that somebody has put in its place meanwhile stays.
pub(crate) fn delete_route(route: &ObservedRoute) -> Request {
    let hop = match route.hops.as_slice() {
        // An IPv6 blackhole is shown on the loopback device, but not known by it.
        [hop] if route.kind != RouteKind::Blackhole => Some(hop),
        _ => None,
    };
    let mut message = route_message(route.dst, route.metric, route.protocol, hop);
    message.header.scope = RouteScope::NoWhere;
    message.header.tos = route.tos;
    message.header.kind = match route.kind {
        RouteKind::Unicast => RouteType::Unicast,
        RouteKind::Blackhole => RouteType::BlackHole,
        RouteKind::Other => RouteType::Unspec,
    };
    Request { message: RouteNetlinkMessage::DelRoute(message), flags: 0 }
}

/// Deletes our route of this destination and metric, wherever it leads.
pub(crate) fn delete_our_route(dst: IpNet, metric: u32) -> Request {
    let mut message = route_message(dst, metric, ROUTE_PROTOCOL, None);
    message.header.scope = RouteScope::NoWhere;
    message.header.kind = RouteType::Unspec;
    Request { message: RouteNetlinkMessage::DelRoute(message), flags: 0 }
}

fn route_message(dst: IpNet, metric: u32, protocol: u8, hop: Option<&Hop>) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(dst.addr()),
        destination_prefix_length: dst.prefix_len(),
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::from(protocol),
        // As `ip route` does it: a route without a gateway ends on the link.
        scope: match hop {
            Some(Hop { via: None, .. }) if dst.addr().is_ipv4() => RouteScope::Link,
            _ => RouteScope::Universe,
        },
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes.push(RouteAttribute::Destination(dst.network().into()));
    if metric != 0 {
        message.attributes.push(RouteAttribute::Priority(metric));
    }
    if let Some(hop) = hop {
        message.attributes.push(RouteAttribute::Oif(hop.link));
        message.attributes.extend(hop.via.map(|via| RouteAttribute::Gateway(via.into())));
        if hop.onlink {
            message.header.flags = RouteFlags::Onlink;
        }
    }
    message
}

/// Asks how the kernel would send to an address; `from`: a packet with this source that comes in by this
/// device.
pub(crate) fn lookup_route(ip: IpAddr, from: Option<(IpAddr, u32)>) -> RouteNetlinkMessage {
    let length = if ip.is_ipv4() { 32 } else { 128 };
    let mut message = RouteMessage::default();
    message.header.address_family = family(ip);
    message.header.destination_prefix_length = length;
    message.attributes.push(RouteAttribute::Destination(ip.into()));
    if let Some((source, device)) = from {
        message.header.source_prefix_length = length;
        message.attributes.push(RouteAttribute::Source(source.into()));
        message.attributes.push(RouteAttribute::Iif(device));
    }
    RouteNetlinkMessage::GetRoute(message)
}

pub(crate) fn put_neighbour(link: u32, ip: IpAddr, mac: Mac) -> Request {
    let mut message = neighbour(family(ip), link, Some(ip), Some(mac));
    message.header.state = NeighbourState::Permanent;
    Request {
        message: RouteNetlinkMessage::NewNeighbour(message),
        flags: NLM_F_CREATE | NLM_F_REPLACE,
    }
}

pub(crate) fn delete_neighbour(link: u32, ip: IpAddr) -> Request {
    let message = neighbour(family(ip), link, Some(ip), None);
    Request { message: RouteNetlinkMessage::DelNeighbour(message), flags: 0 }
}

pub(crate) fn put_fdb(link: u32, mac: Mac, dst: IpAddr) -> Request {
    let mut message = fdb(link, mac, Some(dst));
    message.header.state = NeighbourState::Permanent;
    Request {
        message: RouteNetlinkMessage::NewNeighbour(message),
        flags: NLM_F_CREATE | NLM_F_REPLACE,
    }
}

/// `dst`: only this destination of several.
pub(crate) fn delete_fdb(link: u32, mac: Mac, dst: Option<IpAddr>) -> Request {
    Request { message: RouteNetlinkMessage::DelNeighbour(fdb(link, mac, dst)), flags: 0 }
}

fn fdb(link: u32, mac: Mac, dst: Option<IpAddr>) -> NeighbourMessage {
    let mut message = neighbour(AddressFamily::Bridge, link, dst, Some(mac));
    message.header.flags = NeighbourFlags::Own;
    message
}

fn neighbour(
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

pub(crate) mod dump {
    //! What to ask for when everything is to be read.

    use super::{AddressFamily, AddressMessage, LinkMessage, NeighbourMessage, RouteMessage};
    use super::{LinkAttribute, RouteAttribute, RouteHeader, RouteNetlinkMessage};
    use netlink_packet_route::neighbour::NeighbourAttribute;
    use netlink_packet_route::nsid::NsidMessage;
    use netlink_packet_route::rule::RuleMessage;

    pub(crate) fn links() -> RouteNetlinkMessage {
        RouteNetlinkMessage::GetLink(LinkMessage::default())
    }

    /// The network namespaces that ours has numbers for: those it shares devices with.
    pub(crate) fn namespaces() -> RouteNetlinkMessage {
        RouteNetlinkMessage::GetNsId(NsidMessage::default())
    }

    pub(crate) fn links_elsewhere(namespace: i32) -> RouteNetlinkMessage {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfNetnsId(namespace));
        RouteNetlinkMessage::GetLink(message)
    }

    pub(crate) fn rules(family: AddressFamily) -> RouteNetlinkMessage {
        let mut message = RuleMessage::default();
        message.header.family = family;
        RouteNetlinkMessage::GetRule(message)
    }

    pub(crate) fn addresses() -> RouteNetlinkMessage {
        RouteNetlinkMessage::GetAddress(AddressMessage::default())
    }

    /// The main table alone: a router may hold a million routes elsewhere.
    pub(crate) fn routes(family: AddressFamily) -> RouteNetlinkMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.attributes.push(RouteAttribute::Table(u32::from(RouteHeader::RT_TABLE_MAIN)));
        RouteNetlinkMessage::GetRoute(message)
    }

    pub(crate) fn neighbours(family: AddressFamily, link: u32) -> RouteNetlinkMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        message.attributes.push(NeighbourAttribute::IfIndex(link));
        RouteNetlinkMessage::GetNeighbour(message)
    }

    /// Forwarding entries of one device. The bridge family takes the device in the header, not as an
    /// attribute.
    pub(crate) fn fdb(link: u32) -> RouteNetlinkMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = link;
        RouteNetlinkMessage::GetNeighbour(message)
    }
}
