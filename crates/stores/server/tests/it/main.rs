//! The lease server over real sockets, with the client every node uses and with bad manners.

#![allow(clippy::unwrap_used)]

mod api;
mod browsers;
mod certificates;
mod clock;
mod etcd_service;
mod manners;
mod metrics;
mod moved;
mod nodes;
mod page;
mod requests;
mod rights;
mod secrets;
mod security;
mod shared_token;
mod snapshot_permits;
mod support;
