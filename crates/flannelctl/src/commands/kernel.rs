//! What the kernel of this node holds, and how it would decide: for commands that look and change nothing.

use std::io;
use std::net::IpAddr;

use anyhow::Context as _;
use flannel_netlink::{Connection, Mac, NetlinkError, Protocol};
use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

pub(crate) struct Kernel {
    connection: Connection,
    pub(crate) devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// As `ip -d link` says it: `vxlan`, `bridge`, `veth`; empty for a card.
    pub(crate) kind: String,
    pub(crate) mtu: u32,
    pub(crate) mac: Option<Mac>,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) loopback: bool,
    /// The bridge, bond or VRF that it is under.
    pub(crate) master: Option<u32>,
    /// What it leads to: a device of the namespace `peer_namespace`, or of this one.
    pub(crate) peer: Option<u32>,
    pub(crate) peer_namespace: Option<i32>,
    pub(crate) vxlan: Option<VxlanDevice>,
    pub(crate) addresses: Vec<IpNet>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VxlanDevice {
    pub(crate) vni: u32,
    pub(crate) port: u16,
    pub(crate) local: Option<IpAddr>,
    /// The index of the card that it sends by.
    pub(crate) parent: Option<u32>,
}

/// A route of the main table; one with several next hops is one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundRoute {
    pub(crate) dst: IpNet,
    pub(crate) via: Option<IpAddr>,
    /// Empty for one that leads nowhere.
    pub(crate) link: String,
    pub(crate) metric: u32,
    pub(crate) protocol: u8,
    pub(crate) kind: RouteType,
    /// The gateway is on the link, whatever addresses say.
    pub(crate) onlink: bool,
}

/// What the kernel would do with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) kind: RouteType,
    pub(crate) link: String,
    pub(crate) via: Option<IpAddr>,
    /// Less than the device's, if the kernel has learned that of the path.
    pub(crate) mtu: Option<u32>,
}

/// A packet as the kernel is asked about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) dst: IpAddr,
    /// From where, and by which device it comes in; without, this host sends it.
    pub(crate) from: Option<(IpAddr, u32)>,
    pub(crate) mark: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundNeighbour {
    pub(crate) ip: IpAddr,
    pub(crate) mac: Option<Mac>,
    pub(crate) state: NeighbourState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundFdb {
    pub(crate) mac: Mac,
    /// Of a vxlan device.
    pub(crate) dst: Option<IpAddr>,
}

impl Kernel {
    /// In the network namespace of the calling thread.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let mut connection = Connection::open(Protocol::Route).context("talk to the kernel")?;
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let mut devices = connection
            .dump(&all, |message| match message {
                RouteNetlinkMessage::NewLink(link) => device(link),
                _ => None,
            })
            .context("list the devices")?;
        let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let addresses = connection.dump(&all, |message| match message {
            RouteNetlinkMessage::NewAddress(message) => address(&message),
            _ => None,
        });
        for (index, net) in addresses.context("list the addresses")? {
            if let Some(device) = devices.iter_mut().find(|device| device.index == index) {
                device.addresses.push(net);
            }
        }
        Ok(Self { connection, devices })
    }

    pub(crate) fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    pub(crate) fn by_index(&self, index: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.index == index)
    }

    /// Those of the main table.
    pub(crate) fn routes(&mut self) -> anyhow::Result<Vec<FoundRoute>> {
        let mut all = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut asked = RouteMessage::default();
            asked.header.address_family = family;
            let dumped =
                self.connection.dump(
                    &RouteNetlinkMessage::GetRoute(asked),
                    |message| match message {
                        RouteNetlinkMessage::NewRoute(route) => Some(routes(&route)),
                        _ => None,
                    },
                );
            match dumped {
                Ok(found) => all.extend(found.into_iter().flatten()),
                // A kernel without IPv6 has no such table.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error).context("list the routes"),
            }
        }
        let named = |(index, route): (Option<u32>, FoundRoute)| {
            let link = index.and_then(|index| self.by_index(index));
            FoundRoute { link: link.map(|link| link.name.clone()).unwrap_or_default(), ..route }
        };
        Ok(all.into_iter().map(named).collect())
    }

    /// As `ip route get` asks.
    pub(crate) fn decide(&mut self, asked: Asked) -> io::Result<Result<Decision, NetlinkError>> {
        let length = if asked.dst.is_ipv4() { 32 } else { 128 };
        let mut message = RouteMessage::default();
        message.header.address_family = family(asked.dst);
        message.header.destination_prefix_length = length;
        message.attributes.push(RouteAttribute::Destination(asked.dst.into()));
        if let Some((source, device)) = asked.from {
            message.header.source_prefix_length = length;
            message.attributes.push(RouteAttribute::Source(source.into()));
            message.attributes.push(RouteAttribute::Iif(device));
        }
        if asked.mark != 0 {
            message.attributes.push(RouteAttribute::Mark(asked.mark));
        }
        let route = match self.connection.get(&RouteNetlinkMessage::GetRoute(message))? {
            Ok(RouteNetlinkMessage::NewRoute(route)) => route,
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(error) => return Ok(Err(error)),
        };
        let (mut link, mut via, mut mtu) = (String::new(), None, None);
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => {
                    link = self.by_index(*index).map(|it| it.name.clone()).unwrap_or_default();
                }
                RouteAttribute::Gateway(address) => via = ip(address),
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

    /// Of one device.
    pub(crate) fn neighbours(
        &mut self,
        of: AddressFamily,
        link: u32,
    ) -> anyhow::Result<Vec<FoundNeighbour>> {
        let mut asked = NeighbourMessage::default();
        asked.header.family = of;
        asked.attributes.push(NeighbourAttribute::IfIndex(link));
        let read = |message: RouteNetlinkMessage| match message {
            RouteNetlinkMessage::NewNeighbour(found) if found.header.ifindex == link => {
                let (ip, mac) = neighbour(&found);
                Some(FoundNeighbour { ip: ip?, mac, state: found.header.state })
            }
            _ => None,
        };
        let found = self.connection.dump(&RouteNetlinkMessage::GetNeighbour(asked), read);
        found.context("list the neighbours")
    }

    /// The forwarding entries of a vxlan device, or of a bridge's port.
    pub(crate) fn fdb(&mut self, link: u32) -> anyhow::Result<Vec<FoundFdb>> {
        let mut asked = NeighbourMessage::default();
        asked.header.family = AddressFamily::Bridge;
        asked.header.ifindex = link;
        let read = |message: RouteNetlinkMessage| match message {
            RouteNetlinkMessage::NewNeighbour(found) if found.header.ifindex == link => {
                let (dst, mac) = neighbour(&found);
                Some(FoundFdb { mac: mac?, dst })
            }
            _ => None,
        };
        let found = self.connection.dump(&RouteNetlinkMessage::GetNeighbour(asked), read);
        found.context("list the forwarding entries")
    }
}

