//! A cloud's route table: the network itself carries pods' packets, once it has been told by an entry of its
//! table behind which machine a subnet lies.
//!
//! Each node keeps its own route, and nobody else's: so there is nothing to do for a peer. [`CloudApplier`] is
//! the applier: it compares the table with what is wanted every now and then, for a cloud tells nobody of
//! changes. What differs from provider to provider is in a module each; the rest is shared.

#![forbid(unsafe_code)]

mod access;
mod ali;
mod applier;
mod aws;
mod client;
mod credentials;
mod crypto;
mod entry;
mod error;
mod gce;
mod http;
mod metadata;
mod node;
mod own_endpoint;
mod pace;
mod plan;
mod record;
mod tencent;
#[cfg(feature = "test-util")]
pub mod testing;
mod xml;

pub use access::{Access, Provider};
pub use applier::CloudApplier;
pub use credentials::Keys;
pub use entry::{CloudEntry, CloudKey, CloudRoute, Forwarding, Table};
pub use error::{CloudError, Fault};
pub use node::{CloudInterface, CloudNode, NodeQuery};
pub use record::{OwnRoute, recorded, remove_recorded};
