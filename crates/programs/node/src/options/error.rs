//! What can be wrong with a command line or an environment, and what is remarked without stopping.
//! Neither ever holds the value of an argument that could be a password.

use std::fmt;

/// A reason not to start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("argument {0} is not UTF-8 text, which every flag and value must be")]
    NotText(usize),
    #[error("bad flag syntax: {0}: write -name or -name=value")]
    Syntax(String),
    #[error("flag provided but not defined: -{name}{}", suggestion(.nearest))]
    Unknown { name: String, nearest: Option<&'static str> },
    #[error("flag needs an argument: -{0}")]
    NeedsArgument(&'static str),
    /// The text is not a value of the flag's kind.
    #[error("{0}")]
    Malformed(BadValue),
    /// The value is one of the kind, but nothing the daemon could do.
    #[error("{0}")]
    Refused(BadValue),
}

impl UsageError {
    /// 2 when the command line cannot be read. A value that can be read but not used ends like
    /// every other failed start, as it did in the reference.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            _ => 2,
        }
    }
}

/// A value that was given and cannot be used: where it came from and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadValue {
    /// `flag -iptables-resync`, or the variable `FLANNELD_IPTABLES_RESYNC`.
    pub origin: String,
    pub value: String,
    pub fix: String,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, value, fix } = self;
        write!(f, "invalid value {value:?} for {origin}: {fix}")
    }
}

/// Something odd that does not keep the daemon from starting; for the log, once that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// The flag keeps its default.
    BadVariable(BadValue),
    VariableNotText(String),
    UnknownVariable {
        name: String,
        nearest: Option<String>,
    },
    /// Words that Go's syntax leaves unread. Not shown themselves: one may be a password.
    WordsIgnored {
        after: Option<String>,
        count: usize,
        boolean: bool,
    },
}

impl Remark {
    pub fn log(&self) {
        match self {
            Self::BadVariable(_) | Self::VariableNotText(_) => tracing::error!("{self}"),
            Self::UnknownVariable { .. } | Self::WordsIgnored { .. } => tracing::warn!("{self}"),
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadVariable(bad) => write!(f, "{bad}; the variable is ignored"),
            Self::VariableNotText(name) => {
                write!(f, "{name} is not UTF-8 text; the variable is ignored")
            }
            Self::UnknownVariable { name, nearest } => {
                write!(f, "no flag reads {name}; the variable is ignored")?;
                nearest.iter().try_for_each(|nearest| write!(f, " (did you mean {nearest}?)"))
            }
            Self::WordsIgnored { after, count, boolean } => {
                let words = if *count == 1 { "word" } else { "words" };
                write!(f, "ignored at the end of the command line: {count} {words}")?;
                let Some(after) = after else { return Ok(()) };
                write!(f, " after -{after}")?;
                if *boolean {
                    write!(f, " (a boolean flag takes its value as -{after}=false)")?;
                }
                Ok(())
            }
        }
    }
}

fn suggestion(nearest: &Option<&'static str>) -> String {
    match nearest {
        Some(name) => format!(" (did you mean -{name}?)"),
        None => " (-help lists all flags)".to_owned(),
    }
}
