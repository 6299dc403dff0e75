//! `flannelctl test`: what is tried out, and not only looked at.

mod choice;
mod connectivity;
mod junit;
mod report;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Try out whether the network does what it is for
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Whether pods of every node reach those of every other
    Connectivity(connectivity::ConnectivityArgs),
}

impl TestArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Connectivity(args) => args.run(),
        }
    }
}
