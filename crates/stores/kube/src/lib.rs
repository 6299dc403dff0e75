//! Leases as Kubernetes keeps them: a node's subnet is its Node's `podCIDR`, and what the node announces
//! is in its Node's annotations. The same annotations as the Go flannel's.

#![cfg_attr(not(feature = "test-util"), forbid(unsafe_code))]

pub mod access;
pub mod annotations;
pub mod api;
pub mod client;
pub mod cluster;
pub mod events;
mod follow;
mod forward;
mod json;
pub mod kubeconfig;
pub mod lease;
pub mod message;
mod named_node;
pub mod net_config;
pub mod node;
mod node_json;
mod node_protobuf;
mod nodes;
mod operator;
mod options;
mod packed;
pub mod patch;
mod protobuf;
mod requests;
mod served;
mod store;
pub mod table;
#[cfg(feature = "test-util")]
pub mod testing;
mod token_review;
mod working;

pub use forward::{Forwarded, ProbePorts};
pub use nodes::KubeNodes;
pub use operator::{ConfigMapName, KubeOperator};
pub use options::KubeOptions;
pub use store::KubeStore;
pub use token_review::TokenReview;
