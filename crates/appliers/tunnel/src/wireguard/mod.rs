//! WireGuard in this process, where the kernel has none: the same messages, the same timers, and batches that stay
//! batches. Whole runs of packets are sealed before they are sent and opened where they were received.
//!
//! The handshake is Noise's, by the crate `snow`; ciphers and curves are `ring`'s and `x25519-dalek`'s. Packets of
//! one peer are sealed by several threads at once: a session has no lock on the way out, only a counter.

mod device;
mod handshake;
mod messages;
mod opening;
mod peer;
mod primitives;
mod replay;
mod sealing;
mod session;
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod timers;
mod waiting;

pub(crate) use device::{HandedPeer, Wireguard};
pub(crate) use messages::DATA_OVERHEAD;
pub(crate) use opening::OpenedPacket;
pub(crate) use peer::Peer;
pub(crate) use timers::TIMER_INTERVAL;
/// What a packet may grow by: header, tag and padding.
pub(crate) const MOST_GROWTH: usize = DATA_OVERHEAD + messages::PADDING - 1;
