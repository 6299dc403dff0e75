//! The kernel side of flannel: entries that are wanted, one reconciler that keeps the kernel equal
//! to them, and facts observed of the node. Nothing in here knows what a lease is.
//!
//! Read it in this order: [`Entry`] (what can be wanted), `wanted` (what is special about wanting it), `reconciler`
//! (the three movements that keep the kernel equal to it), [`Engine`] (the handle).

mod encode;
mod engine;
mod entry;
mod facts;
mod flannel_devices;
mod hazards;
mod link_plan;
mod links;
pub mod look;
mod monitor;
mod observed;
mod ownership;
mod reconciler;
mod repairs;
mod settings;
mod wanted;
mod wireguard;

pub use engine::{Engine, Latencies, OpenError};
pub use entry::{
    Address, Blackhole, Entry, Fdb, IPV6_DEFAULT_METRIC, IpTunnel, IpTunnelKind, Key, Link,
    LinkKind, Neighbour, Offload, ROUTE_PROTOCOL, Route, Sysctl, Vxlan,
};
pub use facts::{DefaultRoute, Facts, Interface, InterfaceAddress, KernelVersion, Path};
pub use flannel_devices::{
    IPSEC_DEVICE, TEST_POD_DEVICES, TUN_DEVICES, USUAL_DEVICE, VXLAN_DEVICES, WIREGUARD_DEVICES,
    ip_tunnel_device, is_flannel_device, is_flannel_name, is_test_pod_device, trial_device,
};
pub use flannel_netlink::xfrm::{Direction, ESP_REQID, EspTunnel, Policy};
pub use flannel_netlink::{IfName, InvalidIfName, InvalidMac, Mac};
pub use observed::{ObservedVxlan, RouteKind};
pub use ownership::{LegacyRoutes, Ownership, is_flannel_policy};
pub use settings::set_tx_checksum;
pub use wireguard::{
    InvalidKey, PresharedKey, PrivateKey, PublicKey, WireguardIdentity, WireguardPeer,
    has_wireguard,
};
