//! A command that is wanted to have been run, and the one that undoes it.

use std::convert::Infallible;
use std::fmt;

use flannel_wanted::KeyedEntry;

use crate::Command;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub key: HookKey,
    /// Run when the hook is wanted, and again when it is another.
    pub run: Option<Command>,
    /// Run when it is no longer wanted; the network's also runs when the daemon ends.
    pub undo: Option<Command>,
}

/// In the order in which they are run; they are undone in reverse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookKey {
    /// Those of peers wait for it.
    Network,
    /// By the peer's subnet.
    Peer(String),
}

impl Hook {
    /// As people are told of one of its commands.
    pub(crate) fn call(key: &HookKey, command: &Command) -> String {
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
    /// What commands stand on is not known.
    type Device = Infallible;

    fn key(&self) -> HookKey {
        self.key.clone()
    }

    fn devices(&self) -> impl Iterator<Item = Infallible> {
        std::iter::empty()
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

    fn is_foundation(&self) -> bool {
        self.key == HookKey::Network
    }
}
