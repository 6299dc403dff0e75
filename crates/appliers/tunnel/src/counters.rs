//! Counters of packets that were carried, and of those that were dropped, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason { $($(#[$doc])* $variant,)* }

        impl DropReason {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Name of the reason in metrics and in the status.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Not a complete IPv4 or IPv6 packet.
    Malformed = "malformed",
    /// No peer's subnet contains its destination; the sender gets an ICMP error.
    NoRoute = "no-route",
    /// Its TTL or hop limit is used up; the sender gets an ICMP error.
    Expired = "expired",
    /// Longer than the MTU of the path to the peer; the sender gets an ICMP error.
    TooBig = "too-big",
    /// From an address or port that no peer sends from.
    UnknownSender = "unknown-sender",
    /// From a peer, but with an inner source outside of that peer's subnet.
    WrongSource = "wrong-source",
    /// The underlay refused it.
    SendFailed = "send-failed",
    /// The TUN device refused it.
    WriteFailed = "write-failed",
    /// A datagram longer than any that a peer sends.
    Truncated = "truncated",
    /// For a peer without a session, and too many packets waited for it.
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

    /// Adds the counters of an earlier process whose work this one takes over.
    pub(crate) fn add(&self, earlier: &CounterSnapshot) {
        self.sent(earlier.sent_packets, earlier.sent_bytes);
        self.received(earlier.received_packets, earlier.received_bytes);
        for (drops, earlier) in self.drops.iter().zip(&earlier.drops) {
            drops.fetch_add(*earlier, Ordering::Relaxed);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterSnapshot {
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
    /// Drops in the order of [`DropReason::ALL`].
    pub drops: Vec<u64>,
}

impl CounterSnapshot {
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }
}
