//! Runs another program to its end, feeding it and listening to it, for a bounded time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Signal, set_parent_process_death_signal};

pub(crate) struct Output {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

const BUSY_TRIES: u32 = 5;
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// The environment is ours, with `variables` on top.
pub(crate) fn run(
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
    input: &[u8],
    patience: Duration,
) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().copied());
    run_command(&mut command, input, patience)
}

/// The same for a program that does a part of our own work: when we are killed, so is it, and whoever
/// cleans up after us need not fear that it goes on.
pub(crate) fn run_with_us(
    program: &Path,
    arguments: &[&str],
    input: &[u8],
    patience: Duration,
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
    run_command(&mut command, input, patience)
}

fn run_command(command: &mut Command, input: &[u8], patience: Duration) -> io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command)?;
    let deadline = Instant::now() + patience;
    let talked = converse(&mut child, input, deadline);
    if talked.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    let (stdout, stderr) = talked?;
    Ok(Output { status, stdout, stderr })
}

/// A program that is being replaced at this very moment is tried again.
fn spawn(command: &mut Command) -> io::Result<Child> {
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES =>
            {
                tries += 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            other => return other,
        }
    }
}

/// Writes and reads at once, so that neither side waits for the other's full pipe.
fn converse(child: &mut Child, input: &[u8], deadline: Instant) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut stdin = child.stdin.take().map(|pipe| pipe_end(pipe.into())).transpose()?;
    let mut outputs =
        [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)]
            .map(|pipe| pipe.map(pipe_end).transpose());
    let mut outputs = [take(&mut outputs[0])?, take(&mut outputs[1])?];
    let mut texts = [Vec::new(), Vec::new()];
    let mut rest = input;
    loop {
        if rest.is_empty() {
            stdin = None;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it did not end in time and was stopped",
            ));
        }
        let mut waiting = Vec::with_capacity(3);
        waiting.extend(
            stdin.iter().map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::OUT)),
        );
        waiting.extend(
            outputs
                .iter()
                .flatten()
                .map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)),
        );
        if waiting.is_empty() {
            return Ok(texts.into());
        }
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut waiting, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        drop(waiting);
        if let Some(pipe) = &mut stdin {
            match pipe.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if is_passing(&error) => {}
                // It may well not care for its input.
                Err(_) => rest = &[],
            }
        }
        for (pipe, text) in outputs.iter_mut().zip(&mut texts) {
            if let Some(file) = pipe
                && !drain(file, text)?
            {
                *pipe = None;
            }
        }
    }
}

fn take(pipe: &mut io::Result<Option<File>>) -> io::Result<Option<File>> {
    std::mem::replace(pipe, Ok(None))
}

fn pipe_end(pipe: OwnedFd) -> io::Result<File> {
    fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
    Ok(pipe.into())
}

/// Returns whether there may be more.
fn drain(pipe: &mut File, text: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = [0; 4096];
    loop {
        match pipe.read(&mut chunk) {
            Ok(0) => return Ok(false),
            Ok(count) => text.extend_from_slice(&chunk[..count]),
            Err(error) if is_passing(&error) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_goes_in_and_much_comes_out() {
        let input = vec![b'x'; 1 << 20];
        let output = run(Path::new("/bin/cat"), &[], &[], &input, Duration::from_secs(20)).unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, input);
    }

    #[test]
    fn a_program_that_does_not_end_is_stopped() {
        let start = Instant::now();
        let error = run(Path::new("/bin/sleep"), &["60"], &[], b"", Duration::from_millis(50))
            .err()
            .unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}
