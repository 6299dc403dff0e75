//! `flannelctl`: what people type. As `kubectl-flannel` it is a plugin of kubectl.

mod commands;
mod grouped_help;

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use commands::{Command, Usage};
use flannel_cli::is_broken_pipe;

/// Looks at flannel, finds what is wrong with it, and tries it out.
#[derive(Debug, Parser)]
#[command(name = "flannelctl", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalledAs {
    Flannelctl,
    /// `kubectl flannel`: kubectl runs a program of this name.
    KubectlPlugin,
}

impl CalledAs {
    fn by(program: Option<&OsStr>) -> Self {
        match program.and_then(|program| Path::new(program).file_stem()) {
            // kubectl looks for both, and dashes in a command's name are underscores there.
            Some(name) if name == "kubectl-flannel" || name == "kubectl_flannel" => {
                Self::KubectlPlugin
            }
            _ => Self::Flannelctl,
        }
    }

    pub(crate) fn command(self) -> clap::Command {
        let command = grouped_help::of(Cli::command());
        match self {
            Self::Flannelctl => command,
            Self::KubectlPlugin => command.name("kubectl-flannel").bin_name("kubectl flannel"),
        }
    }

    /// The cluster that kubectl would ask, for commands that ask one.
    pub(crate) fn kubeconfig(self) -> Option<PathBuf> {
        if self != Self::KubectlPlugin {
            return None;
        }
        let named = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty());
        let first = named.as_ref().and_then(|paths| std::env::split_paths(paths).next());
        first.or_else(|| {
            let home = std::env::var_os("HOME").map(PathBuf::from);
            home.map(|home| home.join(".kube/config")).filter(|file| file.exists())
        })
    }
}

pub(crate) fn called_as() -> CalledAs {
    CalledAs::by(std::env::args_os().next().as_deref())
}

fn main() -> ExitCode {
    let matches = called_as().command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command.run() {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "flannelctl: {error:#}");
            if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_answers_by_its_name() {
        let by = |name: &str| CalledAs::by(Some(OsStr::new(name)));
        assert_eq!(by("/usr/local/bin/kubectl-flannel"), CalledAs::KubectlPlugin);
        assert_eq!(by("flannelctl"), CalledAs::Flannelctl);
        assert_eq!(CalledAs::by(None), CalledAs::Flannelctl);
    }

    /// That all commands and flags go together.
    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
