//! Short ways to what most tests want of a store.

use async_trait::async_trait;
use flannel_lease::{Lease, NetworkConfig, Version};

use crate::{Acquired, Claim, NodeStore, StoreError, StoreEvent, StoredLease};

/// For nodes that announce the same whatever they were known by.
#[async_trait]
pub trait AcquireAs: NodeStore {
    async fn acquire(&self, config: &NetworkConfig, claim: &Claim) -> Result<Acquired, StoreError> {
        let me = claim.claimant();
        let recalled = self.recall(config, &me).await?;
        crate::acquire(self, config, &me, recalled, |_| claim.attrs.clone()).await
    }
}

impl<S: NodeStore + ?Sized> AcquireAs for S {}

/// Of a lease whose version and reservation do not matter.
impl From<Lease> for StoredLease {
    fn from(lease: Lease) -> Self {
        Self { lease, version: Version::UNKNOWN, since: None, reserved: false }
    }
}

impl PartialEq<Lease> for StoredLease {
    fn eq(&self, lease: &Lease) -> bool {
        self.lease == *lease
    }
}

/// The event without versions and reservations.
pub fn plain(event: StoreEvent) -> StoreEvent {
    match event {
        StoreEvent::Put(stored) => StoreEvent::Put(stored.lease.into()),
        StoreEvent::Snapshot(leases) => {
            StoreEvent::Snapshot(leases.into_iter().map(|stored| stored.lease.into()).collect())
        }
        other => other,
    }
}
