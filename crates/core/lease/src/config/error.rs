//! Errors of a network config: the member, its value, and what to write instead.

/// Shown to an operator as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error(
        "the network config cannot be read ({detail}): it must be one JSON object, for example {}",
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#
    )]
    Syntax { detail: String },
    #[error("{key} is missing: {fix}")]
    Missing { key: String, fix: String },
    #[error("{key} {value} {problem}: {fix}")]
    Invalid { key: String, value: String, problem: String, fix: String },
    #[error("no address family is enabled: set EnableIPv4 or EnableIPv6 to true")]
    NoFamily,
}

impl ConfigError {
    pub fn invalid(
        key: impl Into<String>,
        value: impl ToString,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            key: key.into(),
            value: value.to_string(),
            problem: problem.into(),
            fix: fix.into(),
        }
    }

    pub fn missing(key: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Missing { key: key.into(), fix: fix.into() }
    }
}
