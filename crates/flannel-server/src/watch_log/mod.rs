//! What is told to those who watch: the present table of one network and its recent history, each
//! event written as text once and shared by all who get it. Nothing is kept per watcher: each comes
//! with its cursor and is told what happened after it, or everything if that is no longer known.

mod answer;
mod logs;
#[cfg(test)]
mod tests;

use flannel_store::LogPosition;
use flannel_store::{KeptLease, Snapshot, wire};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use flannel_lease::{NetworkConfig, Subnet, SubnetOrigin};
use tokio::sync::watch;

pub use answer::Style;
pub use logs::WatchLogs;

use crate::lease_state::{LeaseState, ServerRun};

/// So many events are kept for watchers that fall behind or come back.
pub const KEPT_EVENTS: usize = 8_192;
/// And so many bytes of them: enough for as many events as nodes make of themselves.
pub const KEPT_BYTES: usize = 8 << 20;

/// Something that happened in a network.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Put(Subnet, KeptLease),
    Gone(Subnet),
    Config(Option<String>),
}

#[derive(Debug)]
pub struct WatchLog {
    state: Mutex<State>,
    /// The revision of the last event; changes wake all who wait.
    latest: watch::Sender<u64>,
    subnets: SubnetOrigin,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    histories: Vec<ServerRun>,
    config: Option<ConfigView>,
    leases: BTreeMap<Subnet, LeaseView>,
    told: VecDeque<Told>,
    told_events: usize,
    told_bytes: usize,
    /// Everything after this revision is in `told`.
    floor: u64,
    answers: answer::Cache,
}

#[derive(Debug)]
struct ConfigView {
    text: String,
    /// With every derived value spelled out.
    json: Bytes,
}

#[derive(Debug)]
struct LeaseView {
    entry: KeptLease,
    json: String,
}

/// The events of one revision.
#[derive(Debug)]
struct Told {
    revision: u64,
    events: Vec<Event>,
    /// The same as text, one per event.
    json: Vec<String>,
}

impl Told {
    fn bytes(&self) -> usize {
        self.json.iter().map(String::len).sum()
    }
}

/// Everything at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Everything {
    pub config: Option<String>,
    pub leases: Vec<(Subnet, KeptLease)>,
    pub cursor: LogPosition,
}

/// What a watcher is to hear.
#[derive(Clone, Debug, PartialEq)]
pub enum Since {
    Nothing,
    Events(Vec<Event>, LogPosition),
    /// Its cursor is too old, or from a history that is not this one's.
    Everything(Everything),
}

impl Default for WatchLog {
    fn default() -> Self {
        Self::of(SubnetOrigin::Pool)
    }
}

impl WatchLog {
    /// Of a network whose nodes have their subnets from there.
    pub fn of(subnets: SubnetOrigin) -> Self {
        Self { state: Mutex::default(), latest: watch::Sender::new(0), subnets }
    }

    /// Wakes whenever there is something to tell.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// The config with every derived value spelled out.
    pub fn config(&self) -> Option<Bytes> {
        self.state().config.as_ref().map(|config| config.json.clone())
    }

    /// The same for somebody who may not know the secrets in it.
    pub fn redacted_config(&self) -> Option<Bytes> {
        let shown = |config: &ConfigView| config.shown(Style::RedactedStream).into_owned().into();
        self.state().config.as_ref().map(shown)
    }

    /// The config as it was written.
    pub fn config_text(&self) -> Option<String> {
        self.state().config.as_ref().map(|config| config.text.clone())
    }

    pub fn lease(&self, subnet: &Subnet) -> Option<KeptLease> {
        self.state().leases.get(subnet).map(|view| view.entry.clone())
    }

    /// The first lease for which this is true.
    pub fn find(&self, is_it: impl Fn(&Subnet, &KeptLease) -> bool) -> Option<(Subnet, KeptLease)> {
        let state = self.state();
        let found = state.leases.iter().find(|(subnet, view)| is_it(subnet, &view.entry));
        found.map(|(subnet, view)| (*subnet, view.entry.clone()))
    }

    pub fn count(&self) -> usize {
        self.state().leases.len()
    }

    pub fn everything(&self) -> Everything {
        self.state().everything()
    }

    /// What a watcher has not heard yet, as values.
    pub fn since(&self, cursor: LogPosition) -> Since {
        let state = self.state();
        if !state.knows(&cursor) {
            return Since::Everything(state.everything());
        }
        let events: Vec<Event> =
            state.after(cursor.revision).flat_map(|told| told.events.iter().cloned()).collect();
        if events.is_empty() { Since::Nothing } else { Since::Events(events, state.cursor()) }
    }

