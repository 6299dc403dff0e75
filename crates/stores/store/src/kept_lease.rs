//! One lease as a lease server keeps it and sends it to clients.

use flannel_lease::{Lease, LeaseAttrs, Subnet, Version};

use crate::{AnnouncedSince, StoredLease};

/// Milliseconds since 1970, in the server's time.
pub type Millis = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLease {
    pub attrs: LeaseAttrs,
    /// `None` for a reservation.
    pub expires: Option<Millis>,
    pub version: u64,
    /// Client that acquired it, where clients have names, and its machine.
    pub owner: Option<Box<str>>,
    /// When it began to announce what it does, by a store behind the server: in an embedded one no two do the same.
    pub since: Option<AnnouncedSince>,
}

impl KeptLease {
    /// A lease that no revision has written yet.
    pub fn new(attrs: LeaseAttrs, expires: Option<Millis>, owner: Option<Box<str>>) -> Self {
        Self { attrs, expires, version: 0, owner, since: None }
    }

    pub fn into_stored(self, subnet: Subnet) -> StoredLease {
        let (version, reserved) = (Version::new(self.version), self.expires.is_none());
        let lease = Lease { subnet, attrs: self.attrs };
        StoredLease { lease, version, since: self.since, reserved }
    }
}

pub fn split_owner(mut attrs: LeaseAttrs) -> (LeaseAttrs, Option<Box<str>>) {
    let owner = attrs.owner.take();
    (attrs, owner)
}
