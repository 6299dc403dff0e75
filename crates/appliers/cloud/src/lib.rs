//! Applier of routes in a cloud's route table: the cloud's network carries pods' packets, once an entry of its table
//! says behind which machine a subnet lies.
//!
//! Each node keeps its own route, and nobody else's: so there is nothing to do for a peer. [`CloudApplier`] compares
//! the table with what is wanted every now and then, for a cloud notifies nobody of changes. Each provider has a
//! module; the rest is shared.

#![forbid(unsafe_code)]

mod ali;
mod applier;
mod aws;
mod client;
mod credentials;
mod crypto;
mod error;
mod gce;
mod http;
mod instance;
mod json;
mod metadata;
mod pace;
mod plan;
mod record;
mod sign;
mod tencent;
#[cfg(feature = "test-util")]
pub mod testing;
mod xml;

pub use applier::CloudApplier;
pub use client::query_node;
pub use error::{CloudError, Fault, Result};
pub use record::{OwnRoute, recorded, remove_recorded};
