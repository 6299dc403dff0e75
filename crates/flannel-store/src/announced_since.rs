//! Evidence of a store for which of several leases announced something first.

use std::num::NonZeroU64;

/// Place in the order of a store from which on a lease has announced what it announces; of a store that keeps no such
/// record, the place at which the lease itself came to be. The store alone gives it: nothing that a node writes into its
/// lease counts. It compares with others of the same store, and the lower one was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedSince(NonZeroU64);

impl AnnouncedSince {
    /// `None` for zero, which no store gives.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number as the store gave it: to hand it on, not to read anything in it.
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}
