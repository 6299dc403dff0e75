//! One file or directory per subcommand, each with a `run` that says how the process ends.

mod lab;

use std::process::ExitCode;

use clap::Subcommand;

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Try flannel out: nodes as network namespaces on this machine
    Lab(lab::LabArgs),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Lab(args) => args.run(),
        }
    }
}
