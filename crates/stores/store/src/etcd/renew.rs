//! Keeping and giving back our lease. Every write compares first: a key that another node has taken stays.

use flannel_lease::{Expiry, Lease, LeaseAttrs, Version};
use prost::bytes::Bytes;

use super::fault::Fault;
use super::keys::KeyRange;
use super::leases::{EtcdLeases, Grant, LeaseKey};
use super::proto::{KeyValue, RequestOp, TxnRequest};
use super::txn;
use crate::{Held, StoreError};

/// Our key may change once or twice, by a write whose answer got lost or a reservation, but not for ever.
const MAX_TRIES: u32 = 3;

enum WriteOutcome {
    Done {
        revision: i64,
        replaced: Vec<KeyValue>,
    },
    /// The key is not as we believed. This is what is there, under each name the lease can have.
    Changed(Vec<KeyValue>),
}

impl EtcdLeases {
    pub(super) async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        let lease = Lease { subnet: held.lease.subnet, attrs: attrs.clone() };
        let failed = |fault: Fault| {
            fault.during(format!("renew the lease {}", self.keys.lease(&lease.subnet)))
        };
        let ours = [held.lease.attrs.to_json(), attrs.to_json()].map(Bytes::from);
        let [_, value] = &ours;

        let mut known = self.held_key(held);
        let mut fresh = None;
        for _ in 0..MAX_TRIES {
            let grant = match fresh {
                _ if known.reserved => Grant::NONE,
                Some(grant) => grant,
                None => *fresh.insert(self.grant().await.map_err(failed)?),
            };
            let put = txn::put(&known.key, value, grant.id);
            match self.write(held, &known, put).await.map_err(failed)? {
                WriteOutcome::Done { revision, replaced } => {
                    let replaced = replaced.iter().filter(|old| old.lease != grant.id);
                    replaced.for_each(|old| self.retire(old.lease));
                    let version = Version::new(revision.unsigned_abs());
                    return Ok(Held { lease, expiry: grant.expiry, version });
                }
                WriteOutcome::Changed(found) => match self.still_ours(held, &known, &ours, found) {
                    Ok(newer) => known = newer,
                    Err(error) => {
                        self.retire(fresh.map_or(0, |grant| grant.id));
                        return Err(error);
                    }
                },
            }
        }
        Err(StoreError::Contended { tries: MAX_TRIES })
    }

    pub(super) async fn release(&self, held: &Held) -> Result<(), StoreError> {
        let failed = |fault: Fault| {
            fault.during(format!("release the lease {}", self.keys.lease(&held.lease.subnet)))
        };
        let ours = [held.lease.attrs.to_json().into()];

        let mut known = self.held_key(held);
        for _ in 0..MAX_TRIES {
            if known.reserved {
                return Ok(());
            }
            match self.write(held, &known, txn::delete(&known.key)).await.map_err(failed)? {
                WriteOutcome::Done { replaced, .. } => {
                    replaced.iter().for_each(|old| self.retire(old.lease));
                    return Ok(());
                }
                WriteOutcome::Changed(found) => match self.still_ours(held, &known, &ours, found) {
                    Ok(newer) => known = newer,
                    // Gone, or another node's by now: no longer ours to give back.
                    Err(_) => return Ok(()),
                },
            }
        }
        Err(StoreError::Contended { tries: MAX_TRIES })
    }

    fn held_key(&self, held: &Held) -> LeaseKey {
        LeaseKey {
            key: self.keys.lease(&held.lease.subnet).into(),
            revision: held.version.number().cast_signed(),
            reserved: held.expiry == Expiry::Never,
        }
    }

    async fn write(
        &self,
        held: &Held,
        known: &LeaseKey,
        operation: RequestOp,
    ) -> Result<WriteOutcome, Fault> {
        let names = self.keys.names(&held.lease.subnet);
        let look = names.map(|name| txn::get(KeyRange::single(&name)));
        let request = TxnRequest {
            compare: vec![known.is_unchanged()],
            success: vec![operation],
            failure: look.collect(),
        };
        let answer = self.client.txn(request).await?;
        let found = answer.responses.into_iter().flat_map(txn::found).collect();
        let revision = answer.header.map_or(0, |header| header.revision);
        Ok(if answer.succeeded {
            WriteOutcome::Done { revision, replaced: found }
        } else {
            WriteOutcome::Changed(found)
        })
    }

    /// The present key, if it is ours: a write whose answer got lost has left one of the values `ours`.
    fn still_ours(
        &self,
        held: &Held,
        known: &LeaseKey,
        ours: &[Bytes],
        found: Vec<KeyValue>,
    ) -> Result<LeaseKey, StoreError> {
        let is_ours =
            |kv: &&KeyValue| kv.mod_revision == known.revision || ours.contains(&kv.value);
        if let Some(kv) = found.iter().find(is_ours) {
            return Ok(LeaseKey::of(kv));
        }
        let subnet = held.lease.subnet;
        let Some(kv) = found.into_iter().next() else {
            return Err(StoreError::Lost { key: self.keys.lease(&subnet) });
        };
        let attrs = LeaseAttrs::from_json(&kv.value).unwrap_or_default();
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        Err(StoreError::Taken { key, by: Box::new(Lease { subnet, attrs }) })
    }
}