    /// Replaces everything, without telling anybody: at the start, before there are watchers, or when
    /// `histories` has changed, so that none of them goes on from what it knew.
    pub fn reset(
        &self,
        revision: u64,
        histories: &[ServerRun],
        config: Option<&str>,
        leases: impl IntoIterator<Item = (Subnet, KeptLease)>,
    ) {
        let mut state = self.state();
        *state = State {
            revision,
            floor: revision,
            histories: histories.to_vec(),
            config: config.map(|text| ConfigView::new(text, self.subnets)),
            leases: leases.into_iter().map(|(s, entry)| (s, LeaseView::new(&s, entry))).collect(),
            ..State::default()
        };
        drop(state);
        self.latest.send_replace(revision);
    }

    /// Tells of what happened. Renewals that change nothing a watcher sees are told to nobody.
    pub fn publish(&self, revision: u64, histories: Option<&[ServerRun]>, events: Vec<Event>) {
        let mut state = self.state();
        if let Some(histories) = histories {
            state.histories = histories.to_vec();
        }
        state.revision = revision;
        let mut seen = Vec::with_capacity(events.len());
        for event in events {
            if state.take(&event, self.subnets) {
                seen.push(event);
            }
        }
        let worth_telling = !seen.is_empty();
        if worth_telling {
            state.remember(revision, seen, self.subnets);
        }
        drop(state);
        if worth_telling {
            self.latest.send_replace(revision);
        }
    }

    /// Remembers what happened before a restart, oldest first; the table holds it already.
    pub fn recall(&self, floor: u64, commits: impl IntoIterator<Item = (u64, Vec<Event>)>) {
        let mut state = self.state();
        state.floor = floor.min(state.revision);
        for (revision, events) in commits {
            if !events.is_empty() {
                state.remember(revision, events, self.subnets);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it is held would be a bug of ours; the table is still the best there is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn cursor(&self) -> LogPosition {
        let history = self.histories.last().map(|history| history.id);
        LogPosition { revision: self.revision, history }
    }

    fn knows(&self, cursor: &LogPosition) -> bool {
        let same = cursor.history.is_none_or(|history| {
            LeaseState::continues(&self.histories, self.revision, history, cursor.revision)
        });
        same && self.floor <= cursor.revision && cursor.revision <= self.revision
    }

    fn after(&self, revision: u64) -> impl Iterator<Item = &Told> {
        let first = self.told.partition_point(|told| told.revision <= revision);
        self.told.range(first..)
    }

    fn everything(&self) -> Everything {
        let leases = self.leases.iter().map(|(subnet, view)| (*subnet, view.entry.clone()));
        Everything {
            config: self.config.as_ref().map(|config| config.text.clone()),
            leases: leases.collect(),
            cursor: self.cursor(),
        }
    }

    /// Takes an event into the table; whether a watcher would see it.
    fn take(&mut self, event: &Event, subnets: SubnetOrigin) -> bool {
        self.answers.forget_snapshots();
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
        let told = Told { revision, events, json };
        self.told_events += told.events.len();
        self.told_bytes += told.bytes();
        self.told.push_back(told);
        while (self.told_events > KEPT_EVENTS || self.told_bytes > KEPT_BYTES)
            && let Some(oldest) = self.told.pop_front()
        {
            self.told_events -= oldest.events.len();
            self.told_bytes -= oldest.bytes();
            self.floor = oldest.revision;
        }
    }
}

impl ConfigView {
    fn new(text: &str, subnets: SubnetOrigin) -> Self {
        let read = NetworkConfig::read(text, subnets);
        let json = read.map_or_else(|_| as_written(text), |config| config.to_json());
        Self { text: text.to_owned(), json: json.into() }
    }

    fn shown(&self, style: Style) -> Cow<'_, str> {
        let json = String::from_utf8_lossy(&self.json);
        match style {
            Style::RedactedStream => flannel_backend::redact_config(&json).into(),
            Style::Poll | Style::Stream => json,
        }
    }
}

fn config_json(config: &str) -> String {
    format!(r#"{{"type":"config","config":{config}}}"#)
}

/// A config that we cannot use, for those who perhaps can: on one line, and a string if it is not JSON.
/// It is there, so it is not told as `null`.
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

impl Everything {
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
