//! Requests of operators in etcd: a key for each request, attached to an etcd lease that its operator keeps alive, and
//! a key for each answer, attached to the same one, so that all of it expires together.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flannel_common::{Backoff, send_if_changed, spawn_publisher};
use prost::bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;

use super::fault::{Fault, Kind};
use super::keys::KeyRange;
use super::leases::EtcdLeases;
use super::proto::{Event, KeyValue, RangeRequest, WatchCreateRequest};
use super::timing::WATCH_SILENCE;
use super::{EtcdStore, txn};
use crate::{
    MAX_STANDING_REQUESTS, NodeAnswer, NodeRequest, REQUEST_LIFETIME, Refusal, RequestChange,
    RequestId, RequestStore, Requests, StoreError,
};

/// Most requests that are remembered, so that the next one is known when another has ended.
const MAX_REMEMBERED: usize = 4 * MAX_STANDING_REQUESTS;

/// Pauses between watches. They become long, since etcd may not let a node read requests at all.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));

#[async_trait]
impl RequestStore for EtcdStore {
    fn follow(&self) -> watch::Receiver<Requests> {
        let leases = self.leases.clone();
        let publish = |requests| async move {
            let mut follower = Follower { leases, standing: BTreeMap::new(), requests };
            match follower.run().await {}
        };
        spawn_publisher("watch of requests in etcd", Requests::default(), publish)
    }

    async fn write(&self, change: RequestChange<'_>) -> Result<(), StoreError> {
        let during = |fault: Fault| fault.during(change.to_string());
        let (leases, key) = (&self.leases, self.leases.keys.request(change.id()));
        let standing = leases.standing(&key).await.map_err(during)?;
        let written = match (change, standing) {
            (RequestChange::Place(request), standing) => {
                if standing.is_none() && leases.has_most_requests().await.map_err(during)? {
                    let refusal = Refusal::too_many_requests();
                    return Err(StoreError::rejected(&change.to_string(), refusal));
                }
                leases.place(key.clone(), request, standing).await
            }
            (RequestChange::Withdraw(_), Some(kv)) => leases.client.lease_revoke(kv.lease).await,
            (RequestChange::Withdraw(_), None) => Ok(()),
            (RequestChange::Answer(id, answer), Some(kv)) => {
                let key = Bytes::from(format!("{}{}", leases.keys.answers(id), answer.node));
                let put = txn::put(&key, &Bytes::from(answer.to_json()), kv.lease);
                leases.client.txn(txn::all(vec![put])).await.map(drop)
            }
            (RequestChange::Answer(..), None) => return Err(StoreError::Lost { key }),
        };
        // The request may have expired since it was read.
        let expired = |fault: &Fault| fault.reason.contains("lease not found");
        match (written, change) {
            (Err(fault), RequestChange::Withdraw(_)) if expired(&fault) => Ok(()),
            (Err(fault), RequestChange::Answer(..)) if expired(&fault) => {
                Err(StoreError::Lost { key })
            }
            (written, _) => written.map_err(during),
        }
    }

    async fn answers(&self, id: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        let range = KeyRange::directory(&self.leases.keys.answers(id));
        let found = self.leases.client.range(range.into()).await;
        let found = found.map_err(|fault| fault.during(format!("read the answers to {id}")))?;
        let read = |kv: &KeyValue| NodeAnswer::read(std::str::from_utf8(&kv.value).ok()?).ok();
        Ok(found.kvs.iter().filter_map(read).collect())
    }
}

impl EtcdLeases {
    /// Writes a request and keeps its etcd lease alive, or attaches it to a new one.
    async fn place(
        &self,
        key: String,
        request: &NodeRequest,
        standing: Option<KeyValue>,
    ) -> Result<(), Fault> {
        let value = Bytes::from(request.to_json());
        let lease = match &standing {
            Some(kv) if self.client.lease_keep_alive(kv.lease).await? => kv.lease,
            _ => self.client.lease_grant(REQUEST_LIFETIME.as_secs().cast_signed()).await?.id,
        };
        if standing.is_some_and(|kv| kv.value == value && kv.lease == lease) {
            return Ok(());
        }
        let put = txn::put(&Bytes::from(key), &value, lease);
        self.client.txn(txn::all(vec![put])).await.map(drop)
    }

