//! Where leases live: the [`Store`] trait the daemon works with, and its implementations.
//!
//! A store answers four questions - what is the network config, who owns which subnet, may I have
//! one, is it still mine - and tells of changes. It knows nothing of kernels or backends.

#![cfg_attr(not(feature = "test-util"), forbid(unsafe_code))]

mod acquire;
mod admin;
mod announced_since;
mod contact;
mod error;
pub mod etcd;
mod kept_lease;
mod log_position;
mod node_request;
mod refusal;
pub mod remote;
mod store;
mod store_findings;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod wire;

pub use acquire::acquire;
pub use admin::{Admin, stranded};
pub use announced_since::AnnouncedSince;
pub use contact::Contact;
pub use error::StoreError;
pub use etcd::{ClusterPin, EtcdKey, EtcdKeys, EtcdOptions, EtcdStore, Secret};
pub use flannel_lease::LARGEST_DATA;
pub use kept_lease::{KeptLease, Millis, split_owner};
pub use log_position::LogPosition;
pub use node_request::{
    LARGEST_REQUEST, LIFE, NodeAnswer, NodeRequest, PLACED_EVERY, REQUESTS_AT_ONCE, RequestId,
    Requests, read_answer_body, requests_json,
};
pub use refusal::Refusal;
pub use remote::{RemoteOptions, RemoteStore};
pub use store::{
    Acquired, Claim, Cursor, EXAMPLE, Held, NodeNetwork, Page, Pages, PublicAddresses, Recalled,
    Snapshot, Store, StoreEvent, StoredLease,
};
pub use store_findings::{LeaseConflict, StoreFindings};
