//! Entries of the extension backend: an operator's command that has been run, and the command that undoes it.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use flannel_common::Secret;
use flannel_wanted::{Importance, KeyedEntry};

/// A command with its variables, its input and its time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Name of the command in the network config.
    pub name: &'static str,
    pub line: String,
    pub form: Form,
    /// Environment variables for it, besides those of this process.
    pub variables: Vec<(&'static str, String)>,
    /// Standard input, to which a newline is added. Never shown: it may be a key.
    pub input: Secret,
    pub limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Split at white space, variables expanded in every word, and run without a shell.
    Direct,
    /// Run by `sh -c`.
    Shell,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub key: HookKey,
    /// Command that runs when the hook is wanted, and again when it has changed.
    pub run: Option<Command>,
    /// Command that runs when the hook is no longer wanted; the network's also runs when the daemon ends.
    pub undo: Option<Command>,
}

/// Key of a hook. Hooks run in this order, and are undone in reverse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookKey {
    /// The hook of the network, for which those of peers wait.
    Network,
    Peer(String),
}

impl Hook {
    pub fn call(key: &HookKey, command: &Command) -> String {
        match key {
            HookKey::Network => command.name.to_owned(),
            HookKey::Peer(subnet) => format!("{} of {subnet}", command.name),
        }
    }
}

impl fmt::Display for HookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network => f.write_str("the network"),
            Self::Peer(subnet) => write!(f, "peer {subnet}"),
        }
    }
}

impl KeyedEntry for Hook {
    type Key = HookKey;
    /// What commands need is not known.
    type Device = Infallible;

    fn key(&self) -> HookKey {
        self.key.clone()
    }

    fn describe(&self) -> String {
        match &self.run {
            Some(command) => Self::call(&self.key, command),
            None => self.key.to_string(),
        }
    }

    fn kind(&self) -> &'static str {
        "command"
    }

    fn importance(&self) -> Importance {
        match self.key {
            HookKey::Network => Importance::Foundation,
            HookKey::Peer(_) => Importance::Ordinary,
        }
    }
}
