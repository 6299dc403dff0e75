//! All of flannel's keys at one revision, read with one request however many leases there are.

use flannel_lease::{Lease, LeaseAttrs, Subnet, Version};
use prost::bytes::Bytes;

use super::fault::{Fault, Kind};
use super::keys::{KeyRange, Meaning};
use super::leases::{EtcdLeases, Grant};
use super::proto::{KeyValue, RangeRequest, ResponseHeader, TxnResponse};
use super::timing::{LIST_TIMEOUT_MAX, REQUEST_TIMEOUT};
use super::txn;
use crate::{Cursor, StoreError, StoredLease};

/// So many lookups of older values are made for one listing, at most.
const MAX_LOOKUPS: usize = 16;

#[derive(Debug)]
pub(super) struct Listing {
    pub(super) header: ResponseHeader,
    pub(super) config: Option<Bytes>,
    pub(super) entries: Vec<ListedLease>,
}

/// One lease as it is stored.
#[derive(Debug)]
pub(super) struct ListedLease {
    pub(super) subnet: Subnet,
    /// `None` when the value cannot be read: the subnet is in use all the same.
    pub(super) attrs: Option<LeaseAttrs>,
    pub(super) kv: KeyValue,
}

impl EtcdLeases {
    pub(super) async fn list(&self) -> Result<Listing, StoreError> {
        let attempted = || format!("list the leases under {}", self.keys.subnets());
        let directories = self.directories();
        let mut answer = self.read_all(directories).await;
        // A role made for the Go flannel may not read a directory that one does not know.
        if let ([known, _], Err(fault)) = (directories, &answer)
            && fault.kind == Kind::Denied
        {
            answer = self.read_all(std::slice::from_ref(known)).await;
            if answer.is_ok() {
                self.leave_out_v6();
            }
        }
        let answer = answer.map_err(|fault| fault.during(attempted()))?;

        let mut found = answer.responses.into_iter().map(txn::found);
        let config = found.next().unwrap_or_default().into_iter().next().map(|kv| kv.value);
        let entries = found.flatten().filter_map(|kv| self.read_entry(kv)).collect();
        let header = answer.header.unwrap_or_default();
        let mut listing = Listing { header, config, entries };
        self.recover(&mut listing).await;
        Ok(listing)
    }

    async fn read_all(&self, directories: &[String]) -> Result<TxnResponse, Fault> {
        let directories = directories.iter().map(|dir| txn::get(KeyRange::directory(dir)));
        let config = txn::get(KeyRange::single(self.keys.config()));
        let request = txn::all(std::iter::once(config).chain(directories).collect());

        let time = *self.list_timeout();
        let answer = self.client.txn_within(time, request).await;
        let too_slow = answer.as_ref().is_err_and(|fault| fault.kind == Kind::Unavailable);
        *self.list_timeout() =
            if too_slow { (time * 2).min(LIST_TIMEOUT_MAX) } else { REQUEST_TIMEOUT };
        answer
    }

    /// `None` for keys that are not leases.
    fn read_entry(&self, kv: KeyValue) -> Option<ListedLease> {
        match self.keys.meaning(&kv.key) {
            Meaning::Lease(subnet) => {
                let attrs = LeaseAttrs::from_json(&kv.value).ok();
                if attrs.is_some() {
                    self.unreadable().forget(&kv.key);
                }
                Some(ListedLease { subnet, attrs, kv })
            }
            Meaning::Config => None,
            Meaning::Foreign(why) => {
                self.unreadable().note(&kv.key, why, None);
                None
            }
        }
    }

    /// Fills in the last good attributes of leases whose value cannot be read.
    async fn recover(&self, listing: &mut Listing) {
        let mut lookups = 0;
        for entry in listing.entries.iter_mut().filter(|entry| entry.attrs.is_none()) {
            let key = entry.kv.key.clone();
            if !self.unreadable().knows(&key) && lookups < MAX_LOOKUPS {
                lookups += 1;
                self.note_bad_value(&entry.kv).await;
            }
            entry.attrs = self.unreadable().last_good(&key).cloned();
        }
    }

    /// Tells of a bad value once, after looking up what it replaced: etcd keeps that until it is
    /// compacted.
    pub(super) async fn note_bad_value(&self, kv: &KeyValue) {
        let Err(why) = LeaseAttrs::from_json(&kv.value) else { return };
        if self.unreadable().knows(&kv.key) {
            return;
        }
        let before = RangeRequest {
            key: kv.key.clone(),
            revision: kv.mod_revision - 1,
            ..RangeRequest::default()
        };
        let before = self.client.range(before).await.ok();
        let before = before.and_then(|answer| answer.kvs.into_iter().next());
        let last_good = before.and_then(|kv| LeaseAttrs::from_json(&kv.value).ok());
        self.unreadable().note(&kv.key, why, last_good);
    }
}

impl Listing {
    pub(super) fn revision(&self) -> i64 {
        self.header.revision
    }

    /// Where watching goes on from.
    pub(super) fn cursor(&self) -> Cursor {
        Cursor::new(self.revision().to_string())
    }

    /// The leases whose attributes are known.
    pub(super) fn into_leases(self) -> Vec<StoredLease> {
        self.entries.into_iter().filter_map(ListedLease::stored).collect()
    }
}

impl ListedLease {
    /// A key that does not expire is a reservation.
    pub(super) fn is_reserved(&self) -> bool {
        self.kv.lease == Grant::NONE.id
    }

    pub(super) fn version(&self) -> Version {
        self.kv.version_of_lease()
    }

    pub(super) fn stored(self) -> Option<StoredLease> {
        let (version, reserved) = (self.version(), self.is_reserved());
        Some(StoredLease {
            lease: Lease { subnet: self.subnet, attrs: self.attrs? },
            version,
            reserved,
        })
    }
}

impl KeyValue {
    /// What the key's modification revision is to those who need not know of such.
    pub(super) fn version_of_lease(&self) -> Version {
        Version::new(self.mod_revision.unsigned_abs())
    }
}
