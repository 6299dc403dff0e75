//! A cloud's refusals, by what can be done about them.

use std::fmt;
use std::time::Duration;

/// What kind of no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// We are known, and may not do this.
    Denied,
    /// There are no credentials, or they are not taken.
    Credentials,
    /// Too much is asked of the provider: all is left alone for a while.
    Throttled,
    /// What it is about is not there.
    NotFound,
    /// It is there already.
    Exists,
    /// The table is full.
    Limit,
    /// It may go better next time without anybody's doing.
    Temporary,
    /// Something is wrong with what was asked.
    Refused,
}

/// For people: what was attempted, what came of it, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudError {
    pub fault: Fault,
    attempt: String,
    why: String,
    fix: Option<String>,
    retry_after: Option<Duration>,
}

/// So much of what a provider says is shown.
const MOST_SHOWN: usize = 300;

impl CloudError {
    pub(crate) fn new(fault: Fault, attempt: impl Into<String>, why: &str) -> Self {
        // In one line, and not all of it.
        let words: Vec<&str> = why.split_whitespace().collect();
        let why = words.join(" ").chars().take(MOST_SHOWN).collect();
        Self { fault, attempt: attempt.into(), why, fix: None, retry_after: None }
    }

    #[must_use]
    pub(crate) fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// What the server has said of when to ask again. One that says so and has no other reason is asked too much.
    #[must_use]
    pub(crate) fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        if self.fault == Fault::Temporary && wait.is_some() {
            self.fault = Fault::Throttled;
        }
        self
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    pub(crate) fn temporary(attempt: impl Into<String>, why: &str) -> Self {
        Self::new(Fault::Temporary, attempt, why)
    }
}

impl fmt::Display for CloudError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempt, why, fix, .. } = self;
        write!(f, "{attempt}: {why}")?;
        fix.as_ref().map_or(Ok(()), |fix| write!(f, "; {fix}"))
    }
}

impl std::error::Error for CloudError {}
