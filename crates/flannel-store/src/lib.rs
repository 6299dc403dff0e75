//! Where leases live: the [`Store`] trait the daemon works with, and its implementations.
//!
//! A store answers four questions - what is the network config, who owns which subnet, may I have
//! one, is it still mine - and tells of changes. It knows nothing of kernels or backends.

#![cfg_attr(not(feature = "test-util"), forbid(unsafe_code))]

mod admin;
mod clock;
mod desk;
pub mod embedded;
mod error;
pub mod etcd;
pub mod feed;
mod front;
pub mod ledger;
pub mod remote;
mod store;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod wire;

pub use admin::{Admin, stranded};
pub use desk::Desk;
pub use embedded::{Embedded, EmbeddedStore};
pub use error::StoreError;
pub use etcd::{EtcdOptions, EtcdStore, Secret};
pub use front::EtcdDesk;
pub use remote::{RemoteOptions, RemoteStore};
pub use store::{Acquired, Announce, Claim, Held, Snapshot, Store, StoreEvent};
