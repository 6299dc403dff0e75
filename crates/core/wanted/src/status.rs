//! Status of an applier: how the world compares with what is wanted of it.

use std::fmt;

use flannel_state::{Finding, Layer};

use crate::{Importance, KeyedEntry, Requester, Wanted};

/// Number of problems that a status lists: an operator reads the first few, the rest is only counted.
const LISTED_PROBLEMS: usize = 100;

/// Status of an applier. It holds descriptions instead of entries, which may hold secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub wanted: usize,
    /// Entries wanted by more than one requester in different versions.
    pub contested: usize,
    pub bad: usize,
    /// The first of those entries, and why they are not as wanted.
    pub problems: Vec<Problem>,
    /// What others do that cuts pods off although every entry is as wanted, and that is not ours to undo.
    pub hazards: Vec<Finding>,
    /// How often the event queue overflowed, so that everything was compared.
    pub overflows: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub entry: String,
    pub requester: String,
    pub reason: String,
    pub importance: Importance,
    /// Kind of failure; `None` for an entry that is about to be written for the first time.
    pub failure: Option<FailureKind>,
}

/// Why an entry is not as wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    Refused,
    /// Another process undoes the entry again and again.
    FoughtOver,
}

impl Problem {
    pub fn finding(&self) -> Finding {
        let fix = match self.failure {
            None => "wait: it is about to be written; `flannelctl diff` shows what is missing",
            Some(FailureKind::FoughtOver) => {
                "stop whoever does that (`flannelctl events --follow` shows what is undone, and by which process where \
                 the kernel tells), then `flannelctl repair`"
            }
            Some(FailureKind::Refused) => {
                "correct what it names, then `flannelctl repair`; `flannelctl diff` shows what is there instead"
            }
        };
        let about = format!("{}, for {}", self.entry, self.requester);
        Finding::broken(Layer::Entries, about, &self.reason, fix)
    }
}

impl Status {
    pub fn of<S: Requester, E: KeyedEntry>(wanted: &Wanted<S, E>) -> Self {
        let problems = wanted.problems().take(LISTED_PROBLEMS).map(|slot| Problem {
            entry: slot.entry.describe(),
            requester: wanted.requesters.who(slot.requester).to_string(),
            reason: slot.reason(),
            importance: slot.entry.importance(),
            failure: slot.failure(),
        });
        Self {
            wanted: wanted.len(),
            contested: wanted.contested(),
            bad: wanted.bad(),
            problems: problems.collect(),
            ..Self::default()
        }
    }

    pub fn is_settled(&self) -> bool {
        self.bad == 0
    }

    /// Whether nothing is missing but refused entries that are optional.
    pub fn has_all_needed(&self) -> bool {
        let is_refused = |problem: &&Problem| problem.failure == Some(FailureKind::Refused);
        let optional = self.problems.iter().filter(|it| it.importance == Importance::Optional);
        self.bad == optional.filter(is_refused).count()
    }

    /// Combines two statuses, `self` first, with problems in order of importance.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let Self { wanted, contested, bad, problems, hazards, overflows } = other;
        self.wanted += wanted;
        self.contested += contested;
        self.bad += bad;
        self.problems.extend(problems);
        self.problems.sort_by_key(|problem| problem.importance);
        self.problems.truncate(LISTED_PROBLEMS);
        self.hazards.extend(hazards);
        self.overflows += overflows;
        self
    }
}

/// Writes a line for the log: the number of entries, and the first problem.
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
