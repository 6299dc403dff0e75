//! Objects in the kernel, decoded from its messages. Devices are identified by index: see [`crate::links::Links`].

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHopFlags,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use flannel_common::{IfName, Mac};
use flannel_entries::facts::InterfaceAddress;
use flannel_entries::kernel::IpTunnelKind;
use flannel_netlink::Connection;

use crate::encode::dump;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedLink {
    pub(crate) index: u32,
    pub(crate) name: IfName,
    pub(crate) mac: Option<Mac>,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    /// Whether a bridge has a port that is up.
    pub(crate) carrier: bool,
    pub(crate) loopback: bool,
    /// Bridge, bond or VRF that it belongs to, which then gets everything that comes in.
    pub(crate) master: Option<u32>,
    /// The device resolves no addresses: neighbour entries mean nothing on it.
    pub(crate) noarp: bool,
    /// Somebody holds it down though it is up.
    pub(crate) protodown: bool,
    /// `None` for a kind that we do not make.
    pub(crate) kind: Option<ObservedKind>,
}

/// Kinds of devices that we make, as the kernel shows them. See [`flannel_entries::kernel::LinkKind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObservedKind {
    Vxlan(ObservedVxlan),
    IpTunnel(ObservedIpTunnel),
    Wireguard,
    Tun,
    Dummy,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedVxlan {
    pub vni: u32,
    pub port: u16,
    /// Index of the device that it sends through.
    pub parent: Option<u32>,
    pub local: Option<IpAddr>,
    pub learning: bool,
    pub gbp: bool,
    /// TTL; 0 for that of any other packet of this host.
    pub ttl: u8,
}

/// An IP tunnel. Addresses are `None` and numbers 0 where the tunnel leaves them open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedIpTunnel {
    pub(crate) kind: IpTunnelKind,
    pub(crate) local: Option<IpAddr>,
    pub(crate) remote: Option<IpAddr>,
    pub(crate) parent: u32,
    pub(crate) ttl: u8,
    pub(crate) pmtudisc: bool,
}

