//! Commands that an operator has written into the network config, as data; and how one is run.

#![forbid(unsafe_code)]

mod command;
mod expand;

pub use command::{Command, CommandError, Form};
