//! What a node's kernel holds of flannel's: read over netlink, as lines to compare and to read.
//!
//! Lines have the form that desired entries print themselves in, so that a test may compare what is
//! there with what the backends say should be.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use flannel_common::xfrm::ESP_REQID;
use flannel_common::xfrm::Policy;
use flannel_common::{IfName, Mac};
use flannel_entries::kernel::{
    Address, Blackhole, Entry, Fdb, LinkKind, Neighbour, ROUTE_PROTOCOL, Route,
};
use flannel_lab::{Node, Place as _, Result};
use flannel_netlink::{Connection, Protocol, xfrm};
use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

/// The kernel's own choice for a vxlan device that names no port.
const DEFAULT_PORT: u16 = 8472;
const PROTOCOL_KERNEL: u8 = 2;

/// What is there, a line each.
pub(crate) type Held = BTreeSet<String>;

/// A view into the kernel of one node.
pub(crate) struct Kernel {
    connection: Connection,
    /// A kernel may have none.
    xfrm: Option<Connection>,
    namespace: PathBuf,
    networks: Vec<IpNet>,
}

/// A device, as far as tests ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) mac: String,
    pub(crate) mtu: u32,
}

impl Kernel {
    /// Of a node whose pods are in the networks that the lab makes by default.
    pub(crate) fn of(node: &Node) -> Result<Self> {
        let networks = ["10.244.0.0/16", "fd00:244::/48"];
        Self::with_networks(node, &networks)
    }

    pub(crate) fn with_networks(node: &Node, networks: &[&str]) -> Result<Self> {
        let networks = networks.iter().map(|text| text.parse().unwrap()).collect();
        // The socket stays in the node's namespace, wherever it is used.
        let connection =
            node.in_netns(|| Connection::open(Protocol::Route))?.expect("a netlink socket");
        let xfrm = node.in_netns(|| Connection::open(Protocol::Xfrm))?.ok();
        Ok(Self { connection, xfrm, namespace: node.namespace().paths().net, networks })
    }

    /// All of flannel's: its devices and what stands on them, and routes into its networks that the
    /// kernel has not made by itself.
    pub(crate) fn held(&mut self) -> Held {
        self.try_held().expect("netlink answers")
    }

    /// A device by its name.
    pub(crate) fn device(&mut self, name: &str) -> Option<Device> {
        let links = self.links().expect("netlink answers");
        links.into_values().find(|link| link.name == name).map(|link| Device {
            index: link.index,
            mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            mtu: link.mtu,
        })
    }