impl ObservedIpTunnel {
    pub(crate) fn new(kind: IpTunnelKind) -> Self {
        Self { kind, local: None, remote: None, parent: 0, ttl: 0, pmtudisc: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedRoute {
    pub(crate) dst: IpNet,
    pub(crate) metric: u32,
    pub(crate) protocol: u8,
    pub(crate) kind: RouteKind,
    pub(crate) tos: u8,
    /// The route has more attributes than ours do: an MTU, a source address, an encapsulation.
    pub(crate) has_extras: bool,
    /// One, except for multipath routes and routes without a hop (blackhole).
    pub(crate) hops: Vec<Hop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    Unicast,
    Blackhole,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) link: u32,
    pub(crate) via: Option<IpAddr>,
    pub(crate) onlink: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedNeighbour {
    pub(crate) link: u32,
    pub(crate) ip: IpAddr,
    pub(crate) mac: Option<Mac>,
    pub(crate) permanent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedFdb {
    pub(crate) link: u32,
    pub(crate) mac: Mac,
    pub(crate) dst: IpAddr,
    pub(crate) permanent: bool,
}

pub(crate) enum Observed {
    Link(ObservedLink),
    /// An address of the device of this index.
    Address(u32, InterfaceAddress),
    Route(ObservedRoute),
    Neighbour(ObservedNeighbour),
    Fdb(ObservedFdb),
}

pub(crate) enum Event {
    New(Observed),
    Gone(Observed),
}

impl Observed {
    pub(crate) fn read(message: RouteNetlinkMessage) -> Option<Self> {
        match Event::read(message)? {
            Event::New(observed) => Some(observed),
            Event::Gone(_) => None,
        }
    }
}

pub(crate) fn read_routes(connection: &mut Connection) -> io::Result<Vec<ObservedRoute>> {
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let read = |message| match message {
            RouteNetlinkMessage::NewRoute(message) => route(&message),
            _ => None,
        };
        match connection.dump(&dump::routes(family), read) {
            Ok(some) => routes.extend(some),
            // A kernel without IPv6 has no such table.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(routes)
}

impl Event {
    /// Decodes a notification; `None` for other routing tables, and entries that the kernel learned.
    pub(crate) fn read(message: RouteNetlinkMessage) -> Option<Self> {
        use RouteNetlinkMessage as M;
        Some(match message {
            M::NewLink(m) => Self::New(Observed::Link(link(m)?)),
            M::DelLink(m) => Self::Gone(Observed::Link(link(m)?)),
            M::NewAddress(m) => Self::New(address(&m)?),
            M::DelAddress(m) => Self::Gone(address(&m)?),
            M::NewRoute(m) => Self::New(Observed::Route(route(&m)?)),
            M::DelRoute(m) => Self::Gone(Observed::Route(route(&m)?)),
            M::NewNeighbour(m) => Self::New(neighbour(&m)?),
            M::DelNeighbour(m) => Self::Gone(neighbour(&m)?),
            _ => return None,
        })
    }
}

pub(crate) fn link(message: LinkMessage) -> Option<ObservedLink> {
    // Bridge ports announce themselves under AF_BRIDGE too: not a device of its own.
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let mut name = None;
    let mut mac = None;
    let mut mtu = 0;
    let mut master = None;
    let mut protodown = false;
    let mut kind = None;
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = IfName::new(&text).ok(),
            LinkAttribute::Address(octets) => mac = Mac::from_slice(&octets),
            LinkAttribute::Mtu(value) => mtu = value,
            LinkAttribute::Controller(index) => master = Some(index),
            LinkAttribute::ProtoDown(value) => protodown = value != 0,
            LinkAttribute::LinkInfo(infos) => kind = observed_kind(&infos),
            _ => {}
        }
    }
    Some(ObservedLink {
        index: message.header.index,
        name: name?,
        mac,
        mtu,
        up: message.header.flags.contains(LinkFlags::Up),
        carrier: message.header.flags.contains(LinkFlags::LowerUp),
        loopback: message.header.flags.contains(LinkFlags::Loopback),
        master,
        noarp: message.header.flags.contains(LinkFlags::Noarp),
        protodown,
        kind,
    })
}

fn observed_kind(infos: &[LinkInfo]) -> Option<ObservedKind> {
    let kind = infos.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    })?;
    match kind {
        InfoKind::Vxlan => Some(ObservedKind::Vxlan(vxlan(infos))),
        InfoKind::IpIp => Some(ObservedKind::IpTunnel(ip_tunnel(IpTunnelKind::Ipip, infos))),
        InfoKind::SitTun => Some(ObservedKind::IpTunnel(ip_tunnel(IpTunnelKind::Sit, infos))),
        InfoKind::Wireguard => Some(ObservedKind::Wireguard),
        InfoKind::Tun => Some(ObservedKind::Tun),
        InfoKind::Dummy => Some(ObservedKind::Dummy),
        _ => None,
    }
}

fn vxlan(infos: &[LinkInfo]) -> ObservedVxlan {
    let mut vxlan = ObservedVxlan::default();
    for info in infos {
        let LinkInfo::Data(InfoData::Vxlan(attributes)) = info else { continue };
        for attribute in attributes {
            match attribute {
                InfoVxlan::Id(vni) => vxlan.vni = *vni,
                InfoVxlan::Port(port) => vxlan.port = *port,
                InfoVxlan::Link(index) => vxlan.parent = Some(*index),
                InfoVxlan::Local(ip) => vxlan.local = Some((*ip).into()),
                InfoVxlan::Local6(ip) => vxlan.local = Some((*ip).into()),
                InfoVxlan::Learning(on) => vxlan.learning = *on,
                InfoVxlan::Gbp => vxlan.gbp = true,
                InfoVxlan::Ttl(ttl) => vxlan.ttl = *ttl,
                _ => {}
            }
        }
    }
    vxlan
}

fn ip_tunnel(kind: IpTunnelKind, infos: &[LinkInfo]) -> ObservedIpTunnel {
    let mut tunnel = ObservedIpTunnel::new(kind);
    for info in infos {
        let LinkInfo::Data(InfoData::IpTunnel(attributes)) = info else { continue };
        for attribute in attributes {
            match attribute {
                InfoIpTunnel::Local(ip) => {
                    tunnel.local = Some(*ip).filter(|ip| !ip.is_unspecified());
                }
                InfoIpTunnel::Remote(ip) => {
                    tunnel.remote = Some(*ip).filter(|ip| !ip.is_unspecified());
                }
                InfoIpTunnel::Link(index) => tunnel.parent = *index,
                InfoIpTunnel::Ttl(ttl) => tunnel.ttl = *ttl,
                InfoIpTunnel::PMtuDisc(on) => tunnel.pmtudisc = *on,
                _ => {}
            }
        }
    }
    tunnel
}

fn address(message: &AddressMessage) -> Option<Observed> {
    let mut address = None;
    let mut local = None;
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    // On a point-to-point link "address" is the far end and "local" ours; else they are the same.
    let ip = local.or(address)?;
    let address = InterfaceAddress {
        addr: IpNet::new(ip, message.header.prefix_len).ok()?,
        permanent: flags.contains(AddressFlags::Permanent),
        // The same bit is "secondary" for IPv4.
        temporary: ip.is_ipv6() && flags.contains(AddressFlags::Secondary),
        deprecated: flags.contains(AddressFlags::Deprecated),
        duplicate: flags.contains(AddressFlags::Dadfailed),
    };
    Some(Observed::Address(message.header.index, address))
}

pub(crate) fn destination(message: &RouteMessage) -> Option<IpNet> {
    let any = match message.header.address_family {
        AddressFamily::Inet => IpAddr::from([0u8; 4]),
        AddressFamily::Inet6 => IpAddr::from([0u8; 16]),
        _ => return None,
    };
    let dst = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(ip) => Some(route_ip(ip)),
        _ => None,
    });
    IpNet::new(dst.unwrap_or(Some(any))?, message.header.destination_prefix_length).ok()
}

