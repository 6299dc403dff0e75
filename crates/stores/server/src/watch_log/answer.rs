//! Text of answers to watchers. Most of them ask from the same cursor, so the last answers are cached.

use bytes::Bytes;
use flannel_lease::Subnet;
use flannel_store::LogPosition;

use super::{Event, State, WatchLog, config_json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStyle {
    /// One answer with leases only, as the lease server of the Go flannel gave it.
    Poll,
    Stream,
    RedactedStream,
}

const STYLE_COUNT: usize = 3;

#[derive(Debug, Default)]
pub(super) struct AnswerCache {
    pub(super) snapshots: [Option<(u64, Bytes)>; STYLE_COUNT],
    events: [Option<(u64, u64, Bytes)>; STYLE_COUNT],
}

impl WatchLog {
    /// News after a cursor; `None` when there are none. Without a cursor a snapshot.
    pub fn answer(
        &self,
        cursor: Option<LogPosition>,
        style: AnswerStyle,
    ) -> Option<(Bytes, LogPosition)> {
        let mut state = self.state.lock();
        match cursor.filter(|cursor| state.reach.knows(cursor)) {
            Some(cursor) => state.events_answer(cursor.revision, style),
            None => Some((state.snapshot_answer(style), state.reach.cursor())),
        }
    }

    /// Whether a watcher gets the events after its cursor; else it gets a snapshot.
    pub fn continues(&self, cursor: Option<LogPosition>) -> bool {
        let state = self.state.lock();
        cursor.is_some_and(|cursor| state.reach.knows(&cursor))
    }

    /// The same about a single lease, without a cache.
    pub fn answer_one(&self, subnet: &Subnet, cursor: Option<LogPosition>) -> Option<Bytes> {
        let state = self.state.lock();
        let Some(cursor) = cursor.filter(|cursor| state.reach.knows(cursor)) else {
            let lease = state.leases.get(subnet).map(|view| view.json.as_str());
            return Some(state.reach.answer(
                "null",
                &format!("[{}]", lease.unwrap_or_default()),
                "",
            ));
        };
        let is_it = |event: &Event| match event {
            Event::Put(of, _) | Event::Gone(of) => of == subnet,
            Event::Config(_) => false,
        };
        let json = state.events_json(cursor.revision, AnswerStyle::Poll, is_it)?;
        Some(state.reach.answer(&json, "null", ""))
    }
}

impl State {
    fn snapshot_answer(&mut self, style: AnswerStyle) -> Bytes {
        let revision = self.reach.revision;
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
            AnswerStyle::Poll => String::new(),
            AnswerStyle::Stream | AnswerStyle::RedactedStream => {
                format!(",\"config\":{}", config.as_deref().unwrap_or("null"))
            }
        };
        let bytes = self.reach.answer("null", &leases, &config);
        self.answers.snapshots[style as usize] = Some((revision, bytes.clone()));
        bytes
    }

    fn events_answer(&mut self, from: u64, style: AnswerStyle) -> Option<(Bytes, LogPosition)> {
        let cursor = self.reach.cursor();
        if let Some((of, to, bytes)) = &self.answers.events[style as usize]
            && (*of, *to) == (from, cursor.revision)
        {
            return Some((bytes.clone(), cursor));
        }
        let wanted =
            |event: &Event| style != AnswerStyle::Poll || !matches!(event, Event::Config(_));
        let json = self.events_json(from, style, wanted)?;
        let bytes = self.reach.answer(&json, "null", "");
        self.answers.events[style as usize] = Some((from, cursor.revision, bytes.clone()));
        Some((bytes, cursor))
    }

    fn events_json(
        &self,
        from: u64,
        style: AnswerStyle,
        wanted: impl Fn(&Event) -> bool,
    ) -> Option<String> {
        let mut out = String::new();
        let entry = self.after(from).flat_map(|entry| entry.events.iter().zip(&entry.json));
        for (event, json) in entry.filter(|(event, _)| wanted(event)) {
            out.push(if out.is_empty() { '[' } else { ',' });
            match event {
                Event::Config(Some(text)) if style == AnswerStyle::RedactedStream => {
                    out += &config_json(&flannel_backend::redact_config(text));
                }
                _ => out += json,
            }
        }
        if out.is_empty() {
            return None;
        }
        out.push(']');
        Some(out)
    }
}
