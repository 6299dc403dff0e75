//! Version of a lease, which changes with each write.

use serde::{Deserialize, Serialize};

/// Version of a lease, new with each write, so that a node sees whether its own was the last. Opaque outside its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(u64);

impl Version {
    /// Version in stores that do not count them, or of a lease not written yet. It proves nothing.
    pub const UNKNOWN: Self = Self(0);

    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u64 {
        self.0
    }
}
