//! Getting a subnet: read all leases, let `flannel_lease::decide` choose, write the choice only if
//! nobody was quicker, else begin anew.

use std::time::Duration;

use flannel_common::Backoff;
use flannel_lease::{Choice, Claimant, Lease, LeaseAttrs, NetworkConfig, Subnet, decide};
use prost::bytes::Bytes;

use super::keys::{KeyRange, Meaning};
use super::listing::{Entry, Listing};
use super::proto::{Compare, KeyValue, RequestOp, TxnRequest};
use super::registry::{Grant, Registry};
use super::txn;
use crate::{Acquired, Claim, Held, Snapshot, StoreError};

const TRIES: u32 = 10;
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// etcd takes 128 operations per transaction; nobody has that many leases to throw away.
const MAX_DISCARDS: usize = 64;

impl Registry {
    pub(super) async fn acquire(
        &self,
        config: &NetworkConfig,
        claim: &Claim,
    ) -> Result<Acquired, StoreError> {
        let mut attempt =
            Acquiring { registry: self, config, claim, grant: None, since: None, known_by: None };
        let mut backoff = RETRY.tries(self.rng().fork());
        for _ in 0..TRIES {
            if let Some(acquired) = attempt.run().await? {
                return Ok(acquired);
            }
            tokio::time::sleep(backoff.pause()).await;
        }
        if let Some(unused) = attempt.grant {
            self.retire(unused.id);
        }
        Err(StoreError::Contended { tries: TRIES })
    }
}

struct Acquiring<'a> {
    registry: &'a Registry,
    config: &'a NetworkConfig,
    claim: &'a Claim,
    /// Granted once, used by whichever try succeeds. After an error it is left to expire: if the
    /// answer to a write got lost, our key is attached to it.
    grant: Option<Grant>,
    /// The revision of the first listing.
    since: Option<i64>,
    /// The attributes of our last lease; that one may be gone by the second try.
    known_by: Option<LeaseAttrs>,
}

/// What one try is about to write.
struct Plan {
    subnet: Subnet,
    attrs: LeaseAttrs,
    key: Bytes,
    conditions: Vec<Compare>,
    grant: Grant,
    /// When the key we keep was created; `None` for a new one.
    created: Option<i64>,
    discards: Vec<Discard>,
}

/// A lease of ours that the config no longer allows.
struct Discard {
    subnet: Subnet,
    key: Bytes,
    revision: i64,
}

impl Discard {
    fn new(entry: &Entry) -> Self {
        let KeyValue { key, mod_revision, .. } = &entry.kv;
        Self { subnet: entry.subnet, key: key.clone(), revision: *mod_revision }
    }
}

