//! The store of a node that serves its own leases: no network between them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flannel_lease::{Expiry, Lease, LeaseAttrs, NetworkConfig, NetworkName, Subnet, same_node};
use tokio::sync::mpsc;

use super::{AskError, Embedded};
use crate::lease_state::{Entry, Millis, Refusal, Reply, Request, Who};
use crate::watch_log::{Cursor, Event, Since, WatchLog};
use crate::{Acquired, Claim, Held, Snapshot, Store, StoreError, StoreEvent};

const QUEUE: usize = 1_024;

/// One network of an open data directory.
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    embedded: Embedded,
    network: NetworkName,
}

impl EmbeddedStore {
    pub fn new(embedded: Embedded, network: NetworkName) -> Self {
        Self { embedded, network }
    }

    fn watch_log(&self) -> Arc<WatchLog> {
        self.embedded.watch_logs().get_or_create(&self.network)
    }

    async fn ask(&self, attempted: &str, request: Request) -> Result<Reply, StoreError> {
        let answer = self.embedded.ask(&self.network, request).await;
        answer.map_err(|error| match error {
            AskError::Refused(refusal) => refused(attempted, refusal),
            other => StoreError::Unavailable {
                attempted: attempted.to_owned(),
                endpoint: ENDPOINT.to_owned(),
                reason: other.to_string(),
            },
        })
    }
}

const ENDPOINT: &str = "the lease store of this process";

fn refused(attempted: &str, refusal: Refusal) -> StoreError {
    match refusal {
        Refusal::Gone(subnet) => StoreError::Lost { key: subnet.to_string() },
        Refusal::Taken(subnet, entry) => StoreError::Taken {
            key: subnet.to_string(),
            by: Box::new(Lease { subnet, attrs: entry.attrs }),
        },
        Refusal::OutOfSubnets(error) => StoreError::OutOfSubnets(*error),
        other => StoreError::Refused {
            attempted: attempted.to_owned(),
            endpoint: ENDPOINT.to_owned(),
            reason: other.to_string(),
        },
    }
}

/// How long it lasts by the store's time `now`, told by the machine's clock as it is.
fn held(subnet: Subnet, entry: &Entry, now: Millis) -> Held {
    let end = |at: Millis| SystemTime::now() + Duration::from_millis(at.saturating_sub(now));
    let expiry = entry.expires.map_or(Expiry::Never, |at| Expiry::At(end(at)));
    let lease = Lease { subnet, attrs: entry.attrs.clone() };
    Held { lease, expiry, version: entry.version }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn name(&self) -> String {
        format!("Lease server of this process, network {}", self.network)
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        Ok(self.watch_log().config_text())
    }

    fn how_to_write_config(&self) -> String {
        let named = self.network.flag();
        format!(
            "--net-config-path=FILE, or `flannelctl config set FILE{named}` with --remote and this server's \
             address, FILE for example {}",
            crate::store::EXAMPLE
        )
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let everything = self.watch_log().everything();
        Ok(Snapshot { leases: everything.plain_leases(), cursor: everything.cursor.revision })
    }

    async fn lease(&self, subnet: &Subnet) -> Result<Option<Held>, StoreError> {
        let now = self.embedded.now();
        Ok(self.watch_log().lease(subnet).map(|entry| held(*subnet, &entry, now)))
    }

    async fn acquire(&self, config: &NetworkConfig, claim: &Claim) -> Result<Acquired, StoreError> {
        let watch_log = self.watch_log();
        let bare = (claim.announce)(None);
        let known = watch_log.find(|entry| same_node(config, &bare, &entry.attrs));
        let attrs = (claim.announce)(known.as_ref().map(|(_, entry)| &entry.attrs));
        let (previous, who) = (claim.previous, Who::anybody());
        let request = Request::Acquire { attrs, previous, who };
        match self.ask("acquire a lease", request).await? {
            Reply::Lease(subnet, entry) => {
                let snapshot = self.snapshot().await?;
                Ok(Acquired { held: held(subnet, &entry, self.embedded.now()), snapshot })
            }
            Reply::Done => Err(StoreError::Corrupt {
                key: self.network.to_string(),
                reason: "acquiring gave no lease".to_owned(),
            }),
        }
    }

    async fn renew(&self, of: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        let (subnet, version) = (of.lease.subnet, Some(of.version));
        let (attrs, who) = (attrs.clone(), Who::anybody());
        let request = Request::Renew { subnet, attrs, version, who };
        match self.ask("renew the lease", request).await? {
            Reply::Lease(subnet, entry) => Ok(held(subnet, &entry, self.embedded.now())),
            Reply::Done => Ok(of.clone()),
        }
    }

    async fn release(&self, of: &Held) -> Result<(), StoreError> {
        let (subnet, version) = (of.lease.subnet, Some(of.version));
        let request = Request::Release { subnet, version, who: Who::anybody() };
        match self.embedded.ask(&self.network, request).await {
            // Not ours to give back any more, or never to be given back.
            Ok(_) | Err(AskError::Refused(_)) => Ok(()),
            Err(error) => Err(StoreError::Unavailable {
                attempted: "release the lease".to_owned(),
                endpoint: ENDPOINT.to_owned(),
                reason: error.to_string(),
            }),
        }
    }

    fn watch(&self, cursor: u64) -> mpsc::Receiver<StoreEvent> {
        let (events, receiver) = mpsc::channel(QUEUE);
        let watch_log = self.watch_log();
        tokio::spawn(async move {
            let closed = events.clone();
            tokio::select! {
                () = follow(&watch_log, cursor, &events) => {}
                () = closed.closed() => {}
            }
        });
        receiver
    }
}

/// Ends when the receiver is gone.
async fn follow(watch_log: &WatchLog, cursor: u64, events: &mpsc::Sender<StoreEvent>) {
    let mut changes = watch_log.changes();
    // 0 is before everything.
    let mut cursor = Cursor { revision: cursor, history: None };
    let mut first = cursor.revision == 0;
    loop {
        changes.mark_unchanged();
        let since = if std::mem::take(&mut first) {
            Since::Everything(watch_log.everything())
        } else {
            watch_log.since(cursor)
        };
        let told = match since {
            Since::Nothing => vec![],
            Since::Events(list, at) => {
                cursor = at;
                list.into_iter().map(store_event).collect()
            }
            Since::Everything(all) => {
                cursor = all.cursor;
                let config = all.config.clone().map_or(StoreEvent::ConfigGone, StoreEvent::Config);
                vec![config, StoreEvent::Snapshot(all.plain_leases())]
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
        Event::Put(subnet, entry) => StoreEvent::Put(Lease { subnet, attrs: entry.attrs }),
        Event::Gone(subnet) => StoreEvent::Gone(subnet),
        Event::Config(text) => text.map_or(StoreEvent::ConfigGone, StoreEvent::Config),
    }
}