fn route(message: &RouteMessage) -> Option<ObservedRoute> {
    let header = &message.header;
    let mut table = u32::from(header.table);
    let mut metric = 0;
    let mut link = None;
    let mut via = None;
    let mut hops = Vec::new();
    let mut has_extras = false;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Metrics(_)
            | RouteAttribute::PrefSource(_)
            | RouteAttribute::Encap(_) => {
                has_extras = true;
            }
            RouteAttribute::Table(id) => table = *id,
            RouteAttribute::Priority(value) => metric = *value,
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::Gateway(ip) => via = route_ip(ip),
            RouteAttribute::MultiPath(all) => {
                hops.extend(all.iter().map(|hop| Hop {
                    link: hop.interface_index,
                    via: hop.attributes.iter().find_map(|attribute| match attribute {
                        RouteAttribute::Gateway(ip) => route_ip(ip),
                        _ => None,
                    }),
                    onlink: hop.flags.contains(RouteNextHopFlags::Onlink),
                }));
            }
            _ => {}
        }
    }
    // IPv6 keeps cached clones of routes in the same table; they come and go by themselves.
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    if let Some(link) = link {
        hops.push(Hop { link, via, onlink: header.flags.contains(RouteFlags::Onlink) });
    }
    Some(ObservedRoute {
        dst: destination(message)?,
        metric,
        protocol: header.protocol.into(),
        kind: match header.kind {
            RouteType::Unicast => RouteKind::Unicast,
            RouteType::BlackHole => RouteKind::Blackhole,
            _ => RouteKind::Other,
        },
        tos: header.tos,
        has_extras,
        hops,
    })
}

pub(crate) fn route_ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

/// A neighbour of a host (family IP) or a forwarding entry of a vxlan device (family bridge).
fn neighbour(message: &NeighbourMessage) -> Option<Observed> {
    let header = &message.header;
    let (ip, mac) = neighbour_addresses(message);
    let (link, permanent) = (header.ifindex, header.state == NeighbourState::Permanent);
    match header.family {
        AddressFamily::Bridge if header.flags.contains(NeighbourFlags::Own) => {
            Some(Observed::Fdb(ObservedFdb { link, mac: mac?, dst: ip?, permanent }))
        }
        AddressFamily::Inet | AddressFamily::Inet6
            if !header.flags.contains(NeighbourFlags::Proxy) =>
        {
            Some(Observed::Neighbour(ObservedNeighbour { link, ip: ip?, mac, permanent }))
        }
        _ => None,
    }
}

pub(crate) fn neighbour_addresses(message: &NeighbourMessage) -> (Option<IpAddr>, Option<Mac>) {
    let (mut ip, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(address) => ip = neighbour_ip(address),
            NeighbourAttribute::LinkLayerAddress(octets) => mac = Mac::from_slice(octets),
            _ => {}
        }
    }
    (ip, mac)
}

fn neighbour_ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(ip) => Some((*ip).into()),
        NeighbourAddress::Inet6(ip) => Some((*ip).into()),
        // The header's family says nothing about a forwarding entry's destination.
        NeighbourAddress::Other(bytes) => flannel_netlink::ip(bytes),
        _ => None,
    }
}
