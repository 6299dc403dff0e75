//! Keeps a watch log up to date with the store.

use std::sync::Arc;

use flannel_store::StoreEvent;
use tokio::sync::mpsc;

use super::View;
use crate::lease_state::ServerRun;
use crate::watch_log::{Event, WatchLogs};

pub(super) struct Follower {
    view: View,
    watch_logs: Arc<WatchLogs>,
    store: &'static str,
    revision: u64,
    history: ServerRun,
}

impl Follower {
    pub(super) fn new(view: View, watch_logs: Arc<WatchLogs>, store: &'static str) -> Self {
        let history = ServerRun { id: 0, since: 0 };
        Self { view, watch_logs, store, revision: 0, history }
    }

    pub(super) async fn run(mut self, mut events: mpsc::Receiver<StoreEvent>) {
        let mut config: Option<String> = None;
        while let Some(event) = events.recv().await {
            self.revision += 1;
            let lived = self.view.watch_log.config_text().is_some();
            let network = &self.view.name;
            match event {
                StoreEvent::Config(text) if self.history.id == 0 => config = Some(text),
                StoreEvent::ConfigGone if self.history.id == 0 => config = None,
                StoreEvent::Config(text) => self.publish(Event::Config(Some(text))),
                StoreEvent::ConfigGone => self.publish(Event::Config(None)),
                StoreEvent::Snapshot(leases) => {
                    let known = self.view.watch_log.config_text().or(config.take());
                    // Begins a new history, since events may have been missed: every client gets a snapshot.
                    self.history = ServerRun { id: fastrand::u64(1..), since: self.revision };
                    let view = &self.view;
                    let leases = leases.iter().map(|it| (it.lease.subnet, view.entry(it)));
                    let histories = [self.history];
                    view.watch_log.reset(self.revision, &histories, known.as_deref(), leases);
                }
                StoreEvent::Put(stored) => {
                    let entry = self.view.dated_entry(&stored);
                    self.publish(Event::Put(stored.lease.subnet, entry));
                }
                // No subnet is assigned to a server.
                StoreEvent::Assigned(_) => {}
                StoreEvent::Gone(subnet) => self.publish(Event::Gone(subnet)),
                StoreEvent::Down(why) => tracing::warn!(%network, "{why}"),
                StoreEvent::Up => tracing::info!(%network, "{} is reachable again", self.store),
            }
            let lives = self.view.watch_log.config_text().is_some();
            if lived != lives {
                self.watch_logs.announce(self.revision, lives, &self.view.name);
            }
        }
    }

    fn publish(&self, event: Event) {
        self.view.watch_log.publish(self.revision, vec![event]);
    }
}
