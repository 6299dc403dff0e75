//! Whether a log and a snapshot belong together. A log begins where the snapshot ends, or earlier when
//! the server died between writing the one and replacing the other. If it does not, a part of what was
//! acknowledged is lost, and a server that went on would give out subnets that are in use.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::journal::OpenError;
use crate::lease_state::{Change, Commit, HISTORIES, LeaseState, ServerRun};

/// The first record of a log: which revision it goes on from, and in which history. Logs of the first
/// version of this store do not have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Beginning {
    pub(super) after: u64,
    pub(super) history: u64,
}

impl Beginning {
    pub(super) fn of(lease_state: &LeaseState) -> Self {
        let history = lease_state.histories().last().map_or(0, |history| history.id);
        Self { after: lease_state.revision(), history }
    }

    pub(super) fn to_json(self) -> serde_json::Result<String> {
        serde_json::to_string(&self)
    }

    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

/// How the snapshot was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Snapshot {
    Missing,
    Empty,
    /// `marked`: the log beside it has a [`Beginning`].
    Read {
        marked: bool,
    },
}

/// How the log was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log {
    Missing,
    /// Without a single whole record in it.
    Empty,
    Read(Option<Beginning>),
}

/// Goes through the log beside what the snapshot said.
pub(super) struct Fit<'a> {
    log: &'a Path,
    snapshot: Snapshot,
    /// What the snapshot knows of itself.
    end: u64,
    histories: Vec<ServerRun>,
    last: Option<u64>,
}

impl<'a> Fit<'a> {
    pub(super) fn new(
        path: &'a Path,
        snapshot: Snapshot,
        log: Log,
        lease_state: &LeaseState,
    ) -> Result<Self, OpenError> {
        let (end, histories) = (lease_state.revision(), lease_state.histories().to_vec());
        let mut fit = Self { log: path, snapshot, end, histories, last: None };
        match (log, snapshot) {
            // A directory in which nothing has been yet.
            (Log::Missing, Snapshot::Missing) => {}
            (Log::Missing, _) => return Err(fit.apart("it is missing")),
            (Log::Empty, Snapshot::Read { marked: false }) => {}
            (Log::Empty, _) => return Err(fit.apart("it is empty, which it never is by itself")),
            (Log::Read(None), _) => {}
            (Log::Read(Some(beginning)), _) => fit.begin(beginning)?,
        }
        Ok(fit)
    }

    fn begin(&mut self, beginning: Beginning) -> Result<(), OpenError> {
        let Beginning { after, history } = beginning;
        self.check_begin(after)?;
        let known = self.histories.iter().any(|known| known.id == history);
        // So many are remembered that older ones may have been forgotten.
        if history != 0 && !known && self.histories.len() < HISTORIES {
            return Err(self.apart("it is of another history than the snapshot"));
        }
        self.last = Some(after);
        Ok(())
    }

    fn check_begin(&self, after: u64) -> Result<(), OpenError> {
        if after > self.end {
            return Err(self.apart(&format!("it goes on from revision {after}")));
        }
        Ok(())
    }

    /// The next commit of the log.
    pub(super) fn check(&mut self, commit: &Commit) -> Result<(), OpenError> {
        let revision = commit.revision;
        match self.last {
            None => self.check_begin(revision.saturating_sub(1))?,
            Some(last) if revision != last + 1 => {
                return Err(self.apart(&format!("revision {revision} follows {last} in it")));
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
            return Err(self.apart("it is of another history than the snapshot"));
        }
        Ok(())
    }

    /// After the last commit.
    pub(super) fn finish(&self) -> Result<(), OpenError> {
        match self.last {
            Some(last) if last < self.end => {
                Err(self.apart(&format!("it ends at revision {last}")))
            }
            _ => Ok(()),
        }
    }

    fn apart(&self, log: &str) -> OpenError {
        let beside = match self.snapshot {
            Snapshot::Missing => "there is no snapshot beside it".to_owned(),
            Snapshot::Empty => "the snapshot beside it is empty".to_owned(),
            Snapshot::Read { .. } => format!("the snapshot beside it is of revision {}", self.end),
        };
        OpenError::Apart { path: self.log.to_owned(), reason: format!("{log}, and {beside}") }
    }
}
