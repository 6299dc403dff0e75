//! What operators ask of nodes, in etcd: a key for each request, attached to an etcd lease that whoever placed it
//! keeps alive, and a key for each answer, attached to the same one. So all of it goes together, by itself if need be.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use flannel_common::Backoff;
use prost::bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;

use super::fault::{Fault, Kind};
use super::keys::KeyRange;
use super::leases::EtcdLeases;
use super::proto::{Event, EventKind, KeyValue, RangeRequest, WatchCreateRequest};
use super::timing::WATCH_SILENCE;
use super::txn;
use crate::{
    LIFE, NodeAnswer, NodeRequest, REQUESTS_AT_ONCE, Refusal, RequestId, Requests, StoreError,
};

/// Requests that are remembered, so that the next one is heard when another has ended.
const MOST_HEARD: usize = 4 * REQUESTS_AT_ONCE;

/// Nobody may read what is asked, perhaps; it is not looked at often then.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));

impl EtcdLeases {
    pub(super) async fn place(&self, request: &NodeRequest) -> Result<(), StoreError> {
        let attempted = format!("place the request {}", request.id);
        let during = |fault: Fault| fault.during(attempted.clone());
        let key = Bytes::from(self.keys.request(&request.id));
        let value = Bytes::from(request.to_json());
        let standing = self.standing(&request.id, &attempted).await?;
        if standing.is_none() && self.count_standing().await.map_err(during)? >= REQUESTS_AT_ONCE {
            return Err(StoreError::rejected(&attempted, Refusal::too_many_requests()));
        }
        let lease = match &standing {
            Some(kv) if self.client.lease_keep_alive(kv.lease).await.map_err(during)? => kv.lease,
            _ => {
                let granted = self.client.lease_grant(LIFE.as_secs().cast_signed()).await;
                granted.map_err(during)?.id
            }
        };
        if standing.is_some_and(|kv| kv.value == value && kv.lease == lease) {
            return Ok(());
        }
        let put = txn::all(vec![txn::put(&key, &value, lease)]);
        self.client.txn(put).await.map_err(during).map(drop)
    }

    pub(super) async fn withdraw(&self, id: &RequestId) -> Result<(), StoreError> {
        let attempted = format!("withdraw the request {id}");
        match self.standing(id, &attempted).await? {
            Some(kv) => {
                let revoked = self.client.lease_revoke(kv.lease).await;
                match revoked {
                    // It has ended by itself in this moment.
                    Err(fault) if fault.reason.contains("lease not found") => Ok(()),
                    other => other.map_err(|fault| fault.during(attempted)),
                }
            }
            None => Ok(()),
        }
    }

    pub(super) async fn answers(&self, id: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        let range = KeyRange::directory(&self.keys.answers(id));
        let request =
            RangeRequest { key: range.start, range_end: range.end, ..RangeRequest::default() };
        let found = self.client.range(request).await;
        let found = found.map_err(|fault| fault.during(format!("read the answers to {id}")))?;
        let read = |kv: &KeyValue| NodeAnswer::read(std::str::from_utf8(&kv.value).ok()?).ok();
        Ok(found.kvs.iter().filter_map(read).collect())
    }

    pub(super) async fn answer(
        &self,
        id: &RequestId,
        answer: &NodeAnswer,
    ) -> Result<(), StoreError> {
        let attempted = format!("answer the request {id}");
        let lost = || StoreError::Lost { key: self.keys.request(id) };
        let standing = self.standing(id, &attempted).await?.ok_or_else(lost)?;
        let key = Bytes::from(format!("{}{}", self.keys.answers(id), answer.node));
        let put = txn::put(&key, &Bytes::from(answer.to_json()), standing.lease);
        match self.client.txn(txn::all(vec![put])).await {
            Ok(_) => Ok(()),
            // It has ended in this moment.
            Err(fault) if fault.reason.contains("lease not found") => Err(lost()),
            Err(fault) => Err(fault.during(attempted)),
        }
    }

    /// How many requests stand, as far as it matters.
    async fn count_standing(&self) -> Result<usize, Fault> {
        let range = KeyRange::directory(self.keys.requests());
        let request = RangeRequest {
            key: range.start,
            range_end: range.end,
            limit: REQUESTS_AT_ONCE as i64,
            keys_only: true,
            ..RangeRequest::default()
        };
        Ok(self.client.range(request).await?.kvs.len())
    }

