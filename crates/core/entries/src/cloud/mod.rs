//! Entries of a cloud, and how it is accessed.

mod access;
mod entry;
mod node;
mod own_endpoint;

pub use access::{Access, Keys, Provider};
pub use entry::{CloudEntry, CloudKey, CloudRoute, Table};
pub use node::{CloudInterface, CloudNode, NodeQuery};
