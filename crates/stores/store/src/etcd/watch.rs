//! Watch of leases: one stream from etcd, opened again wherever it broke. What was missed comes from etcd's history;
//! when that is gone, or is another, everything is listed again.

use std::convert::Infallible;
use std::sync::Arc;

use flannel_common::spawn_sender;
use flannel_lease::LeaseAttrs;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::client::WatchStream;
use super::fault::{Fault, Kind};
use super::keys::{KeyMeaning, KeyRange};
use super::leases::EtcdLeases;
use super::listing::ListedLease;
use super::proto::{Event, RangeRequest, WatchResponse};
use super::timing::{REQUEST_TIMEOUT, WATCH_RETRY, WATCH_SILENCE};
use super::watch_progress::{WatchEnd, WatchProgress};
use crate::{Cursor, StoreError, StoreEvent};

/// Events waiting for the daemon; when it lags further behind, etcd holds the rest.
const EVENT_QUEUE: usize = 1_024;

/// Tells of everything after `cursor`, which is a revision.
pub(super) fn start(leases: Arc<EtcdLeases>, cursor: &Cursor) -> mpsc::Receiver<StoreEvent> {
    let cursor = cursor.text().and_then(|text| text.parse().ok()).unwrap_or(0);
    // The config may have changed between reading it and listing the leases.
    let config_cursor = cursor.min(leases.config_read_at());
    let history = (cursor > 0).then(|| leases.history(config_cursor, cursor));
    spawn_sender("watch of leases in etcd", EVENT_QUEUE, |events| async move {
        match (Watcher { leases, events, down: false }).run(history).await {}
    })
}

struct Watcher {
    leases: Arc<EtcdLeases>,
    events: mpsc::Sender<StoreEvent>,
    down: bool,
}

/// Reason why a stream is not followed any further.
enum End {
    /// Nothing is wrong; open it again.
    Renew,
    /// Events were lost: everything has to be listed.
    Compacted,
    Failed(StoreError),
}

