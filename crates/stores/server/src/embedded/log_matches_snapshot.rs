//! Check that a log and a snapshot belong together. A log begins where the snapshot ends, or earlier when the server died
//! between writing the one and replacing the other. Else a part of what was acknowledged is lost, and a server that went
//! on would give out subnets that are in use.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::journal::OpenError;
use crate::lease_state::{Change, Commit, LeaseState, MAX_HISTORIES, ServerRun};

/// First record of a log: revision and history that it continues. Logs of this store's first version lack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogStart {
    pub(super) after: u64,
    pub(super) history: u64,
}

impl LogStart {
    pub(super) fn of(lease_state: &LeaseState) -> Self {
        let history = lease_state.histories.last().map_or(0, |history| history.id);
        Self { after: lease_state.revision, history }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SnapshotFile {
    Missing,
    Empty,
    /// `marked`: the log beside it has a [`LogStart`].
    Read {
        marked: bool,
    },
}

pub(super) struct LogCheck<'a> {
    log: &'a Path,
    snapshot: SnapshotFile,
    end: u64,
    histories: Vec<ServerRun>,
    last: Option<u64>,
}

impl<'a> LogCheck<'a> {
    /// `log`: whether it has no complete record, and its first record; `None` when it is missing.
    pub(super) fn new(
        path: &'a Path,
        snapshot: SnapshotFile,
        log: Option<(bool, Option<LogStart>)>,
        lease_state: &LeaseState,
    ) -> Result<Self, OpenError> {
        let (end, histories) = (lease_state.revision, lease_state.histories.to_vec());
        let mut check = Self { log: path, snapshot, end, histories, last: None };
        match (log, snapshot) {
            // The directory is new.
            (None, SnapshotFile::Missing) => {}
            (None, _) => return Err(check.mismatch("it is missing")),
            (Some((true, _)), SnapshotFile::Read { marked: false }) => {}
            (Some((true, _)), _) => {
                return Err(check.mismatch("it is empty, which the server never leaves it"));
            }
            (Some((false, None)), _) => {}
            (Some((false, Some(start))), _) => check.begin(start)?,
        }
        Ok(check)
    }

    fn begin(&mut self, start: LogStart) -> Result<(), OpenError> {
        let LogStart { after, history } = start;
        self.check_begin(after)?;
        let known = self.histories.iter().any(|known| known.id == history);
        // Older histories may have been forgotten.
        if history != 0 && !known && self.histories.len() < MAX_HISTORIES {
            return Err(self.mismatch("it is of another history than the snapshot"));
        }
        self.last = Some(after);
        Ok(())
    }

    fn check_begin(&self, after: u64) -> Result<(), OpenError> {
        if after > self.end {
            return Err(self.mismatch(&format!("it continues revision {after}")));
        }
        Ok(())
    }

    pub(super) fn check(&mut self, commit: &Commit) -> Result<(), OpenError> {
        let revision = commit.revision;
        match self.last {
            None => self.check_begin(revision.saturating_sub(1))?,
            Some(last) if revision != last + 1 => {
                return Err(self.mismatch(&format!("revision {revision} follows {last} in it")));
            }
            Some(_) => {}
        }
        self.last = Some(revision);
        let remembered = self.histories.first().is_some_and(|first| revision >= first.since);
        let foreign = |change: &Change| {
            let Change::Start { history, .. } = change else { return false };
            !self.histories.contains(&ServerRun { id: *history, since: revision })
        };
        if revision <= self.end && remembered && commit.changes.iter().any(foreign) {
            return Err(self.mismatch("it is of another history than the snapshot"));
        }
        Ok(())
    }

    pub(super) fn finish(&self) -> Result<(), OpenError> {
        match self.last {
            Some(last) if last < self.end => {
                Err(self.mismatch(&format!("it ends at revision {last}")))
            }
            _ => Ok(()),
        }
    }

    fn mismatch(&self, log: &str) -> OpenError {
        let beside = match self.snapshot {
            SnapshotFile::Missing => "there is no snapshot beside it".to_owned(),
            SnapshotFile::Empty => "the snapshot beside it is empty".to_owned(),
            SnapshotFile::Read { .. } => {
                format!("the snapshot beside it is of revision {}", self.end)
            }
        };
        OpenError::Mismatch { path: self.log.to_owned(), reason: format!("{log}, and {beside}") }
    }
}
