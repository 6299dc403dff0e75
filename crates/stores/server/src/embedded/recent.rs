//! Last commits, kept for watchers that come back, within a number and a size.

use std::collections::VecDeque;

use crate::lease_state::Commit;
use crate::watch_log::{MAX_KEPT_BYTES, MAX_KEPT_EVENTS};

#[derive(Debug, Default)]
pub(super) struct RecentCommits {
    commits: VecDeque<Commit>,
    /// Revision before the first of them.
    floor: u64,
    events: usize,
    bytes: usize,
}

impl RecentCommits {
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
        while (self.events > MAX_KEPT_EVENTS || self.bytes > MAX_KEPT_BYTES)
            && let Some(oldest) = self.commits.pop_front()
        {
            self.events -= oldest.changes.len();
            self.bytes -= oldest.weight();
            self.floor = oldest.revision;
        }
    }
}
