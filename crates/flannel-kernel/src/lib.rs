//! The kernel side of flannel: entries that are wanted, one reconciler that keeps the kernel equal
//! to them, and facts observed of the node. Nothing in here knows what a lease is.

mod entry;
mod facts;
mod mac;
mod name;

pub use entry::{
    Address, Entry, Fdb, IPV6_DEFAULT_METRIC, Key, Link, LinkKind, Neighbour, Offload,
    ROUTE_PROTOCOL, Route, Sysctl, Vxlan,
};
pub use facts::{DefaultRoute, Facts, Interface, InterfaceAddress, KernelVersion, Path};
pub use mac::{InvalidMac, Mac};
pub use name::{IfName, InvalidIfName};
