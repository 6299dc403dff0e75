//! What can go wrong in a lab, told so that the reader knows what to do next.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// The result of everything a lab does.
pub type Result<T, E = LabError> = std::result::Result<T, E>;

/// Why the lab could not do what it was asked.
#[derive(Error)]
#[non_exhaustive]
pub enum LabError {
    /// Namespaces need privileges.
    #[error("the lab makes network namespaces and must run as root (try sudo)")]
    NotRoot,

    /// A program of the system is not installed.
    #[error("`{tool}` is not installed: {hint}")]
    MissingTool {
        /// The program's name.
        tool: &'static str,
        /// How to get it.
        hint: &'static str,
    },

    /// A program that the lab runs on nodes was not found.
    #[error("no `{name}` binary found; looked at {looked}; {hint}")]
    MissingBinary {
        /// The binary's name.
        name: &'static str,
        /// All places that were tried.
        looked: String,
        /// How to get it.
        hint: &'static str,
    },

    /// A path was given that is not a program.
    #[error("{path}: not an executable file", path = path.display())]
    NotExecutable {
        /// The path as given.
        path: PathBuf,
    },

    /// The lab that was asked for cannot exist.
    #[error("{0}")]
    Spec(String),

    /// There is no node of that number.
    #[error("no node {number}: the lab has nodes 1 to {nodes}")]
    NoSuchNode {
        /// The number asked for.
        number: u16,
        /// How many there are.
        nodes: u16,
    },

    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted, on what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },

    /// A command ran and failed.
    #[error("{place}: `{command}` failed ({status}): {stderr}")]
    Command {
        /// Where it ran.
        place: String,
        /// What ran.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        stderr: String,
    },

    /// A command did not end in time and was killed.
    #[error("{place}: `{command}` did not end within {limit:?} and was killed")]
    CommandTimeout {
        /// Where it ran.
        place: String,
        /// What ran.
        command: String,
        /// How long it had.
        limit: Duration,
    },

    /// Something awaited did not happen.
    #[error("waited {waited:.1?} for {what}; last seen: {state}{logs}")]
    Timeout {
        /// What was awaited.
        what: String,
        /// For how long.
        waited: Duration,
        /// What the last look saw.
        state: String,
        /// The ends of the daemons' logs.
        logs: String,
    },

    /// A daemon ended although it should run.
    #[error("{what} ended ({status}); the end of its log:\n{log}")]
    DaemonDied {
        /// Which one.
        what: String,
        /// How it ended.
        status: String,
        /// Its last lines.
        log: String,
    },

    /// Nothing came back.
    #[error("{from} does not reach {to}: {reason}")]
    Unreachable {
        /// Who asked.
        from: String,
        /// Who should have answered.
        to: String,
        /// What was seen instead.
        reason: String,
    },

    /// A transfer arrived wrong or not at all.
    #[error("transfer from {from} to {to}: {reason}")]
    Transfer {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
        /// What was wrong.
        reason: String,
    },

    /// The store refused or did not answer.
    #[error("etcd: {attempt}: {reason}")]
    Store {
        /// What was attempted.
        attempt: String,
        /// What came back.
        reason: String,
    },

    /// This kernel or system lacks something.
    #[error("{what} needs {needs}")]
    Unsupported {
        /// What was attempted.
        what: String,
        /// What is missing.
        needs: String,
    },
}

/// As people read it, because that is what a failing test shows.
impl fmt::Debug for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Adds what was attempted to an error of the system.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| LabError::System { what: what(), source: error.into() })
    }
}
