//! What the kernel is wanted to hold, as plain data.
//!
//! An [`Entry`] is one object (a device, an address, a route, …), its [`Key`] is the part the kernel
//! identifies it by. Two entries with one key are two versions of the same object: the later
//! replaces the earlier in place. Devices are named, never numbered, because a device that is made
//! anew gets another index and everything that stood on it must follow.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use flannel_netlink::xfrm::{Direction, Policy};
use ipnet::IpNet;

use crate::{IfName, Mac, PublicKey, WireguardIdentity, WireguardPeer};

/// The protocol number all routes of flannel-rs carry (`ip route show proto 244`): how a route on
/// somebody else's device is known to be ours.
pub const ROUTE_PROTOCOL: u8 = 244;

/// The metric the kernel gives an IPv6 route that asks for none.
pub const IPV6_DEFAULT_METRIC: u32 = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Boxed: there are one or two of them among tens of thousands of smaller ones.
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

/// What the kernel identifies an entry by. The order of the variants is the order of dependency:
/// what comes first must exist first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Link(IfName),
    /// The key and the port of a device.
    Wireguard(IfName),
    WireguardPeer(IfName, PublicKey),
    /// By direction, source and destination. Ordered before routes, so that nothing leaves unencrypted.
    Policy(Direction, IpNet, IpNet),
    Offload(IfName),
    Sysctl(String),
    Address(IfName, IpNet),
    Neighbour(IfName, IpAddr),
    Fdb(IfName, Mac),
    Route(IpNet, u32),
}

/// A device that is wholly ours: made when missing, put right when altered, removed when no longer
/// wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: IfName,
    pub kind: LinkKind,
    pub mac: Option<Mac>,
    pub mtu: u32,
}

/// The kinds of devices that we make. Every place that must know a new one matches on this without
/// a default, so that the compiler names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    Vxlan(Vxlan),
    IpTunnel(IpTunnel),
    /// Key, port and peers are entries of their own.
    Wireguard,
    /// Created by the process that serves it; we keep its settings as wanted.
    Tun,
    /// Drops everything sent to it; what IPsec encrypts never gets here.
    Dummy,
}

impl LinkKind {
    /// The device this one sends through; `None`: whichever the routes say.
    pub fn parent(&self) -> Option<IfName> {
        match self {
            Self::Vxlan(vxlan) => Some(vxlan.parent),
            Self::IpTunnel(_) | Self::Wireguard | Self::Tun | Self::Dummy => None,
        }
    }

    /// As the kernel and `ip link add type …` name it.
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

/// As `ip -d link` would show it.
impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vxlan(v) => {
                write!(f, "vxlan id {} local {} dev {}", v.vni, v.local, v.parent)?;
                v.port.map_or(Ok(()), |port| write!(f, " dstport {port}"))
            }
            Self::IpTunnel(tunnel) => write!(f, "{} local {}", tunnel.kind.name(), tunnel.local),
            Self::Wireguard => f.write_str("wireguard"),
            Self::Tun => f.write_str("tun"),
            Self::Dummy => f.write_str("dummy"),
        }
    }
}

/// Another VNI, port, GBP or family of the local address means a new device; parent, local address
/// and learning are changed on the one that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    pub vni: u32,
    /// `None`: the kernel's own default (8472).
    pub port: Option<u16>,
    pub parent: IfName,
    pub local: IpAddr,
    pub learning: bool,
    pub gbp: bool,
}

/// Packets in packets, to whichever node a route names as its gateway. All of it is changed on the existing
/// device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpTunnel {
    pub kind: IpTunnelKind,
    pub local: Ipv4Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpTunnelKind {
    /// IPv4 in IPv4.
    Ipip,
    /// IPv6 in IPv4. A gateway is an IPv4 address as IPv6 can write one (`::192.0.2.1`).
    Sit,
}

impl IpTunnelKind {
    /// As the kernel and `ip link add type …` name it.
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
    /// With its host bits, as `ip addr` shows it.
    pub addr: IpNet,
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub dst: IpNet,
    pub metric: u32,
    pub via: Option<IpAddr>,
    pub link: IfName,
    /// The gateway need not be in a connected subnet.
    pub onlink: bool,
}

/// A route of the main table that drops what nothing better leads to.
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

/// A kernel setting, by its path below `/proc/sys`. One that the kernel does not have is skipped:
/// IPv6 may be compiled out.
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

/// How a comparison with the kernel comes across an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// It is planned against the devices that there are.
    Plan,
    /// The kernel lists it among all others.
    Listing,
    /// It is asked for by its name.
    Reading,
}

impl Key {
    pub(crate) fn found_by(&self) -> FoundBy {
        match self {
            Self::Link(_) => FoundBy::Plan,
            Self::Offload(_) | Self::Sysctl(_) => FoundBy::Reading,
            Self::Wireguard(_)
            | Self::WireguardPeer(..)
            | Self::Policy(..)
            | Self::Address(..)
            | Self::Neighbour(..)
            | Self::Fdb(..)
            | Self::Route(..) => FoundBy::Listing,
        }
    }
}

impl Entry {
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

    /// The device this entry stands on (for a device: itself).
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

/// Entries read as `ip` and `bridge` would show them, because that is what people compare with.
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
            Self::Offload(e) => {
                write!(
                    f,
                    "checksum offload {} on {}",
                    if e.tx_checksum { "on" } else { "off" },
                    e.link
                )
            }
            Self::Sysctl(e) => write!(f, "sysctl {}={}", e.path.replace('/', "."), e.value),
            Self::WireguardIdentity(e) => e.fmt(f),
            Self::WireguardPeer(e) => e.fmt(f),
            Self::Policy(e) => {
                let Policy { direction, src, dst, tunnel } = &**e;
                write!(
                    f,
                    "xfrm policy {direction} {src} -> {dst} in {} -> {}",
                    tunnel.src, tunnel.dst
                )
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
