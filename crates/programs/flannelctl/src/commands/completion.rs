//! `flannelctl completion` and `flannelctl man`, made from the command line itself, so that they are true of it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;

use crate::called_as;

/// Completion for a shell, on the standard output
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// bash: flannelctl completion bash > /etc/bash_completion.d/flannelctl
    shell: Shell,
}

impl CompletionArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut command = called_as().command();
        let name = command.get_name().to_owned();
        // The generator panics where it cannot write: a reader may close the pipe.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        std::io::stdout().write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Man pages, one for each command
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to put them, such as /usr/local/share/man/man1
    directory: PathBuf,
}

impl ManArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let command = called_as().command().disable_help_subcommand(true);
        std::fs::create_dir_all(&self.directory)
            .and_then(|()| clap_mangen::generate_to(command, &self.directory))
            .with_context(|| format!("write man pages to {}", self.directory.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
