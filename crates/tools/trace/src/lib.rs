//! What a node would do with a packet, hop by hop, as its kernel would decide it now: bridge, route, rules, neighbour,
//! FDB, underlay, and the same of what comes from a peer. `flannelctl trace` walks the half that is its own node's, and
//! asks the daemon of the other node for the other half ([`request`]).
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
