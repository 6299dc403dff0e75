//! What a node would do with a packet to or from a peer, hop by hop, as its kernel would decide it now. `flannelctl
//! trace` walks the half that is its own node's, and asks the other node's daemon for the other ([`request`]).
//!
//! [`walk()`] reads the kernel and goes from hop to hop; `judge` says what is wrong with what was read, and is pure.

mod drop_counters;
mod ends;
pub mod firewall;
mod hop;
mod ipsec_policies;
mod judge;
mod network;
pub mod pod_namespace;
mod queues;
pub mod request;
pub mod settings;
mod walk;

pub use drop_counters::DropCounters;
pub use ends::{End, Peer};
pub use hop::{Condition, Hop, Hops, Way};
pub use network::NodeInNetwork;
pub use walk::walk;
