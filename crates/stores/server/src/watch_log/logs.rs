//! Watch logs of all networks, and the watch log of the networks themselves.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use flannel_lease::{NetworkName, SubnetOrigin};
use flannel_store::{KeptLease, LogPosition};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Event, LogReach, WatchLog};
use crate::lease_state::{Change, Commit, LeaseState};

const MAX_KEPT_EVENTS: usize = 256;

#[derive(Debug, Default)]
pub struct WatchLogs {
    state: Mutex<State>,
    latest: watch::Sender<u64>,
    subnets: SubnetOrigin,
}

#[derive(Debug, Default)]
struct State {
    reach: LogReach,
    watch_logs: BTreeMap<NetworkName, Arc<WatchLog>>,
    kept: VecDeque<(u64, bool, NetworkName)>,
}

impl WatchLogs {
    /// Empty logs of networks with this origin of subnets.
    pub fn of(subnets: SubnetOrigin) -> Self {
        Self { subnets, ..Self::default() }
    }

    pub fn get(&self, name: &NetworkName) -> Option<Arc<WatchLog>> {
        self.state.lock().watch_logs.get(name).cloned()
    }

    pub fn get_or_create(&self, name: &NetworkName) -> Arc<WatchLog> {
        let mut state = self.state.lock();
        let State { reach, watch_logs, .. } = &mut *state;
        let create = || {
            let watch_log = WatchLog::of(self.subnets);
            watch_log.reset(reach.revision, &reach.histories, None, []);
            Arc::new(watch_log)
        };
        watch_logs.entry(name.clone()).or_insert_with(create).clone()
    }

    pub fn names(&self) -> Vec<NetworkName> {
        self.state.lock().live().cloned().collect()
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// Networks added and removed after a cursor; `None` when there are none. Without a cursor all networks.
    pub fn answer(&self, cursor: Option<LogPosition>) -> Option<Bytes> {
        let state = self.state.lock();
        let Some(cursor) = cursor.filter(|cursor| state.reach.knows(cursor)) else {
            let names: Vec<String> = state.live().map(|name| format!("\"{name}\"")).collect();
            return Some(state.reach.answer("null", &format!("[{}]", names.join(",")), ""));
        };
        let after = state.kept.iter().filter(|(revision, ..)| *revision > cursor.revision);
        let events: Vec<String> = after
            .map(|(_, added, name)| {
                let kind = if *added { "added" } else { "removed" };
                format!(r#"{{"type":"{kind}","network":"{name}"}}"#)
            })
            .collect();
        let answer = || state.reach.answer(&format!("[{}]", events.join(",")), "null", "");
        (!events.is_empty()).then(answer)
    }

    /// Replaces everything by a lease state and its last commits.
    pub fn reset<'a>(
        &self,
        lease_state: &LeaseState,
        floor: u64,
        recent: impl Iterator<Item = &'a Commit> + Clone,
    ) {
        let (revision, histories) = (lease_state.revision, &lease_state.histories);
        self.state.lock().reach = LogReach::from(revision, histories);
        for (name, network) in &lease_state.networks {
            let watch_log = self.get_or_create(name);
            let leases = network.leases().iter().map(|(subnet, entry)| (*subnet, entry.clone()));
            watch_log.reset(revision, histories, network.config_text(), leases);
            watch_log.recall(
                floor,
                recent.clone().map(|commit| (commit.revision, events(name, commit))),
            );
        }
        self.latest.send_replace(revision);
    }

    pub fn publish(&self, commit: &Commit) {
        let mut touched: Vec<&NetworkName> = commit.changes.iter().filter_map(network).collect();
        touched.dedup();
        self.state.lock().reach.revision = commit.revision;
        for name in touched {
            let watch_log = self.get_or_create(name);
            let known = watch_log.config_text().is_some();
            watch_log.publish(commit.revision, events(name, commit));
            let lives = watch_log.config_text().is_some();
            if known != lives {
                self.keep(commit.revision, lives, name);
            }
        }
    }

    /// Publishes that a network was added or removed, at a revision of its watch log.
    pub(crate) fn announce(&self, revision: u64, added: bool, name: &NetworkName) {
        let next = {
            let mut state = self.state.lock();
            state.reach.revision = (state.reach.revision + 1).max(revision);
            state.reach.revision
        };
        self.keep(next, added, name);
    }

    fn keep(&self, revision: u64, added: bool, name: &NetworkName) {
        let mut state = self.state.lock();
        state.kept.push_back((revision, added, name.clone()));
        if state.kept.len() > MAX_KEPT_EVENTS
            && let Some((oldest, ..)) = state.kept.pop_front()
        {
            state.reach.floor = oldest;
        }
        drop(state);
        self.latest.send_replace(revision);
    }
}

impl State {
    fn live(&self) -> impl Iterator<Item = &NetworkName> {
        self.watch_logs
            .iter()
            .filter(|(_, watch_log)| watch_log.config_text().is_some())
            .map(|(name, _)| name)
    }
}

fn network(change: &Change) -> Option<&NetworkName> {
    match change {
        Change::Start { .. } | Change::Clock => None,
        Change::Config { network, .. }
        | Change::Put { network, .. }
        | Change::Gone { network, .. } => Some(network),
    }
}

fn events(name: &NetworkName, commit: &Commit) -> Vec<Event> {
    let of_this = commit.changes.iter().filter(|change| network(change) == Some(name));
    let event = |change: &Change| match change {
        Change::Config { text, .. } => Some(Event::Config(text.clone())),
        Change::Put { subnet, attrs, expires, owner, .. } => {
            let version = commit.revision;
            let entry = KeptLease::new(attrs.clone(), *expires, owner.clone());
            Some(Event::Put(*subnet, KeptLease { version, ..entry }))
        }
        Change::Gone { subnet, .. } => Some(Event::Gone(*subnet)),
        Change::Start { .. } | Change::Clock => None,
    };
    of_this.filter_map(event).collect()
}
