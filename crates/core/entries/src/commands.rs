//! Entries of the extension backend: an operator's command that has been run, and the command that undoes it.

use std::convert::Infallible;
use std::time::Duration;

use flannel_common::Secret;
use flannel_wanted::{Importance, KeyedEntry};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
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

impl KeyedEntry for Hook {
    type Key = HookKey;
    /// What commands need is not known.
    type Device = Infallible;

    fn key(&self) -> HookKey {
        self.key.clone()
    }

    fn describe(&self) -> String {
        match (&self.run, &self.key) {
            (Some(command), key) => Self::call(key, command),
            (None, HookKey::Network) => "the network".to_owned(),
            (None, HookKey::Peer(subnet)) => format!("peer {subnet}"),
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
