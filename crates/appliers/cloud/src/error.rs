//! Errors of a cloud, by what can be done about them.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Denied,
    Credentials,
    /// Too many requests: the provider is left alone for a while.
    Throttled,
    NotFound,
    Exists,
    Limit,
    /// It may work next time without anybody's action.
    Temporary,
    Refused,
}

pub type Result<T, E = CloudError> = std::result::Result<T, E>;

/// An error for people: what was attempted, why it failed, and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{attempt}: {why}{}", .fix.as_ref().map(|fix| format!("; {fix}")).unwrap_or_default())]
pub struct CloudError {
    pub fault: Fault,
    attempt: String,
    why: String,
    fix: Option<String>,
    pub(crate) retry_after: Option<Duration>,
}

const MAX_SHOWN_CHARS: usize = 300;

impl CloudError {
    pub(crate) fn new(fault: Fault, attempt: impl Into<String>, why: &str) -> Self {
        // One line, and not all of it.
        let words: Vec<&str> = why.split_whitespace().collect();
        let why = words.join(" ").chars().take(MAX_SHOWN_CHARS).collect();
        Self { fault, attempt: attempt.into(), why, fix: None, retry_after: None }
    }

    #[must_use]
    pub(crate) fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// The fix where a table is full. `quota`: how the provider calls it.
    pub(crate) fn full_table_fix(quota: &str) -> String {
        format!(
            "raise the quota {quota}, remove routes that are not used, or use a backend without routes in the cloud \
             (vxlan)"
        )
    }

    /// Adds the server's wish to be asked later. One that gives no other reason is throttling.
    #[must_use]
    pub(crate) fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        if self.fault == Fault::Temporary && wait.is_some() {
            self.fault = Fault::Throttled;
        }
        self
    }

    pub(crate) fn temporary(attempt: impl Into<String>, why: &str) -> Self {
        Self::new(Fault::Temporary, attempt, why)
    }
}
