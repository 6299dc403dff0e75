//! Entries of the kernel, as plain data.
//!
//! An [`Entry`] is one object (a device, an address, a route, …), its [`Key`] is the part that the kernel identifies
//! it by. Two entries with one key are two versions of the same object: the later replaces the earlier in place.
//! Devices are named, never numbered, because a device that is made again gets another index and everything on it
//! must follow.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use flannel_common::xfrm::{Direction, Policy};
use flannel_common::{Family, IfName, Mac, PublicKey};
use flannel_wanted::{Importance, KeyedEntry};
use ipnet::IpNet;

use super::{WireguardIdentity, WireguardPeer};

/// Protocol number of our routes (`ip route show proto 244`), which marks those on somebody else's device as ours.
pub const ROUTE_PROTOCOL: u8 = 244;

/// Metric that the kernel gives an IPv6 route that asks for none.
pub const IPV6_DEFAULT_METRIC: u32 = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Boxed: there are one or two of them among tens of thousands of smaller entries.
    Link(Box<Link>),
    Address(Address),
    Route(Route),
    Blackhole(Blackhole),
    Neighbour(Neighbour),
    Fdb(Fdb),
    Sysctl(Sysctl),
    Offload(Offload),
    WireguardIdentity(Box<WireguardIdentity>),
    WireguardPeer(Box<WireguardPeer>),
    Policy(Box<Policy>),
}

/// Identity of an entry in the kernel. The variants are in order of dependency: what comes first must exist first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Link(IfName),
    /// Private key and port of a WireGuard device.
    Wireguard(IfName),
    WireguardPeer(IfName, PublicKey),
    /// Direction, source and destination of an IPsec policy. Before routes, so that nothing leaves unencrypted.
    Policy(Direction, IpNet, IpNet),
    Offload(IfName),
    Sysctl(String),
    Address(IfName, IpNet),
    Neighbour(IfName, IpAddr),
    Fdb(IfName, Mac),
    Route(IpNet, u32),
}

/// A device that is entirely ours: made when missing, corrected when altered, removed when no longer wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: IfName,
    pub kind: LinkKind,
    pub mac: Option<Mac>,
    pub mtu: u32,
}

/// Kind of a device that we make, matched without a default, so that the compiler names where a new one is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    Vxlan(Vxlan),
    IpTunnel(IpTunnel),
    /// A WireGuard device. Key, port and peers are entries of their own.
    Wireguard,
    /// A TUN device, created by the process that serves it; we keep its settings as wanted.
    Tun,
    /// A device that drops everything sent to it; packets that IPsec encrypts never get there.
    Dummy,
}

impl LinkKind {
    /// Device that this one sends through; `None` if the routes decide.
    pub fn parent(&self) -> Option<IfName> {
        match self {
            Self::Vxlan(vxlan) => Some(vxlan.parent),
            Self::IpTunnel(_) | Self::Wireguard | Self::Tun | Self::Dummy => None,
        }
    }

    /// Name of the kind in the kernel and in `ip link add type …`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Vxlan(_) => "vxlan",
            Self::IpTunnel(tunnel) => tunnel.kind.name(),
            Self::Wireguard => "wireguard",
            Self::Tun => "tun",
            Self::Dummy => "dummy",
        }
    }
}

/// Writes the kind as `ip -d link` does.
impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vxlan(v) => {
                write!(f, "vxlan id {} local {} dev {}", v.vni, v.local, v.parent)?;
                v.port.map_or(Ok(()), |port| write!(f, " dstport {port}"))
            }
            Self::IpTunnel(tunnel) => write!(f, "{} local {}", tunnel.kind.name(), tunnel.local),
            Self::Wireguard | Self::Tun | Self::Dummy => f.write_str(self.kind()),
        }
    }
}

/// A vxlan device. Another VNI, port, GBP or family of the local address means a new device; parent, local address
/// and learning are changed on the existing one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    pub vni: u32,
    /// Destination port; `None` for the kernel's default (8472).
    pub port: Option<u16>,
    pub parent: IfName,
    pub local: IpAddr,
    pub learning: bool,
    pub gbp: bool,
}

