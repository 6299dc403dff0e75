//! What can be wrong with a command line or an environment, and what is remarked without stopping.
//! Neither ever holds the value of an argument that could be a password.

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
    /// 2 when the command line cannot be read. A value that cannot be used ends like every other failed start.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            _ => 2,
        }
    }
}

/// A value that was given and cannot be used: where it came from and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value {value:?} for {origin}: {fix}")]
pub struct BadValue {
    /// `flag -iptables-resync`, or the variable `FLANNELD_IPTABLES_RESYNC`.
    pub origin: String,
    pub value: String,
    pub fix: String,
}

/// Something odd that does not keep the daemon from starting; for the log, once that exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Remark {
    #[error("{0}; the variable is ignored")]
    BadVariable(BadValue),
    #[error("{0} is not UTF-8 text; the variable is ignored")]
    VariableNotText(String),
    #[error("no flag reads {name}; the variable is ignored{}", did_you_mean("", .nearest.as_deref()))]
    UnknownVariable { name: String, nearest: Option<String> },
    /// Words that Go's syntax leaves unread. Not shown themselves: one may be a password.
    #[error("ignored at the end of the command line: {count} {}", ignored(*.count, .after, *.boolean))]
    WordsIgnored { after: Option<String>, count: usize, boolean: bool },
}

impl Remark {
    pub fn log(&self) {
        match self {
            Self::BadVariable(_) | Self::VariableNotText(_) => tracing::error!("{self}"),
            Self::UnknownVariable { .. } | Self::WordsIgnored { .. } => tracing::warn!("{self}"),
        }
    }
}

fn ignored(count: usize, after: &Option<String>, boolean: bool) -> String {
    let words = if count == 1 { "word" } else { "words" };
    match after {
        Some(after) if boolean => {
            format!("{words} after -{after} (a boolean flag takes its value as -{after}=false)")
        }
        Some(after) => format!("{words} after -{after}"),
        None => words.to_owned(),
    }
}

fn did_you_mean(dash: &str, nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(" (did you mean {dash}{name}?)"))
}

fn suggestion(nearest: &Option<&'static str>) -> String {
    match nearest {
        Some(name) => did_you_mean("-", Some(name)),
        None => " (-help lists all flags)".to_owned(),
    }
}
