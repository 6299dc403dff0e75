//! The kernel side of flannel: entries that are wanted, one reconciler that keeps the kernel equal
//! to them, and facts observed of the node. Nothing in here knows what a lease is.
//!
//! Read it in this order: [`Entry`] (what can be wanted), `wanted` (the desired state), `reconciler`
//! (the three movements that keep the kernel equal to it), [`Engine`] (the handle).

#[cfg(feature = "engine")]
mod encode;
#[cfg(feature = "engine")]
mod engine;
mod entry;
mod facts;
#[cfg(feature = "engine")]
mod link_plan;
#[cfg(feature = "engine")]
mod links;
mod mac;
mod name;
pub mod netlink;
#[cfg(feature = "engine")]
mod observed;
#[cfg(feature = "engine")]
mod ownership;
#[cfg(feature = "engine")]
mod reconciler;
#[cfg(feature = "engine")]
mod repairs;
#[cfg(feature = "engine")]
mod settings;
#[cfg(feature = "engine")]
mod wanted;

#[cfg(feature = "engine")]
pub use engine::{Engine, EngineError, Owner, Status};
pub use entry::{
    Address, Blackhole, Entry, Fdb, IPV6_DEFAULT_METRIC, Key, Link, LinkKind, Neighbour, Offload,
    ROUTE_PROTOCOL, Route, Sysctl, Vxlan,
};
pub use facts::{DefaultRoute, Facts, Interface, InterfaceAddress, KernelVersion, Path};
pub use mac::{InvalidMac, Mac};
pub use name::{IfName, InvalidIfName};
#[cfg(feature = "engine")]
pub use ownership::{LegacyRoutes, Ownership};