/// An IP tunnel to the nodes that routes name as gateways. Everything is changed on the existing device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpTunnel {
    pub kind: IpTunnelKind,
    pub local: Ipv4Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpTunnelKind {
    Ipip,
    /// IPv6 in IPv4. A gateway is an IPv4 address written as IPv6 (`::192.0.2.1`).
    Sit,
}

impl IpTunnelKind {
    /// Name of the kind in the kernel and in `ip link add type …`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Sit => "sit",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub link: IfName,
    /// Address with its host bits, as `ip addr` shows it.
    pub addr: IpNet,
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub dst: IpNet,
    pub metric: u32,
    pub via: Option<IpAddr>,
    pub link: IfName,
    /// Whether the gateway may be outside of connected subnets.
    pub onlink: bool,
}

/// A route of the main table that drops packets for which there is no better route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blackhole {
    pub dst: IpNet,
    pub metric: u32,
}

/// A permanent neighbour (ARP/NDP) entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub link: IfName,
    pub ip: IpAddr,
    pub mac: Mac,
}

/// A permanent forwarding entry of a vxlan device: frames for `mac` go to the VTEP at `dst`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fdb {
    pub link: IfName,
    pub mac: Mac,
    pub dst: IpAddr,
}

/// A kernel setting, by its path below `/proc/sys`. A missing one is skipped: IPv6 may be compiled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    pub path: String,
    pub value: String,
}

/// Transmit checksum offload of a device, which some kernels get wrong on vxlan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
    pub link: IfName,
    pub tx_checksum: bool,
}

impl Entry {
    /// A setting of a device's address family, such as `ipv6/accept_ra`.
    pub fn device_setting(family: Family, link: IfName, name: &str, value: &str) -> Self {
        let family = family.choose(["ipv4", "ipv6"]);
        let path = format!("net/{family}/conf/{link}/{name}");
        Self::Sysctl(Sysctl { path, value: value.to_owned() })
    }

    pub fn key(&self) -> Key {
        match self {
            Self::Link(e) => Key::Link(e.name),
            Self::WireguardIdentity(e) => Key::Wireguard(e.link),
            Self::WireguardPeer(e) => Key::WireguardPeer(e.link, e.public_key),
            Self::Policy(e) => Key::Policy(e.direction, e.src, e.dst),
            Self::Offload(e) => Key::Offload(e.link),
            Self::Sysctl(e) => Key::Sysctl(e.path.clone()),
            Self::Address(e) => Key::Address(e.link, e.addr),
            Self::Neighbour(e) => Key::Neighbour(e.link, e.ip),
            Self::Fdb(e) => Key::Fdb(e.link, e.mac),
            Self::Route(e) => Key::Route(e.dst, e.metric),
            Self::Blackhole(e) => Key::Route(e.dst, e.metric),
        }
    }

    /// Device that this entry is on (for a device: itself).
    pub fn link(&self) -> Option<IfName> {
        match self {
            Self::Link(e) => Some(e.name),
            Self::WireguardIdentity(e) => Some(e.link),
            Self::WireguardPeer(e) => Some(e.link),
            Self::Offload(e) => Some(e.link),
            Self::Sysctl(_) | Self::Blackhole(_) | Self::Policy(_) => None,
            Self::Address(e) => Some(e.link),
            Self::Neighbour(e) => Some(e.link),
            Self::Fdb(e) => Some(e.link),
            Self::Route(e) => Some(e.link),
        }
    }
}

impl KeyedEntry for Entry {
    type Key = Key;
    /// A device, and the family whose packets an entry leads there or lets in; `None` if it is only on the device.
    type Device = (IfName, Option<Family>);

    fn key(&self) -> Key {
        self.key()
    }

    /// Compares the frequent kinds without building a `Key`.
    fn compare_key(&self, key: &Key) -> Ordering {
        match (self, key) {
            (Self::Neighbour(e), Key::Neighbour(link, ip)) => (&e.link, &e.ip).cmp(&(link, ip)),
            (Self::Fdb(e), Key::Fdb(link, mac)) => (&e.link, &e.mac).cmp(&(link, mac)),
            (Self::Route(e), Key::Route(dst, metric)) => (&e.dst, &e.metric).cmp(&(dst, metric)),
            _ => self.key().cmp(key),
        }
    }

