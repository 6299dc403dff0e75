//! One file or directory per subcommand, each with a `run` that says how the process ends.

mod cleanup;
mod ipam;
mod lab;

use std::process::ExitCode;

use clap::Subcommand;

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Try flannel out: nodes as network namespaces on this machine
    Lab(lab::LabArgs),
    /// Look after the addresses that pods were given on this node
    Ipam(ipam::IpamArgs),
    /// Remove everything that flannel has made on this node: rules, devices, routes, subnet.env
    Cleanup(cleanup::CleanupArgs),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Lab(args) => args.run(),
            Self::Ipam(args) => args.run(),
            Self::Cleanup(args) => args.run(),
        }
    }
}
