//! Nodes probe each other: a small UDP exchange, through the overlay and beside it, so that what is wrong is told with
//! the layer it is in; see `docs/probing.md`.
//!
//! Pure: what is said ([`wire`], [`cookie`], [`responder`]), whom to ask when ([`schedule`]), what follows from answers
//! ([`verdict`], [`finding`], `peers`). At the rim: sockets (`net`), one turn (`examine`), the task ([`Prober`]).

mod ask_limits;
pub mod cookie;
mod examine;
pub mod finding;
pub mod marked;
mod mtu_search;
mod net;
mod peers;
mod prober;
pub mod responder;
mod round_trip;
pub mod schedule;
pub mod testing;
pub mod verdict;
pub mod wire;

pub use net::{Listeners, ask_once};
pub use peers::{
    ByFamily, IncompletePeers, PeerReachability, Peers, ProbingNode, SharedPeers, Target,
};
pub use prober::Prober;
pub use responder::Way;
pub use round_trip::RoundTrips;
pub use verdict::ProbeVerdict;
pub use wire::{PORT, Standing};

use schedule::Costs;

/// Bytes of IP and UDP header.
const fn header(is_v6: bool) -> usize {
    if is_v6 { 48 } else { 28 }
}

/// What probing costs on the wire, there and back, with pods' packets of at most `mtu` bytes to which the path
/// adds `overhead`. Cookies are asked for anew once in six times at the most.
pub fn cost(mtu: u32, overhead: u32) -> Costs {
    let beside = u64::from(overhead) + header(false) as u64;
    let reply = wire::REPLY as u64 + beside;
    let small = wire::ASK as u64 + beside + reply;
    // Through the tunnel, and beside it.
    Costs { small: small + small / 6, full: 2 * (u64::from(mtu + overhead) + reply) + small }
}
