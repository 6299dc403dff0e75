//! Applier of the ipsec backend: what it wants of strongSwan.
//!
//! charon, strongSwan's daemon, negotiates keys with other nodes and gives them to the kernel. It is started when it
//! is first wanted, told by VICI which connections and secrets there are, watched, and started again should it end.
//! It outlives flanneld, so that restarts of flanneld cost no tunnel. Which packets travel in the tunnels is decided
//! by the kernel's policies, and so by `flannel-kernel`.

#![forbid(unsafe_code)]

mod applier;
mod charon;
mod messages;
mod tunnels;
pub mod vici;

pub use applier::Ipsec;
pub use charon::{find_leftovers, remove_leftovers};
