//! What the ipsec backend wants of strongSwan, and who keeps it so.
//!
//! charon, strongSwan's daemon, agrees on keys with other nodes and gives them to the kernel. It is started
//! when it is first wanted, told by VICI which connections and secrets there are, watched, and started anew
//! should it end. It outlives flanneld, so that restarts of that one cost no tunnel. Which packets travel in the
//! tunnels is the kernel's matter, and that of `flannel-kernel`.

#![forbid(unsafe_code)]

mod applier;
mod charon;
mod entry;
mod tunnels;
pub mod vici;

pub use applier::Ipsec;
pub use charon::{CharonError, find_leftovers, remove_leftovers};
pub use entry::{Connection, ConnectionName, IpsecEntry, IpsecKey, SharedSecret};
