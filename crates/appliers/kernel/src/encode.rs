//! Entries as requests to the kernel. Pure: what to send, given the indices of the devices.

use std::net::{IpAddr, Ipv4Addr};

use flannel_common::{IfName, Mac};
use flannel_entries::kernel::{
    IpTunnel, IpTunnelKind, Link, LinkKind, ROUTE_PROTOCOL, Route, Vxlan,
};
use flannel_netlink::Request;
use flannel_netlink::verbs::{
    address, family, indexed_link, kind_attribute, mac_attribute, named_link, neighbour, route,
};
use ipnet::IpNet;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::observed::{Hop, ObservedRoute, RouteKind};

/// Makes a device, complete and up. `parent` is the index of the device that it sends through, if it names one.
pub(crate) fn create_link(link: &Link, parent: Option<u32>) -> Request {
    let info = match &link.kind {
        LinkKind::Vxlan(vxlan) => vxlan_info(new_vxlan(vxlan, parent)),
        LinkKind::IpTunnel(tunnel) => ip_tunnel_info(tunnel),
        LinkKind::Wireguard => kind_attribute(InfoKind::Wireguard, None),
        // Never used: the kernel creates a TUN device only for the process that opens it.
        LinkKind::Tun => kind_attribute(InfoKind::Tun, None),
        LinkKind::Dummy => kind_attribute(InfoKind::Dummy, None),
    };
    let attributes = [LinkAttribute::Mtu(link.mtu), LinkAttribute::TxQueueLen(0), info];
    let attributes = attributes.into_iter().chain(link.mac.map(mac_attribute));
    let mut message = named_link(link.name.as_str(), attributes);
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    Request::create_link(message)
}

/// One change to an existing device, in a request of its own: a refused one keeps no other from being made.
pub(crate) fn alter<const N: usize>(index: u32, attributes: [LinkAttribute; N]) -> Request {
    Request::set_link(indexed_link(index, attributes))
}

pub(crate) fn set_name(index: u32, name: IfName) -> Request {
    alter(index, [LinkAttribute::IfName(name.to_string())])
}

pub(crate) fn set_flags(index: u32, flags: LinkFlags, on: bool) -> Request {
    Request::set_link_flags(indexed_link(index, []), flags, on)
}

/// Sets a vxlan device's parent, local address, learning and TTL.
pub(crate) fn set_vxlan(index: u32, vxlan: &Vxlan, parent: Option<u32>) -> Request {
    alter(index, [vxlan_info(vxlan_changeable(vxlan, parent))])
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
    kind_attribute(InfoKind::Vxlan, Some(InfoData::Vxlan(data)))
}

/// Sets the ends of an IP tunnel, and the MTU: otherwise the kernel chooses one itself when an end changes.
pub(crate) fn set_ip_tunnel(index: u32, tunnel: &IpTunnel, mtu: u32) -> Request {
    alter(index, [ip_tunnel_info(tunnel), LinkAttribute::Mtu(mtu)])
}

fn ip_tunnel_info(tunnel: &IpTunnel) -> LinkAttribute {
    let data = vec![
        InfoIpTunnel::Local(tunnel.local.into()),
        InfoIpTunnel::Remote(Ipv4Addr::UNSPECIFIED.into()),
        InfoIpTunnel::Link(0),
        // Inherited from the inner packet. With a fixed TTL the tunnel would have to discover path MTUs itself.
        InfoIpTunnel::Ttl(0),
        InfoIpTunnel::PMtuDisc(false),
    ];
    let kind = match tunnel.kind {
        IpTunnelKind::Ipip => InfoKind::IpIp,
        IpTunnelKind::Sit => InfoKind::SitTun,
    };
    kind_attribute(kind, Some(InfoData::IpTunnel(data)))
}

/// Deletes a device in another network namespace, which our own knows by this number.
pub(crate) fn delete_link_elsewhere(namespace: i32, index: u32) -> Request {
    let message = indexed_link(index, [LinkAttribute::IfNetnsId(namespace)]);
    Request { message: RouteNetlinkMessage::DelLink(message), flags: 0 }
}

