//! Evidence of a store for which of several leases announced something first.

use std::num::NonZeroU64;

/// Place in the order of a store at which a lease came to announce what it announces. The store alone gives it: nothing
/// that a node writes into its lease counts. It compares with others of the same store, and the lower one was first.
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

    /// The store recorded only that the lease announced it at `number` already, or, a store without any history of what
    /// leases announce, when the lease came to be. Such numbers do not tell which of two leases was first.
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
