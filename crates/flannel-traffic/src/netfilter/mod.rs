//! The kernel's nftables interface, as little of it as needs no `nft`: hearing of changes, and finding
//! and removing what a flannel in the other mode has left. What `iptables` (the nft variant) writes is
//! seen here too.

mod monitor;
mod objects;
mod wire;

pub(crate) use monitor::{Event, Monitor, Object};
pub(crate) use objects::Objects;
pub(crate) use wire::protocol;