impl Acquiring<'_> {
    /// One try; `None` when somebody else changed what we had read.
    async fn run(&mut self) -> Result<Option<Acquired>, StoreError> {
        let listing = self.registry.list().await?;
        let since = *self.since.get_or_insert(listing.revision());
        let plan = self.plan(&listing).await?;
        let attempted = || format!("write the lease {}", String::from_utf8_lossy(&plan.key));

        let answer = self.registry.client.txn(self.request(&plan, since)).await;
        let answer = answer.map_err(|fault| fault.during(attempted()))?;
        if !answer.succeeded {
            return Ok(None);
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        let mut found = answer.responses.into_iter().map(txn::found);
        let replaced = found.by_ref().take(1 + plan.discards.len()).flatten().collect::<Vec<_>>();
        let newcomers = found.flatten().collect::<Vec<_>>();
        self.retire_leases_of(&replaced, plan.grant);

        if let Some(rival) = self.rival(&plan, plan.created.unwrap_or(revision), &newcomers) {
            tracing::info!(ours = %plan.subnet, theirs = %rival, "another node took an overlapping subnet first");
            self.give_back(&plan, revision).await;
            return Ok(None);
        }
        Ok(Some(self.acquired(listing, &plan, revision)))
    }

    async fn plan(&mut self, listing: &Listing) -> Result<Plan, StoreError> {
        let LeaseAttrs { public_ip, public_ipv6, .. } = (self.claim.announce)(None);
        let claimant = Claimant { public_ip, public_ipv6, previous: self.claim.previous };
        let decision = decide(self.config, &listing.in_use(), &claimant, &mut self.registry.rng())?;
        let discards = decision.discard.iter().filter_map(|subnet| listing.entry(subnet));
        let discards = discards.take(MAX_DISCARDS).map(Discard::new).collect();
        let kept = match decision.choice {
            Choice::Keep(subnet) => listing.entry(&subnet),
            Choice::Take(_) => None,
        };
        let (Choice::Keep(subnet) | Choice::Take(subnet)) = decision.choice;
        // What we were known by: the lease we keep, else one that is thrown away for a new one.
        let before = kept.or_else(|| decision.discard.iter().find_map(|old| listing.entry(old)));
        self.known_by = before.and_then(|entry| entry.attrs.clone()).or(self.known_by.take());
        let attrs = (self.claim.announce)(self.known_by.as_ref());
        match kept {
            Some(entry) => self.plan_to_keep(entry, attrs, discards).await,
            None => self.plan_to_take(subnet, attrs, discards).await,
        }
    }

    /// A key that does not expire is a reservation: it is reused and stays one.
    async fn plan_to_keep(
        &mut self,
        entry: &Entry,
        attrs: LeaseAttrs,
        discards: Vec<Discard>,
    ) -> Result<Plan, StoreError> {
        let key = entry.kv.key.clone();
        let conditions = vec![txn::is_unchanged(&key, entry.kv.mod_revision)];
        let reserved = entry.kv.lease == Grant::NONE.id;
        let grant = if reserved { Grant::NONE } else { self.grant().await? };
        let created = Some(entry.kv.create_revision);
        Ok(Plan { subnet: entry.subnet, attrs, key, conditions, grant, created, discards })
    }

    async fn plan_to_take(
        &mut self,
        subnet: Subnet,
        attrs: LeaseAttrs,
        discards: Vec<Discard>,
    ) -> Result<Plan, StoreError> {
        let keys = &self.registry.keys;
        let key: Bytes = keys.lease(&subnet).into();
        let other_name = keys.go_lease(&subnet).map(Bytes::from);
        let conditions = [Some(&key), other_name.as_ref()];
        let conditions = conditions.into_iter().flatten().map(txn::is_absent).collect();
        let grant = self.grant().await?;
        Ok(Plan { subnet, attrs, key, conditions, grant, created: None, discards })
    }

    async fn grant(&mut self) -> Result<Grant, StoreError> {
        if let Some(grant) = self.grant {
            return Ok(grant);
        }
        let grant = self.registry.grant().await;
        let grant = grant.map_err(|fault| fault.during("get an etcd lease for a subnet"))?;
        self.grant = Some(grant);
        Ok(grant)
    }

    /// If nothing of ours changed: write, throw away what the config no longer allows, and look who
    /// came in since the listing.
    fn request(&self, plan: &Plan, since: i64) -> TxnRequest {
        let unchanged = plan.discards.iter().map(|old| txn::is_unchanged(&old.key, old.revision));
        let compare = plan.conditions.iter().cloned().chain(unchanged).collect();
        let value: Bytes = plan.attrs.to_json().into();
        let mut success: Vec<RequestOp> = vec![txn::put(&plan.key, &value, plan.grant.id)];
        success.extend(plan.discards.iter().map(|old| txn::delete(&old.key)));
        let directories = self.registry.directories().iter().map(|dir| KeyRange::directory(dir));
        success.extend(directories.map(|range| txn::created_since(range, since)));
        TxnRequest { compare, success, failure: vec![] }
    }

    /// A lease that overlaps ours and was there first. Keys guard against equal subnets only; with
    /// two families, or two subnet lengths, different keys can hold the same addresses.
    fn rival(&self, plan: &Plan, created: i64, newcomers: &[KeyValue]) -> Option<Subnet> {
        newcomers.iter().filter(|kv| kv.key != plan.key && kv.create_revision < created).find_map(
            |kv| match self.registry.keys.meaning(&kv.key) {
                Meaning::Lease(subnet) => subnet.overlaps(&plan.subnet).then_some(subnet),
                Meaning::Config | Meaning::Foreign(_) => None,
            },
        )
    }

    /// Best effort: if it fails, the next try finds the key and gives it back, or it expires.
    async fn give_back(&self, plan: &Plan, revision: i64) {
        let compare = vec![txn::is_unchanged(&plan.key, revision)];
        let request =
            TxnRequest { compare, success: vec![txn::delete(&plan.key)], failure: vec![] };
        if let Err(fault) = self.registry.client.txn(request).await {
            tracing::warn!(key = %plan.subnet, reason = fault.reason, "an unused lease is left to expire");
        }
    }

    fn retire_leases_of(&self, replaced: &[KeyValue], grant: Grant) {
        for kv in replaced.iter().filter(|kv| kv.lease != grant.id) {
            self.registry.retire(kv.lease);
        }
    }

    fn acquired(&self, listing: Listing, plan: &Plan, revision: i64) -> Acquired {
        let ours = Lease { subnet: plan.subnet, attrs: plan.attrs.clone() };
        let cursor = listing.revision().unsigned_abs();
        let mut leases = listing.into_leases();
        let replaced = |subnet: &Subnet| {
            *subnet == ours.subnet || plan.discards.iter().any(|old| old.subnet == *subnet)
        };
        leases.retain(|lease| !replaced(&lease.subnet));
        leases.push(ours.clone());
        let held =
            Held { lease: ours, expiry: plan.grant.expiry, version: revision.unsigned_abs() };
        Acquired { held, snapshot: Snapshot { leases, cursor } }
    }
}
