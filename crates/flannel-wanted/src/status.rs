//! How the world compares with what is wanted of it.

use std::fmt;

use crate::{KeyedEntry, Wanted};

/// How many problems a status lists: an operator reads the first few, the rest is a number.
const LISTED_PROBLEMS: usize = 100;

/// In words, not in entries: whatever an entry holds, nothing of it is here but what it says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub wanted: usize,
    /// Entries wanted by more than one requester in different versions.
    pub contested: usize,
    /// How many entries are not as wanted.
    pub bad: usize,
    /// The first of them, and why.
    pub problems: Vec<Problem>,
    /// What others do that keeps pods apart though all is as wanted, and is not ours to undo; with the
    /// remedy, for people.
    pub hazards: Vec<String>,
    /// How often there was more to hear of than could be queued, so that all was compared.
    pub overflows: u64,
}

/// An entry that is not as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// As the entry describes itself.
    pub entry: String,
    pub reason: String,
    /// All others depend on it: without it no peer is reached.
    pub is_foundation: bool,
    /// What is the matter with it; `None` for what is about to be written for the first time.
    pub failure: Option<FailureKind>,
}

/// Why an entry does not come to be as wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// It was tried, and refused.
    Refused,
    /// Somebody else undoes it again and again.
    FoughtOver,
}

impl Status {
    pub fn of<S: Ord + Clone, E: KeyedEntry>(wanted: &Wanted<S, E>) -> Self {
        let problems = wanted.problems().take(LISTED_PROBLEMS).map(|slot| Problem {
            entry: slot.entry.describe(),
            reason: slot.reason(),
            is_foundation: slot.entry.is_foundation(),
            failure: slot.failure(),
        });
        Self {
            wanted: wanted.len(),
            contested: wanted.contested(),
            bad: wanted.bad(),
            problems: problems.collect(),
            hazards: Vec::new(),
            overflows: 0,
        }
    }

    pub fn is_settled(&self) -> bool {
        self.bad == 0
    }

    /// Both together, `self` first.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let Self { wanted, contested, bad, problems, hazards, overflows } = other;
        self.wanted += wanted;
        self.contested += contested;
        self.bad += bad;
        self.problems.extend(problems);
        self.problems.truncate(LISTED_PROBLEMS);
        self.hazards.extend(hazards);
        self.overflows += overflows;
        self
    }
}

/// As it is said in a log: how many entries, and what is wrong with the first that is not as wanted.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.wanted)?;
        if self.bad > 0 {
            write!(f, ", {} still to come", self.bad)?;
        }
        self.problems.first().map_or(Ok(()), |problem| write!(f, " ({problem})"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.entry, self.reason)
    }
}
