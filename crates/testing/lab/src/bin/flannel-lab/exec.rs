//! `lab exec`: a command inside, with our terminal and its exit status.

use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::client;
use crate::place::PlaceName;
use crate::protocol::{Answer, Request};
use crate::state::LabName;

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Where: `1` or `node1`, `pod1`, `etcd`, `switch`
    #[arg(value_name = "NODE|podN|etcd")]
    place: PlaceName,

    /// What to run; a shell if nothing is given
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(self, name: &LabName) -> anyhow::Result<ExitCode> {
        let answer = client::ask(name, &Request::Enter(self.place.clone()))?;
        let Answer::Enter(namespace) = answer else { bail!("an answer to another question") };
        let working_dir = std::env::current_dir();
        namespace.enter()?;

        let shell = [std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into())];
        let (program, arguments) = match self.command.split_first() {
            Some(split) => split,
            None => (&shell[0], &[][..]),
        };
        let mut command = Command::new(program);
        command.args(arguments).env("FLANNEL_LAB_PLACE", self.place.label());
        if let Ok(dir) = working_dir.as_ref()
            && dir.is_dir()
        {
            command.current_dir(dir);
        }
        end_with_us(&mut command);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                writeln!(io::stderr(), "flannel-lab: run `{program}`: {error}")?;
                // As a shell has it: not found, or not executable.
                let missing = error.kind() == io::ErrorKind::NotFound;
                return Ok(ExitCode::from(if missing { 127 } else { 126 }));
            }
        };
        // The terminal's signals are for the command; how it ends is how we end.
        for signal in [libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: ignoring a signal runs no code of ours.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        let status = child.wait().context("wait for the command")?;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }
}

/// Has the kernel end the command when this process ends, however that happens: `timeout`, kill -9, a closed terminal.
fn end_with_us(command: &mut Command) {
    // SAFETY: a single system call between fork and exec, which allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}
