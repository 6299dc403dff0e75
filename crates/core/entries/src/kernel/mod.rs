//! Entries of the kernel.

mod entry;
mod ownership;
mod wireguard;

pub use entry::{
    Address, Blackhole, Entry, Fdb, IPV6_DEFAULT_METRIC, IpTunnel, IpTunnelKind, Key, Link,
    LinkKind, Neighbour, Offload, ROUTE_PROTOCOL, Route, Sysctl, Vxlan,
};
pub use ownership::{LegacyRoutes, Ownership};
pub use wireguard::{WireguardIdentity, WireguardPeer};
