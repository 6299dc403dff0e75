//! Runs another program to its end, feeding it and listening to it, for a bounded time.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use flannel_common::{FinishedProgram, run_program};
use rustix::process::{Signal, set_parent_process_death_signal};

const BUSY_TRIES: u32 = 5;
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// The environment is ours, with `variables` on top.
pub(crate) fn run(
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
    input: &[u8],
    timeout: Duration,
) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().copied());
    run_command(&mut command, input, timeout)
}

/// The same for a program that does a part of our own work: when we are killed, so is it, and whoever
/// cleans up after us need not fear that it goes on.
pub(crate) fn run_with_us(
    program: &Path,
    arguments: &[&str],
    input: &[u8],
    timeout: Duration,
) -> io::Result<Output> {
    let parent = rustix::process::getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // We may have been killed before that was said.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: between fork and exec only two system calls are made.
    unsafe { command.pre_exec(tie) };
    run_command(&mut command, input, timeout)
}

/// A program that is being replaced at this very moment is tried again.
fn run_command(command: &mut Command, input: &[u8], timeout: Duration) -> io::Result<Output> {
    let mut tries = 0;
    loop {
        let mut stdout = Vec::new();
        match run_program(command, input, timeout, |bytes| stdout.extend_from_slice(bytes)) {
            Ok(FinishedProgram { status, errors }) => {
                return Ok(Output { status, stdout, stderr: errors });
            }
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES =>
            {
                tries += 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_program_that_is_being_replaced_is_run_when_it_stands() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        fs::copy("/bin/cat", &program).unwrap();
        let writer = File::options().append(true).open(&program).unwrap();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(writer);
            });
            run(&program, &[], &[], b"all of it", Duration::from_secs(20)).unwrap()
        });
        assert!(output.status.success());
        assert_eq!(output.stdout, b"all of it");
    }
}
