//! Evidence of a store for which of several leases announced something first.

use std::num::NonZeroU64;

/// Place in the store's own order at which a lease came to announce what it does. The lowest of a store was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedSince {
    number: NonZeroU64,
    is_exact: bool,
}

impl AnnouncedSince {
    /// The store recorded the announcement itself. `None` for zero, which no store gives.
    pub fn exact(number: u64) -> Option<Self> {
        Self::read(number, true)
    }

    /// The store knows only that it was announced by then, or since when there is the lease, which settles nothing.
    pub fn about(number: u64) -> Option<Self> {
        Self::read(number, false)
    }

    pub(crate) fn read(number: u64, is_exact: bool) -> Option<Self> {
        NonZeroU64::new(number).map(|number| Self { number, is_exact })
    }

    /// The number as the store gave it: to hand it on, not to read anything in it.
    pub const fn number(self) -> u64 {
        self.number.get()
    }

    pub const fn is_exact(self) -> bool {
        self.is_exact
    }
}
