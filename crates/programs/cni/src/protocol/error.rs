//! An error as a runtime reads it: a code of the CNI specification and a sentence.

use std::fmt;

use serde::Serialize;

use super::FieldError;
use super::go_json::indented;

/// The specification's well-known codes; 100 and above are a plugin's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    IncompatibleVersion = 1,
    UnknownContainer = 3,
    InvalidEnvironment = 4,
    Io = 5,
    Decoding = 6,
    InvalidConfig = 7,
    InvalidNetns = 8,
    TryAgainLater = 11,
    /// STATUS: an ADD would fail now.
    NotAvailable = 50,
    /// What the reference says for everything else.
    Internal = 999,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{msg}{}{details}", if .details.is_empty() { "" } else { "; " })]
pub struct Error {
    pub code: u32,
    pub msg: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Error {
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        Self { code: code as u32, msg: msg.into(), details: String::new() }
    }

    pub fn internal(msg: impl fmt::Display) -> Self {
        Self::new(Code::Internal, msg.to_string())
    }

    /// What the configuration says cannot be.
    pub fn config(msg: impl Into<String>) -> Self {
        Self::new(Code::InvalidConfig, msg)
    }

    pub fn not_chained() -> Self {
        Self::config("must be called as chained plugin")
    }

    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// The same error with what was attempted before it.
    #[must_use]
    pub fn context(mut self, attempted: impl fmt::Display) -> Self {
        self.msg = format!("{attempted}: {}", self.msg);
        self
    }

    /// As STATUS says it.
    #[must_use]
    pub fn not_available(self) -> Self {
        Self::new(Code::NotAvailable, self.to_string())
    }

    /// Whether it is the configuration that is wrong, which was seen before anything was done.
    pub fn is_refusal(&self) -> bool {
        self.code == Code::InvalidConfig as u32
    }

    pub fn to_json(&self) -> String {
        indented(self)
    }
}

impl From<FieldError> for Error {
    fn from(error: FieldError) -> Self {
        Self::config(error.to_string())
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// [`Error::internal`] of a formatted message.
macro_rules! internal {
    ($($message:tt)*) => { $crate::protocol::Error::internal(format_args!($($message)*)) };
}
pub(crate) use internal;

/// `result.or_cni("could not …")`: any error of ours becomes the runtime's.
pub trait ErrorContext<T> {
    fn or_cni(self, attempted: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> ErrorContext<T> for Result<T, E> {
    fn or_cni(self, attempted: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error::internal(format!("{attempted}: {error}")))
    }
}
