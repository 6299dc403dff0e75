//! Where leases live: the [`Store`] trait the daemon works with, and its implementations.
//!
//! A store answers four questions - what is the network config, who owns which subnet, may I have
//! one, is it still mine - and tells of changes. It knows nothing of kernels or backends.

#![cfg_attr(not(feature = "test-util"), forbid(unsafe_code))]

mod acquire;
mod admin;
mod clock;
pub mod embedded;
mod error;
pub mod etcd;
mod etcd_service;
mod lease_service;
pub mod lease_state;
pub mod remote;
mod store;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod watch_log;
pub mod wire;

pub use acquire::acquire;
pub use admin::{Admin, stranded};
pub use embedded::{Embedded, EmbeddedStore};
pub use error::StoreError;
pub use etcd::{EtcdOptions, EtcdStore, Secret};
pub use etcd_service::EtcdService;
pub use lease_service::LeaseService;
pub use remote::{RemoteOptions, RemoteStore};
pub use store::{
    Acquired, Claim, Cursor, Held, NodeNetwork, Recalled, Snapshot, Store, StoreEvent, StoredLease,
};