    fn try_held(&mut self) -> io::Result<Held> {
        let links = self.links()?;
        let mut held: Held = links.values().filter_map(|link| link.line(&links)).collect();
        let ours =
            |index: &u32| links.get(index).filter(|link| link.is_ours()).map(|l| l.if_name());
        for message in self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
            if let RouteNetlinkMessage::NewAddress(message) = message
                && let Some(link) = ours(&message.header.index)
            {
                held.extend(address(&message, link).map(|entry| entry.to_string()));
            }
        }
        for link in links.values().filter(|link| link.is_ours()) {
            for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Bridge] {
                for message in self.dump(neighbours(family, link.index))? {
                    if let RouteNetlinkMessage::NewNeighbour(message) = message
                        && message.header.ifindex == link.index
                    {
                        held.extend(neighbour(&message, link.if_name()).map(|e| e.to_string()));
                    }
                }
            }
        }
        if links.values().any(|link| link.is_ours() && link.wireguard) {
            held.extend(self.wireguard());
        }
        held.extend(self.policies()?);
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            for message in self.dump(RouteNetlinkMessage::GetRoute(request))? {
                if let RouteNetlinkMessage::NewRoute(message) = message {
                    held.extend(self.route(&message, &links));
                }
            }
        }
        Ok(held)
    }

    /// IPsec's policies into the pod networks.
    fn policies(&mut self) -> io::Result<Held> {
        let Some(xfrm) = &mut self.xfrm else { return Ok(Held::new()) };
        let policies = xfrm.ask_all(&xfrm::list_policies(), xfrm::read_policy)?.unwrap_or_default();
        let ours = |net: &IpNet| self.networks.iter().any(|network| network.contains(net));
        let line = |found: xfrm::ObservedPolicy| {
            let xfrm::ObservedPolicy { direction, src, dst, tunnel, plain, .. } = found;
            let line = match tunnel {
                Some(tunnel) => {
                    let reqid = tunnel.reqid;
                    let policy = Policy { direction, src, dst, tunnel };
                    Entry::Policy(Box::new(policy)).to_string() + &format!(" reqid {reqid}")
                }
                None => format!("xfrm policy {direction} {src} -> {dst} of another kind"),
            };
            if plain { line } else { line + " with more" }
        };
        Ok(policies.into_iter().filter(|it| ours(&it.src) && ours(&it.dst)).map(line).collect())
    }

    /// How many tunnels of flannel's there are, a direction each.
    pub(crate) fn tunnels(&mut self) -> usize {
        let xfrm = self.xfrm.as_mut().expect("a kernel with IPsec");
        let states = xfrm.ask_all(&xfrm::list_states(), xfrm::read_state).expect("netlink answers");
        let ours = |state: &&xfrm::State| state.reqid == ESP_REQID && state.spi != 0;
        states.unwrap_or_default().iter().filter(ours).count()
    }

    /// Keys, ports and peers, as WireGuard's own tool tells them.
    fn wireguard(&self) -> Held {
        let mut command = std::process::Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace.display()));
        let output = command.args(["wg", "show", "all", "dump"]).output().expect("nsenter runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = |line: &str| match line.split('\t').collect::<Vec<_>>().as_slice() {
            [device, _, public, port, mark] => {
                format!("wireguard key of {public} port {port} mark {mark} dev {device}")
            }
            [device, peer, psk, endpoint, allowed, _, _, _, keepalive] => format!(
                "wireguard peer {peer} psk {} endpoint {endpoint} allowed-ips {allowed} keepalive {keepalive} \
                 dev {device}",
                psk.len() > 10
            ),
            _ => line.to_owned(),
        };
        text.lines().map(line).collect()
    }

    fn links(&mut self) -> io::Result<BTreeMap<u32, FoundLink>> {
        let messages = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        let links = messages.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(message) => Some(FoundLink::read(message)),
            _ => None,
        });
        Ok(links.map(|link| (link.index, link)).collect())
    }

    fn dump(&mut self, request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        match self.connection.dump(&request, Some) {
            // The device went between two questions.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(Vec::new()),
            other => other,
        }
    }

    fn route(&self, message: &RouteMessage, links: &BTreeMap<u32, FoundLink>) -> Option<String> {
        let header = &message.header;
        let mut dst: IpAddr = match header.address_family {
            AddressFamily::Inet => [0; 4].into(),
            _ => [0; 16].into(),
        };
        let (mut table, mut metric) = (u32::from(header.table), 0);
        let (mut link, mut via, mut more) = (None, None, "");
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Metrics(_) => more = " with metrics",
                RouteAttribute::PrefSource(_) => more = " with a source",
                RouteAttribute::Table(id) => table = *id,
                RouteAttribute::Destination(ip) => dst = route_ip(ip)?,
                RouteAttribute::Priority(value) => metric = *value,
                RouteAttribute::Oif(index) => link = links.get(index),
                RouteAttribute::Gateway(ip) => via = route_ip(ip),
                _ => {}
            }
        }
        let dst = IpNet::new(dst, header.destination_prefix_length).ok()?;
        let protocol = u8::from(header.protocol);
        let into_ours = self.networks.iter().any(|network| network.contains(&dst));
        let on_ours = link.is_some_and(FoundLink::is_ours);
        if table != u32::from(RouteHeader::RT_TABLE_MAIN)
            || header.flags.contains(RouteFlags::Cloned)
            || protocol == PROTOCOL_KERNEL
            || !(into_ours || on_ours || protocol == ROUTE_PROTOCOL)
        {
            return None;
        }
        let line = match (header.kind, link) {
            (RouteType::BlackHole, _) => Entry::Blackhole(Blackhole { dst, metric }).to_string(),
            (RouteType::Unicast, Some(link)) => {
                let onlink = header.flags.contains(RouteFlags::Onlink);
                let link = link.if_name();
                Entry::Route(Route { dst, metric, via, link, onlink }).to_string()
            }
            (kind, _) => format!("route {dst} of kind {kind:?}"),
        };
        let line = line + more;
        Some(if protocol == ROUTE_PROTOCOL { line } else { format!("{line} proto {protocol}") })
    }
}

