//! Getting a subnet: `flannel_lease::decide` chooses from what was listed, and the choice is written only if
//! nobody was quicker.

use flannel_lease::{
    Choice, Claimant, Decision, Lease, LeaseAttrs, NetworkConfig, Subnet, Version, decide,
};
use prost::bytes::Bytes;

use super::keys::{KeyRange, Meaning};
use super::leases::{EtcdLeases, Grant, WrittenKey};
use super::listing::{ListedLease, Listing};
use super::proto::{Compare, KeyValue, RequestOp, TxnRequest};
use super::txn;
use crate::{Acquired, Claim, Held, Page, Pages, Recalled, Snapshot, StoreError};

const QUICKER: StoreError = StoreError::Contended { tries: 1 };

/// etcd takes 128 operations per transaction; nobody has that many leases to throw away.
const MAX_DISCARDS: usize = 64;

/// What is to be known of a listing beyond its leases.
struct Listed {
    revision: i64,
    /// The keys of this node's leases.
    own: Vec<OwnKey>,
    /// Leases whose value cannot be read: their subnets are in use.
    unreadable: Vec<Lease>,
}

#[derive(Clone)]
struct OwnKey {
    subnet: Subnet,
    key: Bytes,
    modified: i64,
    reserved: bool,
}

impl Listed {
    fn new(config: &NetworkConfig, me: &Claimant, listing: &Listing) -> Self {
        let is_own =
            |entry: &&ListedLease| entry.attrs.as_ref().is_some_and(|attrs| me.has(config, attrs));
        let own = |entry: &ListedLease| OwnKey {
            subnet: entry.subnet,
            // A part of the whole answer would keep all of it in memory.
            key: Bytes::copy_from_slice(&entry.kv.key),
            modified: entry.kv.mod_revision,
            reserved: entry.is_reserved(),
        };
        let entries = listing.entries.iter();
        let unreadable = entries.clone().filter(|entry| entry.attrs.is_none());
        let occupied =
            |entry: &ListedLease| Lease { subnet: entry.subnet, attrs: LeaseAttrs::default() };
        Self {
            revision: listing.revision(),
            own: entries.filter(is_own).map(own).collect(),
            unreadable: unreadable.map(occupied).collect(),
        }
    }

    fn own(&self, subnet: &Subnet) -> Option<&OwnKey> {
        self.own.iter().find(|own| own.subnet == *subnet)
    }
}

/// The lease of that name, if it is the one that `decide` will keep.
fn own_by_name(config: &NetworkConfig, me: &Claimant, listing: &Listing) -> Option<Lease> {
    let named = listing.named.as_ref().and_then(ListedLease::lease);
    named.filter(|lease| me.has(config, &lease.attrs) && config.accepts(&lease.subnet))
}

/// What is about to be written.
struct Plan {
    subnet: Subnet,
    key: Bytes,
    conditions: Vec<Compare>,
    grant: Grant,
    /// Whether others may have written at the same time what overlaps it.
    is_new: bool,
    discards: Vec<OwnKey>,
}

impl EtcdLeases {
    pub(super) async fn recall(
        &self,
        config: &NetworkConfig,
        me: &Claimant,
        pages: Option<Pages<'_>>,
    ) -> Result<Recalled, StoreError> {
        self.delete_unwanted().await?;
        let listing = match pages {
            None => self.list().await?,
            Some(pages) => {
                let mut heard = |listing: &Listing, begin: usize| {
                    let leases = || listing.entries[begin..].iter().filter_map(ListedLease::lease);
                    if let Some(own) = own_by_name(config, me, listing) {
                        pages(Page { own, leases: leases().collect() });
                    }
                };
                self.list_by_pages(me.previous.as_ref(), &mut heard).await?
            }
        };
        let listed = Listed::new(config, me, &listing);
        let snapshot = Snapshot { cursor: listing.cursor(), leases: listing.into_leases() };
        Ok(Recalled::by_address(config, me, snapshot).with_basis(listed))
    }

