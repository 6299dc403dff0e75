//! The backends: pure functions from leases to kernel entries.
//!
//! [`Backend`] says what one must provide, [`create`] lists those there are, and `mesh` puts their
//! entries together to the desired state of a node.

#![forbid(unsafe_code)]

mod alloc;
mod backend;
mod connected;
mod family;
mod host_gw;
mod mesh;
mod underlay;
mod vxlan;

use flannel_lease::BackendConfig;

pub use backend::{Backend, BackendError, Node, Past, PeerProblem};
pub use connected::{Connected, Meeting};
pub use mesh::{Owner, meetings, networks, ownership, peer_entries, public_addresses};
pub use underlay::Underlay;

/// In the order the documentation lists them.
const KNOWN: [&str; 3] = ["vxlan", "host-gw", "alloc"];

/// The backend that a network config asks for.
pub fn create(config: &BackendConfig) -> Result<Box<dyn Backend>, BackendError> {
    Ok(match config.kind.as_str() {
        "vxlan" => Box::new(vxlan::VxlanBackend::new(config)?),
        "host-gw" => Box::new(host_gw::HostGwBackend::new(config)),
        "alloc" => Box::new(alloc::AllocBackend::new(config)),
        kind => {
            return Err(BackendError::Unknown { kind: kind.to_owned(), known: KNOWN.join(", ") });
        }
    })
}
