//! Reads what the kernel of this node holds, and how it would route a packet, without changing anything.

mod queues;

use std::fmt;
use std::io;
use std::net::IpAddr;

use flannel_common::{IfName, Mac};
use flannel_netlink::{Connection, NetlinkError, Protocol, verbs};
use ipnet::IpNet;
use netlink_packet_core::DefaultNla;
use netlink_packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteMessage, RouteMetric, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::encode::{dump, lookup_route};
use crate::observed::{
    self, Observed, ObservedKind, ObservedRoute, ObservedVxlan, RouteKind, neighbour_addresses,
    route_ip,
};

pub use queues::{
    FilterEffect, FilterPlace, FilterSelector, FoundFilter, FoundQueue, QueueSetting,
};

pub struct Kernel {
    connection: Connection,
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub index: u32,
    pub name: String,
    /// Kind as in `ip -d link`: `vxlan`, `bridge`, `veth`; empty for a card.
    pub kind: String,
    pub mtu: u32,
    pub mac: Option<Mac>,
    pub up: bool,
    pub carrier: bool,
    pub loopback: bool,
    pub noarp: bool,
    pub master: Option<u32>,
    /// Index of a veth's other end, in that end's namespace.
    pub other_end: Option<u32>,
    pub vxlan: Option<ObservedVxlan>,
    pub addresses: Vec<IpNet>,
}

impl Device {
    pub fn plain(index: u32, name: &str) -> Self {
        let name = name.to_owned();
        Self { index, name, mtu: 1500, up: true, carrier: true, ..Self::default() }
    }
}

/// A route of the main table; one with several next hops appears once for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    pub dst: IpNet,
    pub via: Option<IpAddr>,
    /// Name of the device; empty for a route without one.
    pub link: String,
    pub metric: u32,
    pub protocol: u8,
    pub kind: RouteKind,
    /// Whether the gateway is taken to be on the link.
    pub onlink: bool,
}

impl FoundRoute {
    pub fn removal(&self, link: Option<u32>) -> RouteMessage {
        let mut message = verbs::route(self.dst, self.protocol.into(), link, self.via);
        message.header.scope = RouteScope::NoWhere;
        if self.kind == RouteKind::Blackhole {
            message.header.kind = RouteType::BlackHole;
        }
        message.attributes.push(RouteAttribute::Priority(self.metric));
        message
    }
}

/// As `ip route` shows it. The kernel has `lo` as the device of an IPv6 blackhole, which nobody asked for.
impl fmt::Display for FoundRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_blackhole = self.kind == RouteKind::Blackhole;
        write!(f, "{}{}", if is_blackhole { "blackhole " } else { "" }, self.dst)?;
        self.via.iter().try_for_each(|via| write!(f, " via {via}"))?;
        if !is_blackhole && !self.link.is_empty() {
            write!(f, " dev {}", self.link)?;
        }
        if self.metric != 0 {
            write!(f, " metric {}", self.metric)?;
        }
        f.write_str(if self.onlink { " onlink" } else { "" })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub kind: RouteType,
    pub link: String,
    pub via: Option<IpAddr>,
    /// MTU of the path, if the kernel has learned that it is less than the device's.
    pub mtu: Option<u32>,
}

const RTA_IP_PROTO: u16 = 27;

#[derive(Clone, Copy, Debug)]
pub struct RouteQuery {
    pub dst: IpAddr,
    /// Source address and incoming device; `None` if this host sends it.
    pub from: Option<(IpAddr, u32)>,
    /// IP protocol (TCP or UDP), for which there may be routing rules.
    pub protocol: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundNeighbour {
    pub ip: IpAddr,
    pub mac: Option<Mac>,
    pub state: NeighbourState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFdb {
    pub mac: Mac,
    /// Destination of an entry of a vxlan device.
    pub dst: Option<IpAddr>,
    /// Whether somebody has written it; otherwise the bridge has learned it.
    pub is_static: bool,
}

impl Kernel {
    pub fn open() -> io::Result<Self> {
        let mut connection =
            Connection::open(Protocol::Route).map_err(not("talk to the kernel"))?;
        let devices = connection.dump(&dump::links(), |message| match message {
            RouteNetlinkMessage::NewLink(link) => device(link),
            _ => None,
        });
        let mut devices = devices.map_err(not("list the devices"))?;
        let addresses =
            connection.dump(&dump::addresses(), |message| match Observed::read(message)? {
                Observed::Address(link, address) => Some((link, address.addr)),
                _ => None,
            });
        for (link, addr) in addresses.map_err(not("list the addresses"))? {
            if let Some(device) = devices.iter_mut().find(|device| device.index == link) {
                device.addresses.push(addr);
            }
        }
        Ok(Self { connection, devices })
    }

    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    pub fn by_index(&self, index: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.index == index)
    }

