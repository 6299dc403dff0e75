//! What a check has to say.

use serde::Serialize;

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
    /// Worth knowing, nothing to do.
    Note,
    /// It may go wrong, or has and was mended.
    Warning,
    /// Pods are cut off by it, or will be.
    Broken,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) subject: &'static str,
    pub(crate) severity: Severity,
    pub(crate) what: String,
    /// Why it matters.
    pub(crate) why: String,
    /// The command that mends it; empty if there is nothing to mend.
    pub(crate) fix: String,
}

impl Finding {
    pub(crate) fn broken(
        subject: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (what, why, fix) = (what.into(), why.into(), fix.into());
        Self { subject, severity: Severity::Broken, what, why, fix }
    }

    pub(crate) fn warning(
        subject: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, ..Self::broken(subject, what, why, fix) }
    }

    pub(crate) fn note(
        subject: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Note, ..Self::broken(subject, what, why, "") }
    }
}
