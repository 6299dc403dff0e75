//! The store of a node that serves its own leases: no network between them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flannel_common::spawn_sender;
use flannel_lease::{
    Claimant, Expiry, Lease, LeaseAttrs, NetworkConfig, NetworkName, Subnet, Version,
};
use flannel_store::{
    AcquireAttempt, Claim, Cursor, Held, KeptLease, LogPosition, Millis, NodeStore, Recalled,
    Refusal, RequestStore, Snapshot, Store, StoreError, StoreEvent,
};
use tokio::sync::mpsc;

use super::{AskError, Embedded, MemoryRequests};
use crate::lease_state::{Reply, Request, Who};
use crate::watch_log::{Event, News, WatchLog};

const EVENT_QUEUE: usize = 1_024;

#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    pub(crate) embedded: Embedded,
    pub(crate) network: NetworkName,
    pub(crate) requests: MemoryRequests,
}

impl EmbeddedStore {
    pub fn new(embedded: Embedded, network: NetworkName) -> Self {
        Self { requests: embedded.requests.of(&network), embedded, network }
    }

    fn watch_log(&self) -> Arc<WatchLog> {
        self.embedded.watch_logs.get_or_create(&self.network)
    }

    /// Carries out a request of which a lease comes.
    async fn ask_for_lease(&self, attempted: &str, request: Request) -> Result<Held, StoreError> {
        let answer = self.embedded.ask(&self.network, request).await;
        match answer.map_err(|error| refused(attempted, error))? {
            Reply::Lease(subnet, entry) => Ok(held(subnet, &entry, self.embedded.clock.now())),
            Reply::Done => Err(StoreError::Corrupt {
                key: self.network.to_string(),
                reason: format!("to {attempted} gave no lease"),
            }),
        }
    }
}

const ENDPOINT: &str = "the lease store of this process";

fn refused(attempted: &str, error: AskError) -> StoreError {
    let (attempted, endpoint) = (attempted.to_owned(), ENDPOINT.to_owned());
    match error {
        AskError::Refused(Refusal::Gone(subnet)) => StoreError::Lost { key: subnet.to_string() },
        AskError::Refused(Refusal::Taken(subnet, entry)) => {
            let by = Box::new(Lease { subnet, attrs: entry.attrs });
            StoreError::Taken { key: subnet.to_string(), by }
        }
        AskError::Refused(Refusal::OutOfSubnets(error)) => StoreError::OutOfSubnets(error),
        AskError::Refused(other) => {
            StoreError::Refused { attempted, endpoint, reason: other.to_string() }
        }
        other => StoreError::Unavailable { attempted, endpoint, reason: other.to_string() },
    }
}

/// The lease with its end by the machine's clock; `now` is the store's time.
fn held(subnet: Subnet, entry: &KeptLease, now: Millis) -> Held {
    let end = |at: Millis| SystemTime::now() + Duration::from_millis(at.saturating_sub(now));
    let expiry = entry.expires.map_or(Expiry::Never, |at| Expiry::At(end(at)));
    let lease = Lease { subnet, attrs: entry.attrs.clone() };
    Held { lease, expiry, version: Version::new(entry.version) }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn name(&self) -> String {
        format!("Lease server of this process, network {}", self.network)
    }

    fn description(&self) -> String {
        "lease server of this process".to_owned()
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        Ok(self.watch_log().config_text())
    }

    fn how_to_write_config(&self) -> String {
        let named = self.network.flag();
        format!(
            "--net-config-path=FILE, or `flannelctl config set FILE{named}` with --remote and this server's \
             address, FILE for example {}",
            flannel_store::EXAMPLE_CONFIG
        )
    }

    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent> {
        let watch_log = self.watch_log();
        let cursor = LogPosition::read(&cursor);
        spawn_sender("watch of leases", EVENT_QUEUE, |events| async move {
            follow(&watch_log, cursor, &events).await;
        })
    }

    fn requests(&self) -> &dyn RequestStore {
        &self.requests
    }
}

#[async_trait]
impl NodeStore for EmbeddedStore {
    async fn recall(&self, config: &NetworkConfig, me: &Claimant) -> Result<Recalled, StoreError> {
        let snapshot = self.watch_log().snapshot().into_snapshot();
        Ok(Recalled::by_address(config, me, snapshot, self.clone()))
    }

    async fn renew(&self, of: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        let (subnet, version) = (of.lease.subnet, Some(of.version.number()));
        let (attrs, who) = (attrs.clone(), Who::anybody());
        let request = Request::Renew { subnet, attrs, version, who };
        self.ask_for_lease("renew the lease", request).await
    }
}

#[async_trait]
impl AcquireAttempt for EmbeddedStore {
    async fn run(
        self: Box<Self>,
        _: &NetworkConfig,
        claim: &Claim,
        _: &Snapshot,
    ) -> Result<Held, StoreError> {
        let Claim { attrs, previous } = claim.clone();
        let request = Request::Acquire { attrs, previous, who: Who::anybody() };
        self.ask_for_lease("acquire a lease", request).await
    }
}

async fn follow(
    watch_log: &WatchLog,
    mut cursor: Option<LogPosition>,
    events: &mpsc::Sender<StoreEvent>,
) {
    let mut changes = watch_log.changes();
    loop {
        changes.mark_unchanged();
        let since = match cursor {
            Some(cursor) => watch_log.since(cursor),
            None => News::Snapshot(watch_log.snapshot()),
        };
        let told = match since {
            News::Events(list, at) => {
                cursor = Some(at);
                list.into_iter().map(store_event).collect()
            }
            News::Snapshot(all) => {
                cursor = Some(all.cursor);
                let config = all.config.clone().map_or(StoreEvent::ConfigGone, StoreEvent::Config);
                vec![config, StoreEvent::Snapshot(all.into_snapshot().leases)]
            }
        };
        for event in told {
            if events.send(event).await.is_err() {
                return;
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn store_event(event: Event) -> StoreEvent {
    match event {
        Event::Put(subnet, entry) => StoreEvent::Put(entry.into_stored(subnet)),
        Event::Gone(subnet) => StoreEvent::Gone(subnet),
        Event::Config(text) => text.map_or(StoreEvent::ConfigGone, StoreEvent::Config),
    }
}
