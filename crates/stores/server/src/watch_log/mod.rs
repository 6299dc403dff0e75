//! Watch log of one network: its present state and its recent events, each written as text once and shared by all who get
//! it. Nothing is kept per watcher: each comes with its cursor and gets the events after it, or a snapshot if they are no
//! longer known.

mod answer;
mod logs;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use flannel_lease::{NetworkConfig, Subnet, SubnetOrigin};
use flannel_store::{KeptLease, LogPosition, Snapshot, wire};
use parking_lot::Mutex;
use tokio::sync::watch;

pub use answer::AnswerStyle;
pub use logs::WatchLogs;

use crate::lease_state::{LeaseState, ServerRun};

/// Most events that are kept for watchers that fall behind or come back.
pub const MAX_KEPT_EVENTS: usize = 8_192;
/// Most bytes of them, enough for that many events of nodes.
pub const MAX_KEPT_BYTES: usize = 8 << 20;

/// Change in a network.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Put(Subnet, KeptLease),
    Gone(Subnet),
    Config(Option<String>),
}

#[derive(Debug, Default)]
pub struct WatchLog {
    state: Mutex<State>,
    /// Revision of the last event; a change wakes all who wait.
    latest: watch::Sender<u64>,
    subnets: SubnetOrigin,
}

#[derive(Debug, Default)]
struct State {
    reach: LogReach,
    config: Option<ConfigView>,
    leases: BTreeMap<Subnet, LeaseView>,
    kept: VecDeque<RevisionEvents>,
    kept_events: usize,
    kept_bytes: usize,
    answers: answer::AnswerCache,
}

/// Part of history that a log has.
#[derive(Debug, Default)]
struct LogReach {
    revision: u64,
    histories: Vec<ServerRun>,
    /// All events after this revision are kept.
    floor: u64,
}

impl LogReach {
    /// Without anything that came before.
    fn from(revision: u64, histories: &[ServerRun]) -> Self {
        Self { revision, histories: histories.to_vec(), floor: revision }
    }

    fn cursor(&self) -> LogPosition {
        let history = self.histories.last().map(|history| history.id);
        LogPosition { revision: self.revision, history }
    }

    /// Whether all events after this position are kept.
    fn knows(&self, cursor: &LogPosition) -> bool {
        let same = cursor.history.is_none_or(|history| {
            LeaseState::continues(&self.histories, self.revision, history, cursor.revision)
        });
        same && self.floor <= cursor.revision && cursor.revision <= self.revision
    }

    /// Answer to a watcher; `more` are further members.
    fn answer(&self, events: &str, snapshot: &str, more: &str) -> Bytes {
        let LogPosition { revision, history } = self.cursor();
        let history = wire::history_text(history.unwrap_or(0));
        // A line of a stream ends with a line feed; elsewhere it does no harm.
        let text = format!(
            "{{\"events\":{events},\"snapshot\":{snapshot}{more},\"cursor\":\"{revision}\",\"history\":\"{history}\"}}\n"
        );
        Bytes::from(text)
    }
}

#[derive(Debug)]
struct ConfigView {
    text: String,
    /// The config with every derived value spelled out.
    json: Bytes,
}

#[derive(Debug)]
struct LeaseView {
    entry: KeptLease,
    json: String,
}

/// Events of one revision.
#[derive(Debug)]
struct RevisionEvents {
    revision: u64,
    events: Vec<Event>,
    /// Their text, one per event.
    json: Vec<String>,
}

impl RevisionEvents {
    fn bytes(&self) -> usize {
        self.json.iter().map(String::len).sum()
    }
}

/// State of a network at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchSnapshot {
    pub config: Option<String>,
    pub leases: Vec<(Subnet, KeptLease)>,
    pub cursor: LogPosition,
}

/// News for a watcher.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    Events(Vec<Event>, LogPosition),
    /// The cursor is too old, or from another history.
    Snapshot(WatchSnapshot),
}

