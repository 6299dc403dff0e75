//! State that all operations on etcd share: the client, the key names, and what was learnt from answers.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use flannel_common::Task;
use flannel_lease::{Expiry, LEASE_TTL};
use parking_lot::Mutex;
use prost::bytes::Bytes;

use super::client::Client;
use super::fault::Fault;
use super::keys::{KeyRange, Keys};
use super::proto::{Compare, KeyValue};
use super::timing::REQUEST_TIMEOUT;
use super::unreadable::Unreadable;
use super::{EtcdOptions, txn};
use crate::{Contact, StoreError};

#[derive(Debug)]
pub(super) struct EtcdLeases {
    pub(super) client: Client,
    pub(super) keys: Keys,
    v6_left_out: AtomicBool,
    config_read_at: AtomicI64,
    pub(super) list_timeout: Mutex<Duration>,
    pub(super) unreadable: Mutex<Unreadable>,
    /// A key that was written and is not wanted, and could not be deleted so far.
    pub(super) unwanted: Mutex<Option<LeaseKey>>,
    pub(super) rng: Mutex<fastrand::Rng>,
    pub(super) contact: Contact,
}

/// Key of a lease, as it was when it was last read or written.
#[derive(Clone, Debug)]
pub(super) struct LeaseKey {
    pub(super) key: Bytes,
    pub(super) revision: i64,
    pub(super) reserved: bool,
}

impl LeaseKey {
    pub(super) fn of(kv: &KeyValue) -> Self {
        let reserved = kv.lease == Grant::NONE.id;
        Self { key: kv.key.clone(), revision: kv.mod_revision, reserved }
    }

    pub(super) fn is_unchanged(&self) -> Compare {
        txn::is_unchanged(&self.key, self.revision)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) id: i64,
    pub(super) expiry: Expiry,
}

impl Grant {
    /// No etcd lease at all: the key stays until somebody deletes it.
    pub(super) const NONE: Self = Self { id: 0, expiry: Expiry::Never };
}

impl EtcdLeases {
    pub(super) fn new(options: &EtcdOptions, seed: u64) -> Result<Self, StoreError> {
        let mut rng = fastrand::Rng::with_seed(seed);
        Ok(Self {
            client: Client::new(options, rng.fork())?,
            keys: Keys::new(&options.prefix),
            v6_left_out: AtomicBool::new(false),
            config_read_at: AtomicI64::new(i64::MAX),
            list_timeout: Mutex::new(REQUEST_TIMEOUT),
            unreadable: Mutex::default(),
            unwanted: Mutex::default(),
            rng: Mutex::new(rng),
            contact: Contact::default(),
        })
    }

    pub(super) async fn config(&self) -> Result<Option<String>, StoreError> {
        let key = &self.keys.config;
        let answer = self.client.range(KeyRange::single(key).into()).await;
        let answer =
            answer.map_err(|fault| fault.during(format!("read the network config {key}")))?;
        if let Some(header) = answer.header {
            self.config_read_at.store(header.revision, Ordering::Relaxed);
        }
        let Some(kv) = answer.kvs.into_iter().next() else { return Ok(None) };
        let text = String::from_utf8(kv.value.into()).map_err(|_| StoreError::Corrupt {
            key: key.to_owned(),
            reason: "it is not UTF-8 text".to_owned(),
        })?;
        Ok(Some(text))
    }

    /// The revision at which the config was last handed out by [`Self::config`].
    pub(super) fn config_read_at(&self) -> i64 {
        self.config_read_at.load(Ordering::Relaxed)
    }

    /// A full etcd lease. It counts from before the request, so that we never believe in it longer than etcd does.
    pub(super) async fn grant(&self) -> Result<Grant, Fault> {
        let before = SystemTime::now();
        let answer = self.client.lease_grant(LEASE_TTL.as_secs() as i64).await?;
        let ttl = Duration::from_secs(answer.ttl.max(0).unsigned_abs());
        Ok(Grant { id: answer.id, expiry: Expiry::At(before + ttl) })
    }

    /// Revokes an etcd lease without keys, in the background: otherwise it expires within a day. Revoking deletes keys.
    pub(super) fn retire(&self, id: i64) {
        if id == Grant::NONE.id {
            return;
        }
        let client = self.client.clone();
        let revoke = async move {
            let unused =
                client.lease_time_to_live(id).await.is_ok_and(|l| l.ttl > 0 && l.keys.is_empty());
            if unused && let Err(fault) = client.lease_revoke(id).await {
                tracing::debug!(
                    id,
                    reason = fault.reason,
                    "an unused etcd lease is left to expire"
                );
            }
        };
        Task::spawn("revocation of an etcd lease", revoke).detach();
    }

    pub(super) fn directories(&self) -> &[String] {
        let all = &self.keys.directories;
        if self.v6_left_out.load(Ordering::Relaxed) { &all[..1] } else { all }
    }

    pub(super) fn leave_out_v6(&self) {
        self.v6_left_out.store(true, Ordering::Relaxed);
        tracing::warn!(
            directory = self.keys.v6_subnets(),
            "etcd does not let us read this directory: leases of an IPv6-only network stay unseen"
        );
    }
}
