//! What has passed and what has been dropped, and why.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a packet has gone no further.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason { $($(#[$doc])* $variant,)* }

        impl DropReason {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// As metrics and the status name it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Not a whole IPv4 or IPv6 packet.
    Malformed = "malformed",
    /// Its destination is in no peer's subnet; its sender is told.
    NoRoute = "no-route",
    /// Its TTL or hop limit is used up; its sender is told.
    Expired = "expired",
    /// Longer than the path to the peer takes; its sender is told.
    TooBig = "too-big",
    /// From an address, or a port of it, that no lease's holder sends from.
    UnknownSender = "unknown-sender",
    /// From a lease's holder, but with an inner source outside of that lease's subnet.
    WrongSource = "wrong-source",
    /// The underlay refused it.
    SendFailed = "send-failed",
    /// The TUN device refused it.
    WriteFailed = "write-failed",
    /// A datagram longer than any that a peer sends.
    Truncated = "truncated",
    /// For a peer that has not agreed upon keys yet, and more waited for it than is kept.
    NoSession = "no-session",
}

const REASONS: usize = DropReason::ALL.len();

/// Packets and bytes of inner traffic; they only grow.
#[derive(Debug, Default)]
pub struct Counters {
    out: Traffic,
    r#in: Traffic,
    drops: [AtomicU64; REASONS],
}

#[derive(Debug, Default)]
#[repr(align(64))] // Both directions are counted by different threads.
struct Traffic {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Counters {
    pub(crate) fn sent(&self, packets: u64, bytes: u64) {
        self.out.add(packets, bytes);
    }

    pub(crate) fn received(&self, packets: u64, bytes: u64) {
        self.r#in.add(packets, bytes);
    }

    pub(crate) fn dropped(&self, reason: DropReason, packets: u64) {
        self.drops[reason as usize].fetch_add(packets, Ordering::Relaxed);
    }

    pub fn snapshot(&self) -> CounterSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CounterSnapshot {
            sent_packets: load(&self.out.packets),
            sent_bytes: load(&self.out.bytes),
            received_packets: load(&self.r#in.packets),
            received_bytes: load(&self.r#in.bytes),
            drops: self.drops.iter().map(load).collect(),
        }
    }

    /// Goes on from what was counted before, by a process whose work this one takes over.
    pub(crate) fn add(&self, earlier: &CounterSnapshot) {
        self.sent(earlier.sent_packets, earlier.sent_bytes);
        self.received(earlier.received_packets, earlier.received_bytes);
        for (drops, earlier) in self.drops.iter().zip(&earlier.drops) {
            drops.fetch_add(*earlier, Ordering::Relaxed);
        }
    }
}

/// Counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterSnapshot {
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
    /// In the order of [`DropReason::ALL`].
    pub drops: Vec<u64>,
}

impl CounterSnapshot {
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }
}