impl Watcher {
    /// `history` is the progress so far; `None` when everything has to be listed.
    async fn run(&mut self, mut history: Option<WatchProgress>) -> Infallible {
        let rng = self.leases.rng.lock().fork();
        let mut backoff = WATCH_RETRY.tries(rng);
        loop {
            let began = Instant::now();
            let Err(end) = self.catch_up_and_follow(&mut history).await;
            match end {
                End::Renew => {}
                End::Compacted => history = None,
                End::Failed(error) => self.tell_down(&error).await,
            }
            self.leases.contact.note_restart();
            if began.elapsed() > WATCH_RETRY.most {
                backoff.reset();
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    async fn catch_up_and_follow(
        &mut self,
        history: &mut Option<WatchProgress>,
    ) -> Result<Infallible, End> {
        if let Some(known) = history
            && !self.goes_on(known).await?
        {
            *history = None;
        }
        let history = match history {
            Some(known) => known,
            None => history.insert(self.tell_everything().await?),
        };
        self.follow(history).await
    }

    /// Asks before every stream, for etcd would not tell: it waits for revisions it has not reached.
    async fn goes_on(&self, history: &mut WatchProgress) -> Result<bool, End> {
        let config = KeyRange::single(&self.leases.keys.config);
        let request = RangeRequest { key: config.start, keys_only: true, ..Default::default() };
        let answer = self.leases.client.range(request).await.map_err(|fault| self.failed(fault))?;
        let header = answer.header.unwrap_or_default();
        let goes_on = history.continues_in(&header);
        if !goes_on {
            tracing::warn!(
                revision = header.revision,
                "etcd is another cluster or was restored from a backup: listing all leases again"
            );
        }
        Ok(goes_on)
    }

    /// Follows one stream to its end.
    async fn follow(&mut self, history: &mut WatchProgress) -> Result<Infallible, End> {
        let stream = self.leases.client.watch(history.requests()).await;
        let mut stream = stream.map_err(|fault| self.failed(fault))?;
        loop {
            let response = self.next_response(&mut stream, history.is_open()).await?;
            self.leases.contact.note_contact();
            history
                .note(&response)
                .map_err(|ended| self.ended(ended, history, stream.endpoint()))?;
            if history.is_open() {
                self.tell_up().await;
            }
            for event in response.events {
                self.tell_event(event).await;
            }
        }
    }

    async fn next_response(
        &self,
        stream: &mut WatchStream,
        open: bool,
    ) -> Result<WatchResponse, End> {
        let patience = if open { WATCH_SILENCE } else { REQUEST_TIMEOUT };
        let response = tokio::select! {
            response = timeout(patience, stream.next()) => response,
            () = self.leases.client.wait_for_reconnect() => return Err(End::Renew),
        };
        match response {
            Ok(response) => response.map_err(|fault| self.failed(fault)),
            Err(_) if open => Err(End::Renew),
            Err(_) => {
                let silent = Fault::new(Kind::Unavailable, stream.endpoint(), "it makes no watch");
                Err(self.failed(silent))
            }
        }
    }

    async fn tell_everything(&mut self) -> Result<WatchProgress, End> {
        let listing = self.leases.list().await.map_err(End::Failed)?;
        self.leases.contact.note_contact();
        let mut history = self.leases.history(listing.revision(), listing.revision());
        history.continues_in(&listing.header);
        self.tell_up().await;
        match &listing.config {
            Some(value) => self.tell_config(value).await,
            None => self.tell(StoreEvent::ConfigGone).await,
        }
        self.tell(StoreEvent::Snapshot(listing.into_snapshot().leases)).await;
        Ok(history)
    }

    async fn tell_event(&self, event: Event) {
        let deleted = event.is_deletion();
        let Some(kv) = event.kv else { return };
        let meaning = self.leases.keys.meaning(&kv.key);
        if deleted {
            self.leases.unreadable.lock().forget(&kv.key);
        }
        match meaning {
            KeyMeaning::Config if deleted => self.tell(StoreEvent::ConfigGone).await,
            KeyMeaning::Config => self.tell_config(&kv.value).await,
            KeyMeaning::Lease(subnet) if deleted => self.tell(StoreEvent::Gone(subnet)).await,
            KeyMeaning::Lease(subnet) => match LeaseAttrs::from_json(&kv.value) {
                Ok(attrs) => {
                    self.leases.unreadable.lock().forget(&kv.key);
                    let entry = ListedLease::written(subnet, attrs, kv);
                    if let Some(stored) = entry.stored() {
                        self.tell(StoreEvent::Put(stored)).await;
                    }
                }
                // Whoever knew the lease keeps it as it was.
                Err(_) => self.leases.note_bad_value(&kv).await,
            },
            KeyMeaning::Foreign(_) if deleted => {}
            KeyMeaning::Foreign(why) => self.leases.unreadable.lock().note(&kv.key, why, None),
        }
    }

    async fn tell_config(&self, value: &[u8]) {
        let key = self.leases.keys.config.as_bytes();
        match std::str::from_utf8(value) {
            Ok(text) => {
                self.leases.unreadable.lock().forget(key);
                self.tell(StoreEvent::Config(text.to_owned())).await;
            }
            Err(why) => self.leases.unreadable.lock().note(key, why, None),
        }
    }

    async fn tell_up(&mut self) {
        if std::mem::take(&mut self.down) {
            self.tell(StoreEvent::Up).await;
        }
    }

    async fn tell_down(&mut self, error: &StoreError) {
        if std::mem::replace(&mut self.down, true) {
            tracing::debug!(%error, "etcd is still away");
        } else {
            self.tell(StoreEvent::Down(error.to_string())).await;
        }
    }

    async fn tell(&self, event: StoreEvent) {
        // A receiver that is gone ends the task.
        let _ = self.events.send(event).await;
    }

    fn ended(&self, ended: WatchEnd, history: &mut WatchProgress, endpoint: &str) -> End {
        match ended {
            WatchEnd::Compacted => {
                tracing::info!("the revision to watch from is compacted: listing all leases again");
                End::Compacted
            }
            WatchEnd::Canceled { range: Some(range), reason }
                if self.is_denied_v6(&range, &reason) =>
            {
                self.leases.leave_out_v6();
                history.leave_out(&range);
                End::Renew
            }
            WatchEnd::Canceled { reason, .. } => {
                self.failed(Fault::new(Kind::Refused, endpoint, reason))
            }
        }
    }

    fn is_denied_v6(&self, range: &KeyRange, reason: &str) -> bool {
        reason.contains("permission denied")
            && *range == KeyRange::directory(self.leases.keys.v6_subnets())
    }

    fn failed(&self, fault: Fault) -> End {
        End::Failed(fault.during(format!("watch {}", self.leases.keys.subnets())))
    }
}

impl EtcdLeases {
    /// All watched ranges, at these revisions.
    pub(super) fn history(&self, config: i64, leases: i64) -> WatchProgress {
        let directories = self.directories().iter().map(|dir| (KeyRange::directory(dir), leases));
        let config = (KeyRange::single(&self.keys.config), config);
        WatchProgress::new(std::iter::once(config).chain(directories))
    }
}
