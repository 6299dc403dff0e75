//! The kernel side of flannel: one reconciler that keeps the kernel equal to the wanted entries, and facts observed
//! of the node. Nothing in here knows what a lease is.
//!
//! Read it in this order: `Entry` of `flannel-entries` (what can be wanted), `wanted` (what is special about the
//! kernel), `reconciler` (the three movements that keep the kernel equal to it), [`Engine`] (the handle).

mod encode;
mod engine;
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
#[cfg(test)]
mod testing;
mod wanted;
mod wireguard;

pub use engine::{Engine, Latencies, OpenError};
pub use flannel_devices::{is_flannel_device, is_test_pod_device};
pub use observed::{ObservedVxlan, RouteKind};
pub use ownership::is_flannel_policy;
pub use settings::set_tx_checksum;
pub use wireguard::has_wireguard;
