//! `flannelctl`: what people type.

mod commands;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;

use commands::Command;

/// Look at flannel, and try it out.
#[derive(Debug, Parser)]
#[command(name = "flannelctl", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run() {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "flannelctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Who reads our output may stop reading: that is not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
