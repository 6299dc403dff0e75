//! Commands of the network config: how one is run, and the applier that runs those that are wanted.

#![forbid(unsafe_code)]

mod command;
mod expand;
mod runner;

pub use command::run;
pub use runner::CommandRunner;
