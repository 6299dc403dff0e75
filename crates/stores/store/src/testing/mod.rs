//! For tests, of this crate and of others: a real etcd of one's own, and a way to look and meddle
//! behind the store's back. Panics instead of returning errors, as tests do.

mod leases;
mod ports;
mod server;

pub use crate::etcd::testing::{EtcdKey, EtcdKeys, RawEtcd, RawUser};
pub use leases::{AcquireAs, plain};
pub use ports::free_ports;
pub use server::{EtcdServer, ServerTls};