pub(crate) fn put_address(link: u32, addr: IpNet) -> Request {
    // Nobody else has an address of our subnet, and duplicate detection would cost a second after every repair.
    Request::put_address(address(link, addr, false))
}

pub(crate) fn put_route(route: &Route, link: u32) -> Request {
    let hop = Hop { link, via: route.via, onlink: route.onlink };
    Request::put_route(route_message(route.dst, route.metric, ROUTE_PROTOCOL, Some(&hop)))
}

pub(crate) fn put_blackhole(dst: IpNet, metric: u32) -> Request {
    let mut message = route_message(dst, metric, ROUTE_PROTOCOL, None);
    message.header.kind = RouteType::BlackHole;
    Request::put_route(message)
}

/// Deletes exactly this route: one that somebody has put in its place in the meantime stays.
pub(crate) fn delete_route(route: &ObservedRoute) -> Request {
    let hop = match route.hops.as_slice() {
        // An IPv6 blackhole is shown on the loopback device, but not identified by it.
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
    Request::delete_route(message)
}

/// Deletes our route of this destination and metric, wherever it leads.
pub(crate) fn delete_our_route(dst: IpNet, metric: u32) -> Request {
    let mut message = route_message(dst, metric, ROUTE_PROTOCOL, None);
    message.header.scope = RouteScope::NoWhere;
    message.header.kind = RouteType::Unspec;
    Request::delete_route(message)
}

fn route_message(dst: IpNet, metric: u32, protocol: u8, hop: Option<&Hop>) -> RouteMessage {
    let (link, via) = (hop.map(|hop| hop.link), hop.and_then(|hop| hop.via));
    let mut message = route(dst, RouteProtocol::from(protocol), link, via);
    if metric != 0 {
        message.attributes.push(RouteAttribute::Priority(metric));
    }
    if hop.is_some_and(|hop| hop.onlink) {
        message.header.flags = RouteFlags::Onlink;
    }
    message
}

/// Asks how the kernel would send to an address; `from` is the source and incoming device of a forwarded packet.
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
    Request::put_neighbour(neighbour(family(ip), link, Some(ip), Some(mac)))
}

pub(crate) fn delete_neighbour(link: u32, ip: IpAddr) -> Request {
    Request::delete_neighbour(neighbour(family(ip), link, Some(ip), None))
}

pub(crate) fn put_fdb(link: u32, mac: Mac, dst: IpAddr) -> Request {
    Request::put_neighbour(fdb(link, mac, Some(dst)))
}

/// Deletes a forwarding entry, or only this destination of several.
pub(crate) fn delete_fdb(link: u32, mac: Mac, dst: Option<IpAddr>) -> Request {
    Request::delete_neighbour(fdb(link, mac, dst))
}

fn fdb(link: u32, mac: Mac, dst: Option<IpAddr>) -> NeighbourMessage {
    let mut message = neighbour(AddressFamily::Bridge, link, dst, Some(mac));
    message.header.flags = NeighbourFlags::Own;
    message
}

pub(crate) mod dump {
    //! Requests that read everything.

    use super::{AddressFamily, AddressMessage, LinkMessage, NeighbourMessage, RouteMessage};
    use super::{LinkAttribute, RouteAttribute, RouteHeader, RouteNetlinkMessage};
    use netlink_packet_route::neighbour::NeighbourAttribute;
    use netlink_packet_route::nsid::NsidMessage;
    use netlink_packet_route::rule::RuleMessage;

    pub(crate) fn links() -> RouteNetlinkMessage {
        RouteNetlinkMessage::GetLink(LinkMessage::default())
    }

    /// Network namespaces that ours has numbers for: those it shares devices with.
    pub(crate) fn namespaces() -> RouteNetlinkMessage {
        RouteNetlinkMessage::GetNsId(NsidMessage::default())
    }

    pub(crate) fn links_elsewhere(namespace: i32) -> RouteNetlinkMessage {
        let message = super::indexed_link(0, [LinkAttribute::IfNetnsId(namespace)]);
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

    /// Forwarding entries of one device. The bridge family expects the device in the header, not as an attribute.
    pub(crate) fn fdb(link: u32) -> RouteNetlinkMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = link;
        RouteNetlinkMessage::GetNeighbour(message)
    }
}
