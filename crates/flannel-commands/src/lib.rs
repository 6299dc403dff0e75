//! Commands that an operator has written into the network config: as data, how one is run, and the applier
//! that runs those that are wanted.

#![forbid(unsafe_code)]

mod command;
mod expand;
mod hook;
mod runner;

pub use command::{Command, CommandError, Form};
pub use hook::{Hook, HookKey};
pub use runner::CommandRunner;