    async fn has_most_requests(&self) -> Result<bool, Fault> {
        let all = RangeRequest::from(KeyRange::directory(&self.keys.requests));
        let request = RangeRequest { limit: MAX_STANDING_REQUESTS as i64, keys_only: true, ..all };
        Ok(self.client.range(request).await?.kvs.len() >= MAX_STANDING_REQUESTS)
    }

    /// The request of this key. One without an etcd lease was written by hand, and is nobody's to end.
    async fn standing(&self, key: &str) -> Result<Option<KeyValue>, Fault> {
        let found = self.client.get(Bytes::from(key.to_owned()), 0).await?;
        Ok(found.filter(|kv| kv.lease != 0))
    }
}

/// Publishes the requests that stand until nobody listens.
struct Follower {
    leases: Arc<EtcdLeases>,
    standing: BTreeMap<Bytes, NodeRequest>,
    requests: watch::Sender<Requests>,
}

impl Follower {
    async fn run(&mut self) -> Infallible {
        let mut tries = RETRY.tries(self.leases.rng.lock().fork());
        loop {
            let mut opened = false;
            let Err(fault) = self.follow(&mut opened).await;
            if opened {
                tries.reset();
            }
            tracing::debug!(
                reason = fault.reason,
                "the watch of requests ended: listing them again"
            );
            tokio::time::sleep(tries.pause()).await;
        }
    }

    /// Lists the requests and watches them until the stream ends.
    async fn follow(&mut self, opened: &mut bool) -> Result<Infallible, Fault> {
        let range = KeyRange::directory(&self.leases.keys.requests);
        let all = RangeRequest::from(range.clone());
        let all = RangeRequest { limit: MAX_REMEMBERED as i64, ..all };
        let listed = self.leases.client.range(all).await?;
        self.standing.clear();
        listed.kvs.iter().for_each(|kv| self.insert(kv));
        self.publish();
        let start_revision = listed.header.unwrap_or_default().revision + 1;
        let (key, range_end) = (range.start, range.end);
        let create = WatchCreateRequest { key, range_end, start_revision, progress_notify: true };
        let mut stream = self.leases.client.watch(vec![create]).await?;
        *opened = true;
        let ended = |reason: &str, endpoint: &str| Fault::new(Kind::Refused, endpoint, reason);
        loop {
            let next = tokio::select! {
                next = timeout(WATCH_SILENCE, stream.next()) => next,
                () = self.leases.client.wait_for_reconnect() => {
                    return Err(ended("the node has moved", stream.endpoint()));
                }
            };
            let Ok(response) = next else {
                return Err(ended("the watch was silent for too long", stream.endpoint()));
            };
            let response = response?;
            if response.canceled {
                // Without permission to watch, the next try waits longer.
                *opened = response.compact_revision > 0;
                return Err(ended(&response.cancel_reason, stream.endpoint()));
            }
            if response.events.is_empty() {
                continue;
            }
            response.events.into_iter().for_each(|event| self.apply(event));
            self.publish();
        }
    }

    fn apply(&mut self, event: Event) {
        let is_deletion = event.is_deletion();
        let Some(kv) = event.kv else { return };
        match is_deletion {
            true => _ = self.standing.remove(&kv.key),
            false => self.insert(&kv),
        }
    }

    fn insert(&mut self, kv: &KeyValue) {
        // Who may write to etcd can write any number of them.
        if self.standing.len() >= MAX_REMEMBERED && !self.standing.contains_key(&kv.key) {
            let key = String::from_utf8_lossy(&kv.key);
            tracing::debug!(%key, "ignoring a request: too many stand");
            return;
        }
        let text = std::str::from_utf8(&kv.value).unwrap_or_default();
        match NodeRequest::read(text) {
            Ok(request) => _ = self.standing.insert(kv.key.clone(), request),
            Err(error) => {
                let key = String::from_utf8_lossy(&kv.key);
                tracing::debug!(%key, %error, "ignoring a request that cannot be read");
            }
        }
    }

    fn publish(&self) {
        let now = self.standing.values().take(MAX_STANDING_REQUESTS).cloned().collect();
        send_if_changed(&self.requests, now);
    }
}
