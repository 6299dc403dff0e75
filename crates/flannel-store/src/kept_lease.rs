//! One lease as a lease server keeps it and tells its clients of it.

use std::sync::Arc;

use flannel_lease::{Lease, LeaseAttrs, Subnet, Version};

use crate::{AnnouncedSince, StoredLease};

/// Milliseconds since 1970, in the server's time.
pub type Millis = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLease {
    pub attrs: LeaseAttrs,
    /// `None` for a reservation.
    pub expires: Option<Millis>,
    /// The revision that wrote it.
    pub version: u64,
    /// Who acquired it, when the server knows its clients by name, and on which machine.
    pub owner: Option<Arc<str>>,
    /// Since when it announces what it does, by the account of the store behind the server. An embedded store has none:
    /// in it no two leases announce the same.
    pub since: Option<AnnouncedSince>,
}

impl KeptLease {
    /// For those who ask a store, not a server.
    pub fn into_stored(self, subnet: Subnet) -> StoredLease {
        let (version, reserved) = (Version::new(self.version), self.expires.is_none());
        let lease = Lease { subnet, attrs: self.attrs };
        StoredLease { lease, version, since: self.since, reserved }
    }
}

/// Whose it is stands beside the attributes here, not in them.
pub fn split_owner(mut attrs: LeaseAttrs) -> (LeaseAttrs, Option<Arc<str>>) {
    let owner = attrs.owner.take().map(Arc::from);
    (attrs, owner)
}
