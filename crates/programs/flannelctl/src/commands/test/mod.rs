//! `flannelctl test`: what is tried out, and not only looked at.

mod choice;
mod connectivity;
mod junit;
mod report;

use std::process::ExitCode;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum TestCommand {
    /// Whether pods of every node reach those of every other
    Connectivity(connectivity::ConnectivityArgs),
}

impl TestCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Self::Connectivity(args) = self;
        args.run()
    }
}