/// What an entry looks like when the kernel holds it; nothing for what netlink does not show.
pub(crate) fn line(entry: &Entry) -> Option<String> {
    match entry {
        Entry::Link(link) => match &link.kind {
            LinkKind::Vxlan(vxlan) => Some(device_line(
                link.name.as_str(),
                link.mac.unwrap_or(Mac([0; 6])),
                link.mtu,
                true,
                vxlan.vni,
                vxlan.port.unwrap_or(DEFAULT_PORT),
                vxlan.local,
                vxlan.parent.as_str(),
                vxlan.learning,
            )),
            LinkKind::IpTunnel(tunnel) => {
                Some(tunnel_line(link.name.as_str(), link.mtu, true, &tunnel.local.to_string()))
            }
            LinkKind::Wireguard => Some(wireguard_line(link.name.as_str(), link.mtu, true)),
            LinkKind::Tun => Some(format!("device {} (tun mtu {})", link.name, link.mtu)),
            LinkKind::Dummy => Some(dummy_line(link.name.as_str(), link.mtu, true)),
        },
        Entry::Sysctl(_) | Entry::Offload(_) => None,
        Entry::WireguardIdentity(_) | Entry::WireguardPeer(_) => None,
        other => Some(other.to_string()),
    }
}

#[expect(clippy::too_many_arguments, reason = "a device has that many properties")]
fn device_line(
    name: &str,
    mac: Mac,
    mtu: u32,
    up: bool,
    vni: u32,
    port: u16,
    local: IpAddr,
    parent: &str,
    learning: bool,
) -> String {
    let state = if up { "up" } else { "down" };
    let learning = if learning { " learning" } else { "" };
    format!(
        "device {name} {state} address {mac} mtu {mtu} vxlan {vni} port {port} local {local} dev {parent}{learning}"
    )
}

fn tunnel_line(name: &str, mtu: u32, up: bool, ends: &str) -> String {
    let state = if up { "up" } else { "down" };
    format!("device {name} {state} mtu {mtu} tunnel local {ends}")
}

fn dummy_line(name: &str, mtu: u32, up: bool) -> String {
    let state = if up { "up" } else { "down" };
    format!("device {name} {state} mtu {mtu} dummy")
}

fn wireguard_line(name: &str, mtu: u32, up: bool) -> String {
    let state = if up { "up" } else { "down" };
    format!("device {name} {state} mtu {mtu} wireguard")
}

#[derive(Debug)]
struct FoundLink {
    index: u32,
    name: String,
    mac: Option<Mac>,
    mtu: u32,
    up: bool,
    /// What no device of flannel's should be.
    odd: Vec<&'static str>,
    vxlan: Vec<InfoVxlan>,
    tunnel: Option<Vec<InfoIpTunnel>>,
    wireguard: bool,
    dummy: bool,
}

impl FoundLink {
    fn read(message: LinkMessage) -> Self {
        let up = message.header.flags.contains(LinkFlags::Up);
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up,
            odd: Vec::new(),
            vxlan: Vec::new(),
            tunnel: None,
            wireguard: false,
            dummy: false,
        };
        if message.header.flags.contains(LinkFlags::Noarp) {
            link.odd.push(" noarp");
        }
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(octets) => link.mac = Mac::from_slice(&octets),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::ProtoDown(1) => link.odd.push(" held down"),
                LinkAttribute::Controller(_) => link.odd.push(" under a master"),
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Data(InfoData::Vxlan(attributes)) => link.vxlan = attributes,
                            LinkInfo::Kind(InfoKind::Wireguard) => link.wireguard = true,
                            LinkInfo::Kind(InfoKind::Dummy) => link.dummy = true,
                            LinkInfo::Data(InfoData::IpTunnel(attributes)) => {
                                link.tunnel = Some(attributes);
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        link
    }

