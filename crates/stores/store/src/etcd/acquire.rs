//! Acquiring a subnet: `flannel_lease::decide` chooses, and that is written only if no other node was quicker.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use flannel_lease::{
    Choice, Claimant, Decision, Lease, LeaseAttrs, NetworkConfig, Subnet, Version, decide,
};
use prost::bytes::Bytes;

use super::keys::{KeyMeaning, KeyRange};
use super::leases::{EtcdLeases, Grant, LeaseKey};
use super::listing::{ListedLease, Listing};
use super::proto::{Compare, KeyValue, RequestOp, TxnRequest};
use super::txn;
use crate::{AcquireAttempt, Claim, Held, Page, Pages, Recalled, Snapshot, StoreError};

const CONTENDED: StoreError = StoreError::Contended { tries: 1 };

/// Most leases that are discarded at once: etcd takes 128 operations per transaction.
const MAX_DISCARDS: usize = 64;

/// Try to get a subnet, with the keys of a listing that matter for a write.
#[derive(Debug)]
struct EtcdAttempt {
    leases: Arc<EtcdLeases>,
    revision: i64,
    own: BTreeMap<Subnet, LeaseKey>,
    /// Leases whose value cannot be read: their subnets are in use.
    unreadable: Vec<Lease>,
}

impl EtcdAttempt {
    fn new(
        leases: Arc<EtcdLeases>,
        config: &NetworkConfig,
        me: &Claimant,
        listing: &Listing,
    ) -> Self {
        let is_own =
            |entry: &&ListedLease| entry.attrs.as_ref().is_some_and(|attrs| me.has(config, attrs));
        // A slice would keep the complete answer in memory.
        let copied =
            |kv: &KeyValue| LeaseKey { key: Bytes::copy_from_slice(&kv.key), ..LeaseKey::of(kv) };
        let own = listing.entries.iter().filter(is_own);
        let unreadable = listing.entries.iter().filter(|entry| entry.attrs.is_none());
        let occupied =
            |entry: &ListedLease| Lease { subnet: entry.subnet, attrs: LeaseAttrs::default() };
        Self {
            leases,
            revision: listing.revision(),
            own: own.map(|entry| (entry.subnet, copied(&entry.kv))).collect(),
            unreadable: unreadable.map(occupied).collect(),
        }
    }
}

/// The lease of that name, if it is the one that `decide` will keep.
fn own_by_name(config: &NetworkConfig, me: &Claimant, listing: &Listing) -> Option<Lease> {
    let named = listing.named.as_ref().and_then(ListedLease::lease);
    named.filter(|lease| me.has(config, &lease.attrs) && config.accepts(&lease.subnet))
}

struct LeaseWrite {
    subnet: Subnet,
    key: Bytes,
    conditions: Vec<Compare>,
    grant: Grant,
    /// Whether others may have written overlapping leases at the same time.
    is_new: bool,
    discards: Vec<LeaseKey>,
}

#[async_trait]
impl AcquireAttempt for EtcdAttempt {
    async fn run(
        self: Box<Self>,
        config: &NetworkConfig,
        claim: &Claim,
        listed: &Snapshot,
    ) -> Result<Held, StoreError> {
        self.leases.try_acquire(config, claim, listed, &self).await
    }
}

impl EtcdLeases {
    pub(super) async fn recall(
        self: &Arc<Self>,
        config: &NetworkConfig,
        me: &Claimant,
        pages: Option<Pages<'_>>,
    ) -> Result<Recalled, StoreError> {
        self.delete_unwanted().await?;
        let listing = match pages {
            None => self.list().await?,
            Some(pages) => {
                let mut on_page = |listing: &Listing, begin: usize| {
                    let leases = || listing.entries[begin..].iter().filter_map(ListedLease::lease);
                    if let Some(own) = own_by_name(config, me, listing) {
                        pages(Page { own, leases: leases().collect() });
                    }
                };
                self.list_by_pages(me.previous.as_ref(), &mut on_page).await?
            }
        };
        let attempt = EtcdAttempt::new(self.clone(), config, me, &listing);
        Ok(Recalled::by_address(config, me, listing.into_snapshot(), attempt))
    }

