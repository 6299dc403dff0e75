//! Stores of leases: traits by their users, and stores in etcd and at a lease server. Others are `KubeStore` of
//! `flannel-kube` and `EmbeddedStore` of `flannel-server`.
//!
//! Everybody reads the network config and the leases, and watches both ([`Store`]). A node asks for its own lease
//! ([`NodeStore`]), an operator writes the config ([`OperatorStore`]) and changes the pool of subnets, where there is
//! one ([`SubnetPool`]). Operators place requests that nodes answer ([`RequestStore`]).

#![cfg_attr(not(feature = "test-util"), forbid(unsafe_code))]

mod announced_since;
mod contact;
mod error;
pub mod etcd;
mod kept_lease;
mod log_position;
mod node_request;
mod node_store;
mod operator_store;
mod refusal;
pub mod remote;
mod store;
mod store_findings;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod wire;

pub use announced_since::AnnouncedSince;
pub use contact::Contact;
pub use error::StoreError;
pub use etcd::{ClusterPin, EtcdOptions, EtcdStore, Secret};
pub use flannel_lease::MAX_DATA_BYTES;
pub use kept_lease::{KeptLease, Millis, split_owner};
pub use log_position::LogPosition;
pub use node_request::{
    MAX_REQUEST_BYTES, MAX_STANDING_REQUESTS, NodeAnswer, NodeRequest, REQUEST_LIFETIME,
    REQUEST_RENEWAL_INTERVAL, RequestChange, RequestId, RequestStore, Requests, read_answer_body,
    requests_json,
};
pub use node_store::{
    AcquireAttempt, Acquired, Claim, NodeNetwork, NodeStore, Page, Pages, PublicAddresses,
    Recalled, acquire,
};
pub use operator_store::{OperatorStore, PoolChange, SubnetPool, replace_config};
pub use refusal::Refusal;
pub use remote::{RemoteOptions, RemoteStore};
pub use store::{Cursor, EXAMPLE_CONFIG, Held, Snapshot, Store, StoreEvent, StoredLease};
pub use store_findings::{LeaseConflict, StoreFindings};

/// Brings all traits of a store into scope.
pub mod prelude {
    pub use crate::{
        NodeStore as _, OperatorStore as _, RequestStore as _, Store as _, SubnetPool as _,
    };
}