    fn devices(&self) -> impl Iterator<Item = Self::Device> {
        let (carries, parent) = match self {
            Self::Address(address) => (Some(Family::of(address.addr.addr())), None),
            Self::Route(route) => (Some(Family::of(route.dst.addr())), None),
            Self::Link(link) => (None, link.kind.parent()),
            _ => (None, None),
        };
        self.link().map(|link| (link, carries)).into_iter().chain(parent.map(|link| (link, None)))
    }

    /// Describes the entry; secrets hide themselves.
    fn describe(&self) -> String {
        self.to_string()
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Link(_) => "device",
            Self::Address(_) => "address",
            Self::Route(_) | Self::Blackhole(_) => "route",
            Self::Neighbour(_) => "neighbour",
            Self::Fdb(_) => "fdb",
            Self::Sysctl(_) => "sysctl",
            Self::Offload(_) => "offload",
            Self::WireguardIdentity(_) => "wireguard-key",
            Self::WireguardPeer(_) => "wireguard-peer",
            Self::Policy(_) => "xfrm-policy",
        }
    }

    fn importance(&self) -> Importance {
        match self {
            Self::Link(_) | Self::WireguardIdentity(_) | Self::Address(_) => Importance::Foundation,
            _ => Importance::Ordinary,
        }
    }
}

/// Writes entries as `ip` and `bridge` show them, because people compare with those.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(e) => {
                write!(f, "device {} ({} mtu {}", e.name, e.kind, e.mtu)?;
                match e.mac {
                    Some(mac) => write!(f, " address {mac})"),
                    None => f.write_str(")"),
                }
            }
            Self::Offload(Offload { link, tx_checksum }) => {
                write!(f, "checksum offload {} on {link}", if *tx_checksum { "on" } else { "off" })
            }
            Self::Sysctl(e) => write!(f, "sysctl {}={}", e.path.replace('/', "."), e.value),
            Self::WireguardIdentity(e) => e.fmt(f),
            Self::WireguardPeer(e) => e.fmt(f),
            Self::Policy(e) => {
                let Policy { direction, src, dst, tunnel } = &**e;
                let (from, to) = (tunnel.src, tunnel.dst);
                write!(f, "xfrm policy {direction} {src} -> {dst} in {from} -> {to}")
            }
            Self::Address(e) => write!(f, "address {} dev {}", e.addr, e.link),
            Self::Neighbour(e) => write!(f, "neighbour {} lladdr {} dev {}", e.ip, e.mac, e.link),
            Self::Fdb(e) => write!(f, "fdb {} dst {} dev {}", e.mac, e.dst, e.link),
            Self::Blackhole(e) => write!(f, "route blackhole {} metric {}", e.dst, e.metric),
            Self::Route(e) => {
                write!(f, "route {}", e.dst)?;
                if let Some(via) = e.via {
                    write!(f, " via {via}")?;
                }
                write!(f, " dev {}", e.link)?;
                if e.metric != 0 {
                    write!(f, " metric {}", e.metric)?;
                }
                if e.onlink { f.write_str(" onlink") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(name) => write!(f, "device {name}"),
            Self::Wireguard(name) => write!(f, "wireguard key and port of {name}"),
            Self::WireguardPeer(link, key) => write!(f, "wireguard peer {key} dev {link}"),
            Self::Policy(direction, src, dst) => {
                write!(f, "xfrm policy {direction} {src} -> {dst}")
            }
            Self::Offload(name) => write!(f, "checksum offload of {name}"),
            Self::Sysctl(path) => write!(f, "sysctl {}", path.replace('/', ".")),
            Self::Address(link, addr) => write!(f, "address {addr} dev {link}"),
            Self::Neighbour(link, ip) => write!(f, "neighbour {ip} dev {link}"),
            Self::Fdb(link, mac) => write!(f, "fdb {mac} dev {link}"),
            Self::Route(dst, 0) => write!(f, "route {dst}"),
            Self::Route(dst, metric) => write!(f, "route {dst} metric {metric}"),
        }
    }
}