    async fn try_acquire(
        &self,
        config: &NetworkConfig,
        claim: &Claim,
        snapshot: &Snapshot,
        listed: &EtcdAttempt,
    ) -> Result<Held, StoreError> {
        let leases = snapshot.leases.iter().map(|stored| &stored.lease);
        let in_use = leases.chain(&listed.unreadable);
        let decision = decide(config, in_use, &claim.claimant(), &mut self.rng.lock())?;
        let write = self.prepare_write(listed, decision).await?;
        let attempted = || format!("write the lease {}", String::from_utf8_lossy(&write.key));

        let request = self.request(&write, &claim.attrs, listed.revision);
        // After an error the etcd lease is left to expire: if the answer got lost, our key is attached to it.
        let answer = self.client.txn(request).await;
        let answer = answer.map_err(|fault| fault.during(attempted()))?;
        if !answer.succeeded {
            self.retire(write.grant.id);
            return Err(CONTENDED);
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        let mut found = answer.responses.into_iter().map(txn::found);
        let replaced = found.by_ref().take(1 + write.discards.len()).flatten();
        for kv in replaced.filter(|kv| kv.lease != write.grant.id) {
            self.retire(kv.lease);
        }
        let newcomers = found.flatten().collect::<Vec<_>>();
        if let Some(earlier_overlap) = self.earlier_overlap(&write, revision, &newcomers) {
            tracing::info!(ours = %write.subnet, theirs = %earlier_overlap, "another node took an overlapping subnet first");
            self.give_back(&write, revision).await;
            return Err(CONTENDED);
        }
        let lease = Lease { subnet: write.subnet, attrs: claim.attrs.clone() };
        let version = Version::new(revision.unsigned_abs());
        Ok(Held { lease, expiry: write.grant.expiry, version })
    }

    async fn prepare_write(
        &self,
        listed: &EtcdAttempt,
        decision: Decision,
    ) -> Result<LeaseWrite, StoreError> {
        let discards = decision.discard.iter().filter_map(|subnet| listed.own.get(subnet));
        let discards = discards.take(MAX_DISCARDS).cloned().collect();
        match decision.choice {
            Choice::Keep(subnet) => {
                let own = listed.own.get(&subnet).ok_or(CONTENDED)?;
                // A reservation is reused and stays one.
                let grant =
                    if own.reserved { Grant::NONE } else { self.grant_for_subnet().await? };
                let conditions = vec![own.is_unchanged()];
                let key = own.key.clone();
                Ok(LeaseWrite { subnet, key, conditions, grant, is_new: false, discards })
            }
            Choice::Take(subnet) => {
                let key: Bytes = self.keys.lease(&subnet).into();
                let names = self.keys.names(&subnet).map(Bytes::from);
                let conditions = names.map(|name| txn::is_absent(&name)).collect();
                let grant = self.grant_for_subnet().await?;
                Ok(LeaseWrite { subnet, key, conditions, grant, is_new: true, discards })
            }
        }
    }

    async fn grant_for_subnet(&self) -> Result<Grant, StoreError> {
        self.grant().await.map_err(|fault| fault.during("get an etcd lease for a subnet"))
    }

    /// If our keys are unchanged: writes the lease, deletes discarded ones, and reads keys created since the listing.
    fn request(&self, write: &LeaseWrite, attrs: &LeaseAttrs, since: i64) -> TxnRequest {
        let unchanged = write.discards.iter().map(LeaseKey::is_unchanged);
        let compare = write.conditions.iter().cloned().chain(unchanged).collect();
        let value: Bytes = attrs.to_json().into();
        let mut success: Vec<RequestOp> = vec![txn::put(&write.key, &value, write.grant.id)];
        success.extend(write.discards.iter().map(|old| txn::delete(&old.key)));
        if write.is_new {
            let directories = self.directories().iter().map(|dir| KeyRange::directory(dir));
            success.extend(directories.map(|range| txn::created_since(range, since)));
        }
        TxnRequest { compare, success, failure: vec![] }
    }

    /// A lease that overlaps ours and was first. Keys guard against equal subnets only, not other lengths or families.
    fn earlier_overlap(
        &self,
        write: &LeaseWrite,
        created: i64,
        newcomers: &[KeyValue],
    ) -> Option<Subnet> {
        newcomers.iter().filter(|kv| kv.key != write.key && kv.create_revision < created).find_map(
            |kv| match self.keys.meaning(&kv.key) {
                KeyMeaning::Lease(subnet) => subnet.overlaps(&write.subnet).then_some(subnet),
                KeyMeaning::Config | KeyMeaning::Foreign(_) => None,
            },
        )
    }

    /// Deletes the key that was written; if that fails, it is tried again before the next listing.
    async fn give_back(&self, write: &LeaseWrite, revision: i64) {
        let reserved = write.grant.id == Grant::NONE.id;
        *self.unwanted.lock() = Some(LeaseKey { key: write.key.clone(), revision, reserved });
        match self.delete_unwanted().await {
            Ok(()) => self.retire(write.grant.id),
            Err(error) => {
                tracing::warn!(key = %write.subnet, "cannot delete an unused lease: {error}")
            }
        }
    }

    async fn delete_unwanted(&self) -> Result<(), StoreError> {
        let Some(written) = self.unwanted.lock().clone() else { return Ok(()) };
        let (compare, key) = (vec![written.is_unchanged()], written.key);
        let request = TxnRequest { compare, success: vec![txn::delete(&key)], failure: vec![] };
        let attempted = || format!("give back the lease {}", String::from_utf8_lossy(&key));
        self.client.txn(request).await.map_err(|fault| fault.during(attempted()))?;
        *self.unwanted.lock() = None;
        Ok(())
    }
}
