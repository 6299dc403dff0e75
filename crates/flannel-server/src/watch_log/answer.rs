//! The text of answers to watchers. Most of them ask from the same cursor, so the last answers are
//! kept and handed to everybody who asks the same.

use bytes::Bytes;
use flannel_lease::Subnet;
use flannel_store::LogPosition;
use flannel_store::wire;

use super::{Event, State, Told, WatchLog, config_json};
use crate::lease_state::ServerRun;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One answer, of leases alone, as the lease server of the Go flannel gave it.
    Poll,
    /// One of many lines; the config too.
    Stream,
    /// The same for somebody who may not know the secrets in the config.
    RedactedStream,
}

const STYLES: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Cache {
    snapshots: [Option<(u64, Bytes)>; STYLES],
    events: [Option<(u64, u64, Bytes)>; STYLES],
}

impl Cache {
    pub(super) fn forget_snapshots(&mut self) {
        self.snapshots = Default::default();
    }
}

impl WatchLog {
    /// What a watcher has not heard yet; `None` when there is nothing. Without a cursor: everything.
    pub fn answer(
        &self,
        cursor: Option<LogPosition>,
        style: Style,
    ) -> Option<(Bytes, LogPosition)> {
        let mut state = self.state();
        match cursor.filter(|cursor| state.knows(cursor)) {
            Some(cursor) => state.events_answer(cursor.revision, style),
            None => Some((state.snapshot_answer(style), state.cursor())),
        }
    }

    /// Whether a watcher is told what happened since; else it is told everything.
    pub fn continues(&self, cursor: Option<LogPosition>) -> bool {
        let state = self.state();
        cursor.is_some_and(|cursor| state.knows(&cursor))
    }

    /// The same about a single lease, for which nothing is kept.
    pub fn answer_one(&self, subnet: &Subnet, cursor: Option<LogPosition>) -> Option<Bytes> {
        let state = self.state();
        let Some(cursor) = cursor.filter(|cursor| state.knows(cursor)) else {
            let lease = state.leases.get(subnet).map(|view| view.json.as_str());
            return Some(state.result("null", &format!("[{}]", lease.unwrap_or_default()), ""));
        };
        let is_it = |event: &Event| match event {
            Event::Put(of, _) | Event::Gone(of) => of == subnet,
            Event::Config(_) => false,
        };
        let json = state.events_json(cursor.revision, Style::Poll, is_it)?;
        Some(state.result(&json, "null", ""))
    }
}

impl State {
    fn snapshot_answer(&mut self, style: Style) -> Bytes {
        let revision = self.revision;
        if let Some((at, bytes)) = &self.answers.snapshots[style as usize]
            && *at == revision
        {
            return bytes.clone();
        }
        let size = self.leases.values().map(|view| view.json.len() + 1).sum::<usize>();
        let mut leases = String::with_capacity(size + 2);
        for view in self.leases.values() {
            leases.push(if leases.is_empty() { '[' } else { ',' });
            leases += &view.json;
        }
        leases += if leases.is_empty() { "[]" } else { "]" };
        let config = self.config.as_ref().map(|config| config.shown(style));
        let config = match style {
            Style::Poll => String::new(),
            Style::Stream | Style::RedactedStream => {
                format!(",\"config\":{}", config.as_deref().unwrap_or("null"))
            }
        };
        let bytes = self.result("null", &leases, &config);
        self.answers.snapshots[style as usize] = Some((revision, bytes.clone()));
        bytes
    }

    fn events_answer(&mut self, from: u64, style: Style) -> Option<(Bytes, LogPosition)> {
        let cursor = self.cursor();
        if let Some((of, to, bytes)) = &self.answers.events[style as usize]
            && (*of, *to) == (from, self.revision)
        {
            return Some((bytes.clone(), cursor));
        }
        let wanted = |event: &Event| style != Style::Poll || !matches!(event, Event::Config(_));
        let json = self.events_json(from, style, wanted)?;
        let bytes = self.result(&json, "null", "");
        self.answers.events[style as usize] = Some((from, self.revision, bytes.clone()));
        Some((bytes, cursor))
    }

    fn events_json(
        &self,
        from: u64,
        style: Style,
        wanted: impl Fn(&Event) -> bool,
    ) -> Option<String> {
        let pairs = |told: &'_ Told| told.events.len();
        let mut out = String::new();
        for told in self.after(from) {
            for index in 0..pairs(told) {
                if wanted(&told.events[index]) {
                    out.push(if out.is_empty() { '[' } else { ',' });
                    match &told.events[index] {
                        Event::Config(Some(text)) if style == Style::RedactedStream => {
                            out += &config_json(&flannel_backend::redact_config(text));
                        }
                        _ => out += &told.json[index],
                    }
                }
            }
        }
        if out.is_empty() {
            return None;
        }
        out.push(']');
        Some(out)
    }

    fn result(&self, events: &str, snapshot: &str, more: &str) -> Bytes {
        let history = self.histories.last().copied().unwrap_or(ServerRun { id: 0, since: 0 });
        let history = wire::history_text(history.id);
        let revision = self.revision;
        // A line of a stream ends with a line feed; elsewhere it does no harm.
        let text = format!(
            "{{\"events\":{events},\"snapshot\":{snapshot}{more},\"cursor\":\"{revision}\",\"history\":\"{history}\"}}\n"
        );
        Bytes::from(text)
    }
}
