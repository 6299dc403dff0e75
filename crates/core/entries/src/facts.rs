//! Facts of this node: its interfaces, their addresses, its default routes, its kernel. They are an input like
//! leases: observed and compared, and a change is an event.

use std::fmt;
use std::net::IpAddr;

use flannel_common::{IfName, Mac};
use ipnet::IpNet;

/// Facts of a node. Everything is ordered, so that equal nodes have equal facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Interfaces by index, as `ip link` lists them.
    pub interfaces: Vec<Interface>,
    /// Default routes of the main table, each next hop on its own, best metric first within a family.
    pub default_routes: Vec<DefaultRoute>,
    /// Counts changes of routes that are not ours: a path looked up before may have changed.
    pub routing_version: u64,
    pub kernel: KernelVersion,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub name: IfName,
    pub mac: Option<Mac>,
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    pub loopback: bool,
    /// Index of the bridge, bond or other device that it is a port of.
    pub master: Option<u32>,
    /// Addresses in the kernel's order.
    pub addresses: Vec<InterfaceAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub addr: IpNet,
    pub permanent: bool,
    pub temporary: bool,
    pub deprecated: bool,
    /// The kernel has found the address on another machine of the link, and does not use it (`dadfailed`); IPv6 only.
    pub duplicate: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultRoute {
    pub ipv6: bool,
    pub link: IfName,
    pub metric: u32,
    pub gateway: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub link: IfName,
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    pub major: u32,
    pub minor: u32,
}

impl Facts {
    pub fn interface(&self, name: IfName) -> Option<&Interface> {
        self.interfaces.iter().find(|i| i.name == name)
    }
}

impl KernelVersion {
    /// Reads `uname -r`, e.g. `6.1.0-54-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Self { major: numbers.next()?.parse().ok()?, minor: numbers.next()?.parse().ok()? })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
