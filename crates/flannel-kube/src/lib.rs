//! Leases as Kubernetes keeps them: a node's subnet is its Node's `podCIDR`, and what the node announces
//! stands in its Node's annotations. The same annotations as the Go flannel's.

#![cfg_attr(not(feature = "test-util"), forbid(unsafe_code))]

pub mod access;
pub mod annotations;
pub mod api;
pub mod cluster;
mod http;
mod json;
pub mod kubeconfig;
pub mod lease;
pub mod message;
pub mod net_config;
pub mod node;
pub mod patch;
mod protobuf;
mod store;
pub mod table;
#[cfg(feature = "test-util")]
pub mod testing;

pub use store::{KubeOptions, KubeStore};