    /// The request as it stands. One without an etcd lease was written by hand, and is nobody's to end.
    async fn standing(
        &self,
        id: &RequestId,
        attempted: &str,
    ) -> Result<Option<KeyValue>, StoreError> {
        let key = Bytes::from(self.keys.request(id));
        let found = self.client.range(RangeRequest { key, ..RangeRequest::default() }).await;
        let found = found.map_err(|fault| fault.during(attempted))?;
        Ok(found.kvs.into_iter().next().filter(|kv| kv.lease != 0))
    }
}

/// Tells of what is asked until nobody listens.
pub(super) fn hear(leases: Arc<EtcdLeases>) -> watch::Receiver<Requests> {
    let (told, receiver) = watch::channel(Requests::default());
    let listener = Listener { leases, standing: BTreeMap::new(), told };
    tokio::spawn(listener.run_until_unwanted());
    receiver
}

struct Listener {
    leases: Arc<EtcdLeases>,
    standing: BTreeMap<Bytes, NodeRequest>,
    told: watch::Sender<Requests>,
}

impl Listener {
    async fn run_until_unwanted(mut self) {
        let told = self.told.clone();
        tokio::select! {
            _ = self.run() => {}
            () = told.closed() => {}
        }
    }

    async fn run(&mut self) -> Infallible {
        let mut tries = RETRY.tries(self.leases.rng().fork());
        loop {
            let mut opened = false;
            let Err(fault) = self.follow(&mut opened).await;
            if opened {
                tries.reset();
            }
            tracing::debug!(reason = fault.reason, "what operators ask is not heard for a moment");
            tokio::time::sleep(tries.pause()).await;
        }
    }

    /// All that stands, and then what becomes of it, until the stream ends.
    async fn follow(&mut self, opened: &mut bool) -> Result<Infallible, Fault> {
        let range = KeyRange::directory(self.leases.keys.requests());
        let (key, range_end) = (range.start, range.end);
        let all = RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit: MOST_HEARD as i64,
            ..RangeRequest::default()
        };
        let listed = self.leases.client.range(all).await?;
        self.standing.clear();
        listed.kvs.iter().for_each(|kv| self.take(kv));
        self.tell();
        let start_revision = listed.header.unwrap_or_default().revision + 1;
        let create = WatchCreateRequest { key, range_end, start_revision, progress_notify: true };
        let mut stream = self.leases.client.watch(vec![create]).await?;
        *opened = true;
        let ended = |reason: &str, endpoint: &str| Fault::new(Kind::Refused, endpoint, reason);
        loop {
            let next = tokio::select! {
                next = timeout(WATCH_SILENCE, stream.next()) => next,
                () = self.leases.client.given_up() => {
                    return Err(ended("the node has moved", stream.endpoint()));
                }
            };
            let Ok(response) = next else {
                return Err(ended("silent for too long", stream.endpoint()));
            };
            let response = response?;
            if response.canceled {
                // Not allowed to watch: that is not tried every moment.
                *opened = response.compact_revision > 0;
                return Err(ended(&response.cancel_reason, stream.endpoint()));
            }
            if response.events.is_empty() {
                continue;
            }
            response.events.into_iter().for_each(|event| self.on(event));
            self.tell();
        }
    }

    fn on(&mut self, event: Event) {
        let Some(kv) = event.kv else { return };
        match event.kind == EventKind::Delete as i32 {
            true => _ = self.standing.remove(&kv.key),
            false => self.take(&kv),
        }
    }

    fn take(&mut self, kv: &KeyValue) {
        // Whoever may write to etcd may write any number of them.
        if self.standing.len() >= MOST_HEARD && !self.standing.contains_key(&kv.key) {
            let key = String::from_utf8_lossy(&kv.key);
            tracing::debug!(%key, "a request is left alone: more stand than operators can place");
            return;
        }
        let text = std::str::from_utf8(&kv.value).unwrap_or_default();
        match NodeRequest::read(text) {
            Ok(request) => _ = self.standing.insert(kv.key.clone(), request),
            Err(error) => {
                let key = String::from_utf8_lossy(&kv.key);
                tracing::debug!(%key, %error, "a request that cannot be read is left alone");
            }
        }
    }

    fn tell(&self) {
        let now: Requests = self.standing.values().take(REQUESTS_AT_ONCE).cloned().collect();
        self.told.send_if_modified(|told| {
            let changed = *told != now;
            *told = now;
            changed
        });
    }
}