impl WatchLog {
    /// Empty log of a network with this origin of subnets.
    pub fn of(subnets: SubnetOrigin) -> Self {
        Self { subnets, ..Self::default() }
    }

    /// Wakes whenever there are news.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// The config with every derived value spelled out.
    pub fn config(&self) -> Option<Bytes> {
        self.state.lock().config.as_ref().map(|config| config.json.clone())
    }

    /// The same without its secrets.
    pub fn redacted_config(&self) -> Option<Bytes> {
        let shown =
            |config: &ConfigView| config.shown(AnswerStyle::RedactedStream).into_owned().into();
        self.state.lock().config.as_ref().map(shown)
    }

    pub fn config_text(&self) -> Option<String> {
        self.state.lock().config.as_ref().map(|config| config.text.clone())
    }

    pub fn lease(&self, subnet: &Subnet) -> Option<KeptLease> {
        self.state.lock().leases.get(subnet).map(|view| view.entry.clone())
    }

    /// The first lease for which this is true.
    pub fn find(&self, is_it: impl Fn(&Subnet, &KeptLease) -> bool) -> Option<(Subnet, KeptLease)> {
        let state = self.state.lock();
        let found = state.leases.iter().find(|(subnet, view)| is_it(subnet, &view.entry));
        found.map(|(subnet, view)| (*subnet, view.entry.clone()))
    }

    pub fn count(&self) -> usize {
        self.state.lock().leases.len()
    }

    pub fn snapshot(&self) -> WatchSnapshot {
        self.state.lock().snapshot()
    }

    /// News after a cursor, as values.
    pub fn since(&self, cursor: LogPosition) -> News {
        let state = self.state.lock();
        if !state.reach.knows(&cursor) {
            return News::Snapshot(state.snapshot());
        }
        let events: Vec<Event> =
            state.after(cursor.revision).flat_map(|kept| kept.events.iter().cloned()).collect();
        News::Events(events, state.reach.cursor())
    }

    /// Replaces the state without events: at the start, before there are watchers, or when `histories` has changed, so that
    /// every watcher gets a snapshot.
    pub fn reset(
        &self,
        revision: u64,
        histories: &[ServerRun],
        config: Option<&str>,
        leases: impl IntoIterator<Item = (Subnet, KeptLease)>,
    ) {
        let mut state = self.state.lock();
        *state = State {
            reach: LogReach::from(revision, histories),
            config: config.map(|text| ConfigView::new(text, self.subnets)),
            leases: leases.into_iter().map(|(s, entry)| (s, LeaseView::new(&s, entry))).collect(),
            ..State::default()
        };
        drop(state);
        self.latest.send_replace(revision);
    }

    /// Publishes events. Renewals that change nothing for watchers are left out.
    pub fn publish(&self, revision: u64, events: Vec<Event>) {
        let mut state = self.state.lock();
        state.reach.revision = revision;
        let mut seen = Vec::with_capacity(events.len());
        for event in events {
            if state.apply(&event, self.subnets) {
                seen.push(event);
            }
        }
        let has_news = !seen.is_empty();
        if has_news {
            state.remember(revision, seen, self.subnets);
        }
        drop(state);
        if has_news {
            self.latest.send_replace(revision);
        }
    }

    /// Keeps events from before a restart, oldest first; the state has them already.
    pub fn recall(&self, floor: u64, commits: impl IntoIterator<Item = (u64, Vec<Event>)>) {
        let mut state = self.state.lock();
        state.reach.floor = floor.min(state.reach.revision);
        for (revision, events) in commits {
            if !events.is_empty() {
                state.remember(revision, events, self.subnets);
            }
        }
    }
}

impl State {
    fn after(&self, revision: u64) -> impl Iterator<Item = &RevisionEvents> {
        let first = self.kept.partition_point(|kept| kept.revision <= revision);
        self.kept.range(first..)
    }

    fn snapshot(&self) -> WatchSnapshot {
        let leases = self.leases.iter().map(|(subnet, view)| (*subnet, view.entry.clone()));
        WatchSnapshot {
            config: self.config.as_ref().map(|config| config.text.clone()),
            leases: leases.collect(),
            cursor: self.reach.cursor(),
        }
    }

