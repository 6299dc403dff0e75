//! `flannel-lab`: a lab that lives on after the command, owned by a supervisor in the background.
//!
//! `up` starts the supervisor (`serve`, a hidden subcommand of the same program), which owns the lab
//! and listens on a socket; every other command asks it. If the supervisor dies the lab is gone, and
//! only its directory under `/run/flannel-lab` is left, which the next `up` or `down` clears.

mod client;
mod down;
mod exec;
mod fault;
mod logs;
mod place;
mod protocol;
mod requests;
mod serve;
mod state;
mod status;
mod up;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use flannel_cli::is_broken_pipe;

use self::state::LabName;

/// Tries flannel out: nodes on this machine, each a network namespace, with a private etcd and a flanneld on every one.
#[derive(Debug, Parser)]
#[command(name = "flannel-lab", version)]
struct Cli {
    /// Which lab: several can run side by side
    #[arg(long, global = true, default_value = "default")]
    name: LabName,

    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Start a lab and show who reaches whom
    Up(Box<up::Up>),
    /// Remove a lab and everything in it
    Down,
    /// Show the nodes, their subnets and daemons, and who reaches whom
    Status,
    /// Run a command on a node, in a pod or beside etcd
    Exec(exec::Exec),
    /// Break something: cables, partitions, daemons, etcd, kernel entries
    #[command(subcommand)]
    Fault(fault::Fault),
    /// Show what a daemon has logged
    Logs(logs::Logs),
    /// Own a lab in the background
    #[command(hide = true)]
    Serve,
}

impl Cli {
    fn run(self) -> anyhow::Result<ExitCode> {
        let name = self.name;
        match self.command {
            LabCommand::Up(up) => up.run(&name),
            LabCommand::Down => down::run(&name),
            LabCommand::Status => status::run(&name),
            LabCommand::Exec(exec) => exec.run(&name),
            LabCommand::Fault(fault) => fault::run(&name, fault),
            LabCommand::Logs(logs) => logs.run(&name),
            LabCommand::Serve => serve::run(&name),
        }
    }
}

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "flannel-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn commands_and_flags_go_together() {
        Cli::command().debug_assert();
    }
}