pub(crate) fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn device(message: LinkMessage) -> Option<Device> {
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let flags = message.header.flags;
    let mut device = Device {
        index: message.header.index,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        ..Device::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::Mtu(mtu) => device.mtu = mtu,
            LinkAttribute::Address(octets) => device.mac = Mac::from_slice(&octets),
            LinkAttribute::Controller(index) => device.master = Some(index),
            LinkAttribute::Link(index) => device.peer = Some(index),
            LinkAttribute::LinkNetNsId(id) => device.peer_namespace = Some(id),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => device.kind = kind.to_string(),
                        LinkInfo::Data(InfoData::Vxlan(all)) => device.vxlan = Some(vxlan(&all)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(device)
}

fn vxlan(attributes: &[InfoVxlan]) -> VxlanDevice {
    let mut found = VxlanDevice::default();
    for attribute in attributes {
        match attribute {
            InfoVxlan::Id(vni) => found.vni = *vni,
            InfoVxlan::Port(port) => found.port = *port,
            InfoVxlan::Link(index) => found.parent = Some(*index),
            InfoVxlan::Local(ip) => found.local = Some((*ip).into()),
            InfoVxlan::Local6(ip) => found.local = Some((*ip).into()),
            _ => {}
        }
    }
    found
}

fn address(message: &AddressMessage) -> Option<(u32, IpNet)> {
    let (mut address, mut local) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Local(ip) => local = Some(*ip),
            _ => {}
        }
    }
    // On a point-to-point link "address" is the far end and "local" ours.
    let net = IpNet::new(local.or(address)?, message.header.prefix_len).ok()?;
    Some((message.header.index, net))
}

/// With the index of the device.
fn routes(message: &RouteMessage) -> Vec<(Option<u32>, FoundRoute)> {
    let header = &message.header;
    let unspecified: IpAddr = match header.address_family {
        AddressFamily::Inet => [0u8; 4].into(),
        _ => [0u8; 16].into(),
    };
    let (mut dst, mut via, mut link, mut metric) = (unspecified, None, None, 0);
    let mut table = u32::from(header.table);
    let mut several = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => dst = ip(address).unwrap_or(dst),
            RouteAttribute::Gateway(address) => via = ip(address),
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::MultiPath(hops) => {
                several.extend(hops.iter().map(|hop| {
                    let via = hop.attributes.iter().find_map(|attribute| match attribute {
                        RouteAttribute::Gateway(address) => ip(address),
                        _ => None,
                    });
                    (Some(hop.interface_index), via)
                }));
            }
            _ => {}
        }
    }
    let main = table == u32::from(RouteHeader::RT_TABLE_MAIN);
    let Ok(dst) = IpNet::new(dst, header.destination_prefix_length) else { return Vec::new() };
    if !main || header.flags.contains(RouteFlags::Cloned) {
        return Vec::new();
    }
    let hops = if several.is_empty() { vec![(link, via)] } else { several };
    let route = |via| FoundRoute {
        dst,
        via,
        link: String::new(),
        metric,
        protocol: header.protocol.into(),
        kind: header.kind,
        onlink: header.flags.contains(RouteFlags::Onlink),
    };
    hops.into_iter().map(|(link, via)| (link, route(via))).collect()
}

fn neighbour(message: &NeighbourMessage) -> (Option<IpAddr>, Option<Mac>) {
    let (mut ip, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(address) => {
                ip = match address {
                    NeighbourAddress::Inet(ip) => Some((*ip).into()),
                    NeighbourAddress::Inet6(ip) => Some((*ip).into()),
                    // A forwarding entry's: the family of the header says nothing about it.
                    NeighbourAddress::Other(bytes) => match bytes.len() {
                        4 => bytes.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
                        16 => bytes.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
                        _ => None,
                    },
                    _ => None,
                };
            }
            NeighbourAttribute::LinkLayerAddress(octets) => mac = Mac::from_slice(octets),
            _ => {}
        }
    }
    (ip, mac)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
