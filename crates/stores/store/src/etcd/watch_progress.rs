//! Progress of a watch in etcd's history, and whether etcd's present state continues it. No I/O.
//!
//! etcd does not say when a watch starts at a revision it has not reached yet: it waits. A cluster
//! restored from a backup is at such an earlier revision, so a watcher that trusts its cursor would
//! hear nothing until the new history has grown past it, and then miss what lies before.

use super::keys::KeyRange;
use super::proto::{ResponseHeader, WatchCreateRequest, WatchResponse};

#[derive(Debug)]
pub(super) struct WatchProgress {
    parts: Vec<WatchedRange>,
    origin: Option<Origin>,
}

/// One range of keys; each is watched by itself and proceeds by itself.
#[derive(Debug)]
struct WatchedRange {
    range: KeyRange,
    /// Last revision whose events were sent.
    cursor: i64,
    /// etcd's number for the watch, once it has been made.
    watch: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Origin {
    cluster: u64,
    term: u64,
}

/// Reason why etcd ended a watch.
#[derive(Debug, PartialEq)]
pub(super) enum WatchEnd {
    /// The events after our cursor are no longer kept.
    Compacted,
    Canceled {
        range: Option<KeyRange>,
        reason: String,
    },
}

impl WatchProgress {
    pub(super) fn new(parts: impl IntoIterator<Item = (KeyRange, i64)>) -> Self {
        let part = |(range, cursor)| WatchedRange { range, cursor, watch: None };
        Self { parts: parts.into_iter().map(part).collect(), origin: None }
    }

    /// Whether a cluster that answers with this header continues the history so far.
    pub(super) fn continues_in(&mut self, header: &ResponseHeader) -> bool {
        let now = Origin { cluster: header.cluster_id, term: header.raft_term };
        let same = self.origin.is_none_or(|o| o.cluster == now.cluster && o.term <= now.term);
        let reached = self.parts.iter().all(|part| part.cursor <= header.revision);
        self.origin = Some(now);
        same && reached
    }

    pub(super) fn requests(&mut self) -> Vec<WatchCreateRequest> {
        let request = |part: &mut WatchedRange| {
            part.watch = None;
            WatchCreateRequest {
                key: part.range.start.clone(),
                range_end: part.range.end.clone(),
                start_revision: part.cursor + 1,
                progress_notify: true,
            }
        };
        self.parts.iter_mut().map(request).collect()
    }

    pub(super) fn is_open(&self) -> bool {
        self.parts.iter().all(|part| part.watch.is_some())
    }

    pub(super) fn note(&mut self, response: &WatchResponse) -> Result<(), WatchEnd> {
        // Watches are made in the order they were asked for.
        if response.created
            && let Some(part) = self.parts.iter_mut().find(|part| part.watch.is_none())
        {
            part.watch = Some(response.watch_id);
        }
        let part = self.parts.iter_mut().find(|part| part.watch == Some(response.watch_id));
        if response.compact_revision > 0 {
            return Err(WatchEnd::Compacted);
        }
        if response.canceled {
            let range = part.map(|part| part.range.clone());
            return Err(WatchEnd::Canceled { range, reason: response.cancel_reason.clone() });
        }
        let Some(part) = part else { return Ok(()) };
        let revision = match response.events.last().and_then(|event| event.kv.as_ref()) {
            Some(kv) => kv.mod_revision,
            None if response.created => part.cursor,
            // Nothing happened in this range up to here.
            None => response.header.as_ref().map_or(part.cursor, |header| header.revision),
        };
        part.cursor = part.cursor.max(revision);
        Ok(())
    }

    pub(super) fn leave_out(&mut self, range: &KeyRange) {
        self.parts.retain(|part| part.range != *range);
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{Event, KeyValue};
    use super::*;

    fn history(cursors: &[i64]) -> WatchProgress {
        let range = |n: usize| KeyRange::directory(&format!("/{n}/"));
        WatchProgress::new(cursors.iter().enumerate().map(|(n, cursor)| (range(n), *cursor)))
    }

    fn header(cluster_id: u64, raft_term: u64, revision: i64) -> ResponseHeader {
        ResponseHeader { cluster_id, raft_term, revision }
    }

    fn starts(history: &mut WatchProgress) -> Vec<i64> {
        history.requests().iter().map(|request| request.start_revision).collect()
    }

    fn created(watch_id: i64) -> WatchResponse {
        let header = Some(header(1, 1, 100));
        WatchResponse { header, watch_id, created: true, ..Default::default() }
    }

    #[test]
    fn a_cluster_that_has_not_reached_our_cursor_was_restored() {
        assert!(history(&[10, 7]).continues_in(&header(1, 2, 10)));
        assert!(!history(&[10, 7]).continues_in(&header(1, 2, 9)));
    }

    #[test]
    fn another_cluster_or_an_earlier_term_is_another_history() {
        let mut history = history(&[10]);
        assert!(history.continues_in(&header(1, 5, 10)));
        assert!(history.continues_in(&header(1, 6, 12)));
        assert!(!history.continues_in(&header(1, 2, 50)), "a backup starts with term 1");
        assert!(!history.continues_in(&header(9, 9, 50)));
    }

    #[test]
    fn each_range_goes_on_from_its_own_last_event() {
        let mut history = history(&[10, 10]);
        assert_eq!(starts(&mut history), [11, 11]);
        history.note(&created(0)).unwrap();
        assert!(!history.is_open());
        history.note(&created(1)).unwrap();
        assert!(history.is_open());
        assert_eq!(starts(&mut history), [11, 11], "being made is no progress");

        history.note(&created(0)).unwrap();
        history.note(&created(1)).unwrap();
        let kv = KeyValue { mod_revision: 20, ..Default::default() };
        let event = Event { kind: 0, kv: Some(kv) };
        let events = WatchResponse {
            header: Some(header(1, 1, 30)),
            watch_id: 1,
            events: vec![event],
            ..Default::default()
        };
        history.note(&events).unwrap();
        assert_eq!(starts(&mut history), [11, 21], "later events may still be on their way");
    }

    #[test]
    fn a_report_of_progress_moves_the_cursor_of_an_idle_range() {
        let mut history = history(&[10]);
        history.note(&created(0)).unwrap();
        let progress = WatchResponse { header: Some(header(1, 1, 500)), ..Default::default() };
        history.note(&progress).unwrap();
        assert_eq!(starts(&mut history), [501]);
    }

    #[test]
    fn compaction_and_refusal_are_told_apart() {
        let mut history = history(&[10]);
        history.note(&created(0)).unwrap();
        let compacted =
            WatchResponse { canceled: true, compact_revision: 40, ..Default::default() };
        assert_eq!(history.note(&compacted), Err(WatchEnd::Compacted));
        let refused = WatchResponse {
            canceled: true,
            cancel_reason: "permission denied".to_owned(),
            ..Default::default()
        };
        let range = Some(KeyRange::directory("/0/"));
        let reason = "permission denied".to_owned();
        assert_eq!(history.note(&refused), Err(WatchEnd::Canceled { range, reason }));
    }
}
