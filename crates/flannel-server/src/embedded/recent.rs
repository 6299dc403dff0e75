//! The last commits, kept for watchers that come back: so many of them, and so many bytes.

use std::collections::VecDeque;

use crate::lease_state::Commit;
use crate::watch_log::{KEPT_BYTES, KEPT_EVENTS};

#[derive(Debug, Default)]
pub(super) struct Recent {
    commits: VecDeque<Commit>,
    /// The revision before the first of them.
    floor: u64,
    events: usize,
    bytes: usize,
}

impl Recent {
    pub(super) fn new(floor: u64) -> Self {
        Self { floor, ..Self::default() }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn commits(&self) -> impl Iterator<Item = &Commit> + Clone {
        self.commits.iter()
    }

    pub(super) fn push(&mut self, commit: Commit) {
        self.events += commit.changes.len();
        self.bytes += commit.weight();
        self.commits.push_back(commit);
        while (self.events > KEPT_EVENTS || self.bytes > KEPT_BYTES)
            && let Some(oldest) = self.commits.pop_front()
        {
            self.events -= oldest.changes.len();
            self.bytes -= oldest.weight();
            self.floor = oldest.revision;
        }
    }
}