    fn name(&self, index: u32) -> String {
        self.by_index(index).map(|device| device.name.clone()).unwrap_or_default()
    }

    pub fn routes(&mut self) -> io::Result<Vec<FoundRoute>> {
        let all = observed::read_routes(&mut self.connection).map_err(not("list the routes"))?;
        Ok(all.iter().flat_map(|route| self.by_hop(route)).collect())
    }

    fn by_hop(&self, route: &ObservedRoute) -> Vec<FoundRoute> {
        let ObservedRoute { dst, metric, protocol, kind, .. } = *route;
        let (via, link, onlink) = (None, String::new(), false);
        let nowhere = FoundRoute { dst, via, link, metric, protocol, kind, onlink };
        if route.hops.is_empty() {
            return vec![nowhere];
        }
        let hops = route.hops.iter().map(|hop| FoundRoute {
            via: hop.via,
            link: self.name(hop.link),
            onlink: hop.onlink,
            ..nowhere.clone()
        });
        hops.collect()
    }

    /// Asks as `ip route get` does.
    pub fn decide(&mut self, asked: RouteQuery) -> io::Result<Result<Decision, NetlinkError>> {
        let mut question = lookup_route(asked.dst, asked.from);
        if let (RouteNetlinkMessage::GetRoute(route), Some(protocol)) =
            (&mut question, asked.protocol)
        {
            let protocol = DefaultNla::new(RTA_IP_PROTO, vec![protocol]);
            route.attributes.push(RouteAttribute::Other(protocol));
        }
        let route = match self.connection.get(&question)? {
            Ok(RouteNetlinkMessage::NewRoute(route)) => route,
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(error) => return Ok(Err(error)),
        };
        let (mut link, mut via, mut mtu) = (String::new(), None, None);
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => link = self.name(*index),
                RouteAttribute::Gateway(address) => via = route_ip(address),
                RouteAttribute::Metrics(metrics) => {
                    mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        Ok(Ok(Decision { kind: route.header.kind, link, via, mtu }))
    }

    /// Neighbours on one device, also those that the kernel learned.
    pub fn neighbours(&mut self, ipv4: bool, link: u32) -> io::Result<Vec<FoundNeighbour>> {
        let family = if ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let found = self.entries(&dump::neighbours(family, link), link, |found| {
            let (ip, mac) = neighbour_addresses(found);
            Some(FoundNeighbour { ip: ip?, mac, state: found.header.state })
        });
        found.map_err(not("list the neighbours"))
    }

    /// Forwarding entries of a vxlan device, or of a bridge's port.
    pub fn fdb(&mut self, link: u32) -> io::Result<Vec<FoundFdb>> {
        let found = self.entries(&dump::fdb(link), link, |found| {
            let (dst, mac) = neighbour_addresses(found);
            let written = [NeighbourState::Permanent, NeighbourState::Noarp];
            Some(FoundFdb { mac: mac?, dst, is_static: written.contains(&found.header.state) })
        });
        found.map_err(not("list the forwarding entries"))
    }

    fn entries<T>(
        &mut self,
        asked: &RouteNetlinkMessage,
        link: u32,
        read: impl Fn(&NeighbourMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        self.connection.dump(asked, |message| match message {
            RouteNetlinkMessage::NewNeighbour(found) if found.header.ifindex == link => {
                read(&found)
            }
            _ => None,
        })
    }
}

fn device(message: LinkMessage) -> Option<Device> {
    let kind = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind.to_string()),
            _ => None,
        }),
        _ => None,
    });
    let other_end = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    });
    let link = observed::link(message)?;
    Some(Device {
        other_end,
        kind: kind.unwrap_or_default(),
        mtu: link.mtu,
        mac: link.mac,
        up: link.up,
        carrier: link.carrier,
        loopback: link.loopback,
        noarp: link.noarp,
        master: link.master,
        vxlan: match link.kind {
            Some(ObservedKind::Vxlan(vxlan)) => Some(vxlan),
            _ => None,
        },
        ..Device::plain(link.index, IfName::as_str(&link.name))
    })
}

fn not(what: &'static str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