    /// Applies an event to the state; whether it changes anything for watchers.
    fn apply(&mut self, event: &Event, subnets: SubnetOrigin) -> bool {
        self.answers.snapshots = Default::default();
        match event {
            Event::Put(subnet, entry) => {
                let view = LeaseView::new(subnet, entry.clone());
                let before = self.leases.insert(*subnet, view);
                before.is_none_or(|before| {
                    let reserved = |entry: &KeptLease| entry.expires.is_none();
                    before.entry.attrs != entry.attrs || reserved(&before.entry) != reserved(entry)
                })
            }
            Event::Gone(subnet) => self.leases.remove(subnet).is_some(),
            Event::Config(text) => {
                let changed = self.config.as_ref().map(|config| &config.text) != text.as_ref();
                self.config = text.as_deref().map(|text| ConfigView::new(text, subnets));
                changed
            }
        }
    }

    fn remember(&mut self, revision: u64, events: Vec<Event>, subnets: SubnetOrigin) {
        let json = events.iter().map(|event| event_json(event, subnets)).collect();
        let kept = RevisionEvents { revision, events, json };
        self.kept_events += kept.events.len();
        self.kept_bytes += kept.bytes();
        self.kept.push_back(kept);
        while (self.kept_events > MAX_KEPT_EVENTS || self.kept_bytes > MAX_KEPT_BYTES)
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_events -= oldest.events.len();
            self.kept_bytes -= oldest.bytes();
            self.reach.floor = oldest.revision;
        }
    }
}

impl ConfigView {
    fn new(text: &str, subnets: SubnetOrigin) -> Self {
        let read = NetworkConfig::read(text, subnets);
        let json = read.map_or_else(|_| as_written(text), |config| config.to_json());
        Self { text: text.to_owned(), json: json.into() }
    }

    fn shown(&self, style: AnswerStyle) -> Cow<'_, str> {
        let json = String::from_utf8_lossy(&self.json);
        match style {
            AnswerStyle::RedactedStream => flannel_backend::redact_config(&json).into(),
            AnswerStyle::Poll | AnswerStyle::Stream => json,
        }
    }
}

fn config_json(config: &str) -> String {
    format!(r#"{{"type":"config","config":{config}}}"#)
}

/// Text of a config that this version cannot use, for clients that perhaps can: on one line, and a string if it is not
/// JSON. It exists, so it is never `null`.
fn as_written(text: &str) -> String {
    let is_json = serde_json::from_str::<&serde_json::value::RawValue>(text)
        .is_ok_and(|json| json.get() != "null");
    match is_json {
        // Within a string of JSON there is no line feed.
        true => text.replace(['\n', '\r'], " "),
        false => serde_json::Value::from(text).to_string(),
    }
}

impl LeaseView {
    fn new(subnet: &Subnet, entry: KeptLease) -> Self {
        Self { json: wire::lease_json(subnet, &entry, None), entry }
    }
}

impl WatchSnapshot {
    pub fn into_snapshot(self) -> Snapshot {
        let leases = self.leases.into_iter().map(|(subnet, entry)| entry.into_stored(subnet));
        Snapshot { leases: leases.collect(), cursor: self.cursor.into() }
    }
}

fn event_json(event: &Event, subnets: SubnetOrigin) -> String {
    match event {
        Event::Put(subnet, entry) => {
            format!(r#"{{"type":"added","lease":{}}}"#, wire::lease_json(subnet, entry, None))
        }
        Event::Gone(subnet) => {
            format!(r#"{{"type":"removed","lease":{}}}"#, wire::gone_json(subnet))
        }
        Event::Config(text) => {
            let config = text.as_deref().map(|text| ConfigView::new(text, subnets));
            let json = config.map_or(Bytes::from_static(b"null"), |config| config.json);
            config_json(&String::from_utf8_lossy(&json))
        }
    }
}
