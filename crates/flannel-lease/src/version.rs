//! The version of a lease: it changes each time somebody writes the lease.

use serde::{Deserialize, Serialize};

/// Every time somebody writes a lease, the store gives it another version; a node that finds the version it
/// wrote knows that nobody has written since. Only the store that gave it looks inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(u64);

impl Version {
    /// Given by stores that do not count versions, or for a lease not written yet. It proves
    /// nothing.
    pub const UNKNOWN: Self = Self(0);

    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// For the store that gave it.
    pub const fn number(self) -> u64 {
        self.0
    }
}
