//! Watch of a server's events, opened again wherever it broke. A server that cannot continue sends a snapshot.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use flannel_common::{Backoff, Tries, spawn_sender};
use flannel_https::StreamError;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::RemoteStore;
use crate::node_request::read_requests;
use crate::wire::{WatchResult, WireEvent};
use crate::{LogPosition, StoreEvent, StoreFindings};

const EVENT_QUEUE: usize = 1_024;
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Longest silence of a stream: the server sends something every 15 s.
const MAX_SILENCE: Duration = Duration::from_secs(45);
const MAX_LINE_BYTES: usize = 256 << 20;

pub(super) fn start(
    store: Arc<RemoteStore>,
    cursor: Option<LogPosition>,
) -> mpsc::Receiver<StoreEvent> {
    let backoff = RETRY.tries(store.0.rng.lock().fork());
    spawn_sender("watch of leases at the lease server", EVENT_QUEUE, |events| async move {
        match (Watch { store, events, cursor, backoff, down: false }).run().await {}
    })
}

struct Watch {
    store: Arc<RemoteStore>,
    events: mpsc::Sender<StoreEvent>,
    cursor: Option<LogPosition>,
    backoff: Tries,
    down: bool,
}

impl Watch {
    async fn run(&mut self) -> Infallible {
        loop {
            let began = Instant::now();
            let mut moves = self.store.0.client.moves();
            let reason = tokio::select! {
                ended = self.follow() => match ended { Err(reason) => reason },
                _ = moves.changed() => {
                    self.backoff.reset();
                    continue;
                }
            };
            self.store.0.contact.note_restart();
            if !std::mem::replace(&mut self.down, true) {
                self.tell(StoreEvent::Down(reason)).await;
            } else {
                tracing::debug!(reason, "the lease server is still away");
            }
            if began.elapsed() > RETRY.most {
                self.backoff.reset();
            }
            tokio::time::sleep(self.backoff.pause()).await;
        }
    }

    async fn follow(&mut self) -> Result<Infallible, String> {
        let path = self.store.events_path(self.cursor);
        let (endpoint, response) = self.store.0.client.stream(&path).await.map_err(|fault| {
            format!("cannot watch leases at {}: {}", fault.endpoint, fault.reason)
        })?;
        let ended = |reason: &str| format!("{endpoint} ended the watch: {reason}");
        if !response.status().is_success() {
            self.store.0.client.leave(&endpoint);
            return Err(ended(response.status().as_str()));
        }
        let mut body = response.into_body();
        let mut line: Vec<u8> = Vec::new();
        loop {
            let data = match body.next(MAX_SILENCE).await {
                Ok(Some(data)) => data,
                Ok(None) => return Err(ended("it closed the connection")),
                Err(StreamError::Broken(why)) => return Err(ended(&why)),
                Err(StreamError::Silent) => {
                    self.store.0.client.leave(&endpoint);
                    return Err(ended("it has gone silent"));
                }
            };
            let mut rest = &data[..];
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&rest[..at]);
                rest = &rest[at + 1..];
                self.on_line(&std::mem::take(&mut line)).await.map_err(|why| ended(&why))?;
            }
            line.extend_from_slice(rest);
            if line.len() > MAX_LINE_BYTES {
                return Err(ended("it sends a line without end"));
            }
        }
    }

    async fn on_line(&mut self, line: &[u8]) -> Result<(), String> {
        self.store.0.contact.note_contact();
        if std::mem::take(&mut self.down) {
            self.tell(StoreEvent::Up).await;
        }
        if line.is_empty() {
            return Ok(());
        }
        let text = std::str::from_utf8(line).map_err(|error| error.to_string())?;
        if let Some(requests) = read_requests(text) {
            self.store.0.requests.send_replace(requests.into());
            return Ok(());
        }
        if let Some(findings) = StoreFindings::read(text) {
            *self.store.0.findings.lock() = findings;
            return Ok(());
        }
        let result = WatchResult::read(text).map_err(|error| error.to_string())?;
        if let Some(config) = result.config {
            self.tell(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
        }
        if let Some(leases) = result.snapshot {
            if self.cursor.is_some() {
                tracing::info!(
                    "the lease server cannot go on from where we were, or is not the one we knew: taking all \
                     leases again"
                );
            }
            let leases = leases.iter().filter_map(|lease| lease.stored().ok());
            let leases = leases.map(|lease| self.store.0.assigned.seen(lease)).collect();
            self.tell(StoreEvent::Snapshot(leases)).await;
        }
        for event in result.events {
            let event = match event {
                WireEvent::Added(lease) => match lease.stored() {
                    Ok(lease) => StoreEvent::Put(self.store.0.assigned.seen(lease)),
                    Err(_) => continue,
                },
                WireEvent::Removed(subnet) => StoreEvent::Gone(subnet),
                WireEvent::Config(text) => text.map_or(StoreEvent::ConfigGone, StoreEvent::Config),
            };
            self.tell(event).await;
        }
        self.cursor = Some(result.cursor);
        Ok(())
    }

    async fn tell(&self, event: StoreEvent) {
        // A receiver that is gone ends the task.
        let _ = self.events.send(event).await;
    }
}
