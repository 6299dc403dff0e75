//! A lease: one host's claim on a subnet, and how long it lasts.

use std::time::{Duration, SystemTime};

use crate::{LeaseAttrs, Subnet};

/// The life of a lease, as every flannel gives it.
pub const LEASE_TTL: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub subnet: Subnet,
    pub attrs: LeaseAttrs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// A reservation: made by an operator, it has no end and must never be given one.
    Never,
    At(SystemTime),
}

impl Expiry {
    /// Time that the lease still lasts; `None` for a reservation, zero when it is over.
    pub fn remaining(&self, now: SystemTime) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::At(end) => Some(end.duration_since(now).unwrap_or_default()),
        }
    }

    pub fn is_over(&self, now: SystemTime) -> bool {
        self.remaining(now).is_some_and(|left| left.is_zero())
    }
}
