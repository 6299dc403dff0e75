//! Recent events on this node: the last few thousand; older ones are dropped.
//!
//! An event is a line of the log that has a field `event` naming its kind, such as
//! `info!(event = "store-found", "The store is reachable again")`, or a warning or an error of ours. So there is one place
//! where something is told, every crate can tell, and what is too much for the log (`debug!`) is remembered
//! all the same.

use std::collections::VecDeque;
use std::sync::Arc;

use flannel_common::shorten;
use flannel_state::HistoryEvent;
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{Level, Metadata};

pub const FIELD: &str = "event";
/// Fields of what was restored. The text of the line says the same.
pub const UNDONE_BY: &str = "undone_by";
pub const AFTER_MICROS: &str = "after_micros";
pub const ENTRIES: &str = "entries";

/// At some 200 bytes each, less than half a megabyte.
const REMEMBERED: usize = 2_000;
/// Bytes of an event's text that are kept; the log has more of it.
const LONGEST_TEXT: usize = 1 << 10;

#[derive(Clone)]
pub struct History(Arc<Shared>);

struct Shared {
    events: Mutex<VecDeque<HistoryEvent>>,
    next: watch::Sender<u64>,
}

impl Default for History {
    fn default() -> Self {
        let events = Mutex::new(VecDeque::new());
        Self(Arc::new(Shared { events, next: watch::Sender::new(0) }))
    }
}

impl History {
    pub fn wants(line: &Metadata<'_>) -> bool {
        Self::kind(line).is_some() || line.fields().field(FIELD).is_some()
    }

    /// The kind of a line that does not name one.
    pub fn kind(line: &Metadata<'_>) -> Option<&'static str> {
        match *line.level() {
            _ if !line.target().starts_with("flannel") => None,
            Level::ERROR => Some("error"),
            Level::WARN => Some("warning"),
            _ => None,
        }
    }

    pub fn add(&self, event: HistoryEvent) {
        let at = jiff::Timestamp::now().to_string();
        let mut events = self.0.events.lock();
        if events.len() >= REMEMBERED {
            events.pop_front();
        }
        let number = *self.0.next.borrow();
        let what = shorten(&event.what, LONGEST_TEXT).into_owned();
        let undone_by = event.undone_by.map(|by| shorten(&by, LONGEST_TEXT).into_owned());
        events.push_back(HistoryEvent { number, at, what, undone_by, ..event });
        // Still under the lock: whoever is told of a number finds the event.
        self.0.next.send_replace(number + 1);
    }

    /// The first of what is remembered from this number on, so many at most.
    pub fn since(&self, number: u64, most: usize) -> Vec<HistoryEvent> {
        let events = self.0.events.lock();
        let begin = events.partition_point(|event| event.number < number);
        events.range(begin..).take(most).cloned().collect()
    }

    pub fn next_number(&self) -> watch::Receiver<u64> {
        self.0.next.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_and_the_numbers_tell() {
        let history = History::default();
        for _ in 0..REMEMBERED + 5 {
            history.add(HistoryEvent::default());
        }
        let all = history.since(0, usize::MAX);
        assert_eq!((all.len(), all[0].number), (REMEMBERED, 5));
        assert_eq!(history.since(*history.next_number().borrow(), 10), []);
        assert_eq!(history.since(REMEMBERED as u64 + 4, 10).len(), 1);
        history.add(HistoryEvent { what: "x".repeat(1 << 20), ..HistoryEvent::default() });
        let last = history.since(REMEMBERED as u64 + 5, 1);
        assert!(last[0].what.len() < 2 * LONGEST_TEXT && last[0].what.ends_with("(1048576 bytes)"));
        let page = history.since(7, 3);
        assert_eq!(page.iter().map(|event| event.number).collect::<Vec<_>>(), [7, 8, 9]);
    }
}