    fn is_ours(&self) -> bool {
        self.name.starts_with("flannel")
    }

    fn if_name(&self) -> IfName {
        IfName::new(&self.name).expect("the kernel's names are valid")
    }

    fn line(&self, links: &BTreeMap<u32, Self>) -> Option<String> {
        if !self.is_ours() {
            return None;
        }
        if let Some(attributes) = &self.tunnel {
            return Some(self.tunnel_line(attributes));
        }
        if self.dummy {
            return Some(dummy_line(&self.name, self.mtu, self.up));
        }
        if self.wireguard {
            return Some(wireguard_line(&self.name, self.mtu, self.up));
        }
        let (mut vni, mut port, mut parent, mut learning) = (0, 0, "nothing", false);
        let mut local = IpAddr::from([0; 4]);
        for attribute in &self.vxlan {
            match attribute {
                InfoVxlan::Id(id) => vni = *id,
                InfoVxlan::Port(number) => port = *number,
                InfoVxlan::Link(index) => parent = links.get(index).map_or("nothing", |l| &l.name),
                InfoVxlan::Local(ip) => local = (*ip).into(),
                InfoVxlan::Local6(ip) => local = (*ip).into(),
                InfoVxlan::Learning(on) => learning = *on,
                _ => {}
            }
        }
        let mac = self.mac.unwrap_or(Mac([0; 6]));
        let (name, mtu, up) = (&self.name, self.mtu, self.up);
        let line = device_line(name, mac, mtu, up, vni, port, local, parent, learning);
        Some(line + &self.odd.concat())
    }
}

impl FoundLink {
    fn tunnel_line(&self, attributes: &[InfoIpTunnel]) -> String {
        let (mut ends, mut more) = (String::new(), String::new());
        for attribute in attributes {
            match attribute {
                InfoIpTunnel::Local(ip) => ends = ip.to_string(),
                InfoIpTunnel::Remote(ip) if !ip.is_unspecified() => {
                    more += &format!(" remote {ip}")
                }
                InfoIpTunnel::Link(index) if *index != 0 => more += " bound to a device",
                InfoIpTunnel::Ttl(ttl) if *ttl != 0 => more += &format!(" ttl {ttl}"),
                InfoIpTunnel::PMtuDisc(true) => more += " pmtudisc",
                _ => {}
            }
        }
        tunnel_line(&self.name, self.mtu, self.up, &(ends + &more))
    }
}

fn address(message: &AddressMessage, link: IfName) -> Option<Entry> {
    let ip = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) | AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    })?;
    // The kernel gives every device one of these by itself.
    let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let addr = IpNet::new(ip, message.header.prefix_len).ok()?;
    (!link_local).then_some(Entry::Address(Address { link, addr }))
}

fn neighbours(family: AddressFamily, link: u32) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    if family == AddressFamily::Bridge {
        message.header.ifindex = link;
    } else {
        message.attributes.push(NeighbourAttribute::IfIndex(link));
    }
    RouteNetlinkMessage::GetNeighbour(message)
}

/// Permanent ones alone: others the kernel has learned.
fn neighbour(message: &NeighbourMessage, link: IfName) -> Option<Entry> {
    let (mut ip, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(address) => ip = neighbour_ip(address),
            NeighbourAttribute::LinkLayerAddress(octets) => mac = Mac::from_slice(octets),
            _ => {}
        }
    }
    let (ip, mac) = (ip?, mac?);
    if message.header.state != NeighbourState::Permanent {
        return None;
    }
    match message.header.family {
        AddressFamily::Bridge if message.header.flags.contains(NeighbourFlags::Own) => {
            Some(Entry::Fdb(Fdb { link, mac, dst: ip }))
        }
        AddressFamily::Bridge => None,
        _ => Some(Entry::Neighbour(Neighbour { link, ip, mac })),
    }
}

fn neighbour_ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(ip) => Some((*ip).into()),
        NeighbourAddress::Inet6(ip) => Some((*ip).into()),
        NeighbourAddress::Other(bytes) => match bytes.len() {
            4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
            16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
            _ => None,
        },
        _ => None,
    }
}

fn route_ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}
