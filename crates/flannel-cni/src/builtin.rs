//! The plugins that need no program of their own.

use crate::protocol::{Call, Command, Conf, Error, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {}

impl BuiltIn {
    pub fn of_kind(_kind: &str) -> Option<Self> {
        None
    }

    /// `retried`: an earlier ADD of this attachment may have been cut short.
    pub fn add(self, _call: &Call, _retried: bool) -> Result<Outcome, Error> {
        match self {}
    }

    /// Every command but ADD.
    pub fn run(self, _call: &Call) -> Result<(), Error> {
        match self {}
    }
}

/// The same request for another plugin, with the configuration meant for it.
pub fn call(call: &Call, command: Command, conf: &str) -> Result<Call, Error> {
    Ok(Call { command, conf: Conf::parse(conf.as_bytes())?, ..call.clone() })
}