    pub(super) async fn try_acquire(
        &self,
        config: &NetworkConfig,
        claim: &Claim,
        recalled: Recalled,
    ) -> Result<Acquired, StoreError> {
        let listed = recalled.basis::<Listed>().ok_or(QUICKER)?;
        let leases = recalled.snapshot.leases.iter().map(|stored| &stored.lease);
        let in_use = leases.chain(&listed.unreadable);
        let decision = decide(config, in_use, &claim.claimant(), &mut self.rng())?;
        let plan = self.plan(listed, decision).await?;
        let attempted = || format!("write the lease {}", String::from_utf8_lossy(&plan.key));

        let request = self.request(&plan, &claim.attrs, listed.revision);
        // After an error the etcd lease is left to expire: if the answer got lost, our key is attached to it.
        let answer = self.client.txn(request).await;
        let answer = answer.map_err(|fault| fault.during(attempted()))?;
        if !answer.succeeded {
            self.retire(plan.grant.id);
            return Err(QUICKER);
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        let mut found = answer.responses.into_iter().map(txn::found);
        let replaced = found.by_ref().take(1 + plan.discards.len()).flatten();
        for kv in replaced.filter(|kv| kv.lease != plan.grant.id) {
            self.retire(kv.lease);
        }
        let newcomers = found.flatten().collect::<Vec<_>>();
        if let Some(rival) = self.rival(&plan, revision, &newcomers) {
            tracing::info!(ours = %plan.subnet, theirs = %rival, "another node took an overlapping subnet first");
            self.give_back(&plan, revision).await;
            return Err(QUICKER);
        }
        let lease = Lease { subnet: plan.subnet, attrs: claim.attrs.clone() };
        let version = Version::new(revision.unsigned_abs());
        let held = Held { lease, expiry: plan.grant.expiry, version };
        Ok(recalled.acquired(config, held))
    }

    async fn plan(&self, listed: &Listed, decision: Decision) -> Result<Plan, StoreError> {
        let discards = decision.discard.iter().filter_map(|subnet| listed.own(subnet));
        let discards = discards.take(MAX_DISCARDS).cloned().collect();
        match decision.choice {
            Choice::Keep(subnet) => {
                let own = listed.own(&subnet).ok_or(QUICKER)?;
                // A reservation is reused and stays one.
                let grant =
                    if own.reserved { Grant::NONE } else { self.grant_for_subnet().await? };
                let conditions = vec![txn::is_unchanged(&own.key, own.modified)];
                let key = own.key.clone();
                Ok(Plan { subnet, key, conditions, grant, is_new: false, discards })
            }
            Choice::Take(subnet) => {
                let key: Bytes = self.keys.lease(&subnet).into();
                let other_name = self.keys.go_lease(&subnet).map(Bytes::from);
                let absent = [Some(&key), other_name.as_ref()];
                let conditions = absent.into_iter().flatten().map(txn::is_absent).collect();
                let grant = self.grant_for_subnet().await?;
                Ok(Plan { subnet, key, conditions, grant, is_new: true, discards })
            }
        }
    }

    async fn grant_for_subnet(&self) -> Result<Grant, StoreError> {
        self.grant().await.map_err(|fault| fault.during("get an etcd lease for a subnet"))
    }

    /// If nothing of ours changed: write, throw away what the config no longer allows, and look who
    /// came in since the listing.
    fn request(&self, plan: &Plan, attrs: &LeaseAttrs, since: i64) -> TxnRequest {
        let unchanged = plan.discards.iter().map(|old| txn::is_unchanged(&old.key, old.modified));
        let compare = plan.conditions.iter().cloned().chain(unchanged).collect();
        let value: Bytes = attrs.to_json().into();
        let mut success: Vec<RequestOp> = vec![txn::put(&plan.key, &value, plan.grant.id)];
        success.extend(plan.discards.iter().map(|old| txn::delete(&old.key)));
        if plan.is_new {
            let directories = self.directories().iter().map(|dir| KeyRange::directory(dir));
            success.extend(directories.map(|range| txn::created_since(range, since)));
        }
        TxnRequest { compare, success, failure: vec![] }
    }

    /// A lease that overlaps ours and was there first. Keys guard against equal subnets only; with
    /// two families, or two subnet lengths, different keys can hold the same addresses.
    fn rival(&self, plan: &Plan, created: i64, newcomers: &[KeyValue]) -> Option<Subnet> {
        newcomers.iter().filter(|kv| kv.key != plan.key && kv.create_revision < created).find_map(
            |kv| match self.keys.meaning(&kv.key) {
                Meaning::Lease(subnet) => subnet.overlaps(&plan.subnet).then_some(subnet),
                Meaning::Config | Meaning::Foreign(_) => None,
            },
        )
    }

    /// If it fails, it is done before anything else is listed: our key would be found there and kept.
    async fn give_back(&self, plan: &Plan, revision: i64) {
        *self.unwanted() = Some(WrittenKey { key: plan.key.clone(), revision });
        match self.delete_unwanted().await {
            Ok(()) => self.retire(plan.grant.id),
            Err(error) => {
                tracing::warn!(key = %plan.subnet, "an unused lease is still there: {error}")
            }
        }
    }

    async fn delete_unwanted(&self) -> Result<(), StoreError> {
        let Some(WrittenKey { key, revision }) = self.unwanted().clone() else { return Ok(()) };
        let compare = vec![txn::is_unchanged(&key, revision)];
        let request = TxnRequest { compare, success: vec![txn::delete(&key)], failure: vec![] };
        let attempted = || format!("give back the lease {}", String::from_utf8_lossy(&key));
        self.client.txn(request).await.map_err(|fault| fault.during(attempted()))?;
        *self.unwanted() = None;
        Ok(())
    }
}
