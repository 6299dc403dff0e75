//! Since when leases announce what others announce too, by etcd's history of their keys. The creation of a key says
//! nothing: a lease may be old and announce since yesterday what another has had for a year.

use std::collections::BTreeMap;
use std::time::Duration;

use flannel_backend::LinkIdentity;
use flannel_lease::LeaseAttrs;

use super::fault::Kind;
use super::leases::EtcdLeases;
use super::listing::ListedLease;
use super::proto::KeyValue;
use crate::AnnouncedSince;

/// Longest time that a list waits for the history of its disputes.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(5);
/// Most former values that are read for one list: some thirty for each lease that is not what it was when it was made.
const MAX_HISTORY_READS: usize = 1_000;

impl EtcdLeases {
    /// Finds out since when leases announce what others do too. What etcd has forgotten stays without exact evidence.
    pub(super) async fn date_disputed(&self, entries: &mut [ListedLease]) {
        let disputed = disputed_identities(entries);
        for (entry, _) in &disputed {
            entries[*entry].since = about(entries[*entry].kv.mod_revision);
        }
        let mut found: BTreeMap<usize, Option<AnnouncedSince>> = BTreeMap::new();
        let dating = async {
            let mut reads = MAX_HISTORY_READS;
            for (entry, identity) in &disputed {
                let kv = &entries[*entry].kv;
                let since = self.announced_since(kv, identity, &mut reads).await;
                // One number cannot stand for two announcements of different age.
                let both = |other: &mut Option<AnnouncedSince>| {
                    if *other != since {
                        *other = about(kv.mod_revision);
                    }
                };
                found.entry(*entry).and_modify(both).or_insert(since);
            }
        };
        if tokio::time::timeout(HISTORY_TIMEOUT, dating).await.is_err() {
            tracing::warn!(
                "etcd takes longer than {HISTORY_TIMEOUT:.0?} to tell since when leases announce what others announce too"
            );
        }
        for (entry, since) in found {
            entries[entry].since = since;
        }
    }

    /// The revision at which a key came to announce `identity`, by halving what is between its creation and now.
    async fn announced_since(
        &self,
        now: &KeyValue,
        identity: &LinkIdentity,
        reads: &mut usize,
    ) -> Option<AnnouncedSince> {
        // It announces it at `since` and, unless that is forgotten, does not at `before`.
        let (mut before, mut since) = (now.create_revision - 1, now.mod_revision);
        let (mut next, mut is_forgotten) = (now.create_revision, false);
        while since - before > 1 {
            let Some(left) = reads.checked_sub(1) else { return about(since) };
            *reads = left;
            match self.client.get(now.key.clone(), next).await {
                Ok(Some(kv)) if announces(&kv, identity) => since = kv.mod_revision,
                Ok(_) => (before, is_forgotten) = (next, false),
                Err(fault) if fault.kind == Kind::Outdated => (before, is_forgotten) = (next, true),
                Err(_) => return about(since),
            }
            next = before + (since - before) / 2;
        }
        let is_exact = !is_forgotten;
        AnnouncedSince::read(since.unsigned_abs(), is_exact)
    }
}

fn about(revision: i64) -> Option<AnnouncedSince> {
    AnnouncedSince::about(revision.unsigned_abs())
}

fn announces(kv: &KeyValue, identity: &LinkIdentity) -> bool {
    let attrs = LeaseAttrs::from_json(&kv.value);
    attrs.is_ok_and(|attrs| flannel_backend::link_identities(&attrs).contains(identity))
}

/// Entries that announce what another one announces too, each with what that is.
fn disputed_identities(entries: &[ListedLease]) -> Vec<(usize, LinkIdentity)> {
    let mut claims: Vec<(LinkIdentity, usize)> = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let identities = entry.attrs.as_ref().map(flannel_backend::link_identities);
        claims.extend(identities.into_iter().flatten().map(|identity| (identity, index)));
    }
    claims.sort_unstable();
    let groups = claims.chunk_by(|(one, _), (other, _)| one == other);
    let disputed = groups.filter(|group| group.len() > 1).flatten();
    disputed.map(|(identity, entry)| (*entry, *identity)).collect()
}
