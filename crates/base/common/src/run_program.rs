//! Runs another program to its end, within a time limit, with input and output.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::simulation;

const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Result of a program that has ended by itself.
#[derive(Debug)]
pub struct FinishedProgram {
    pub status: ExitStatus,
    /// Beginning of the standard error.
    pub errors: Vec<u8>,
}

/// Runs a program with this input and passes its output to `take` as it arrives. If it has not ended within `limit`,
/// it is killed with everything that it has started, which is [`io::ErrorKind::TimedOut`].
pub fn run_program(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
    take: impl FnMut(&[u8]),
) -> io::Result<FinishedProgram> {
    if simulation::world().is_some() {
        return Err(io::ErrorKind::NotFound.into());
    }
    // A process group of its own, so that its children can be killed with it.
    let command = command.process_group(0);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let ended = converse(&mut child, input, Instant::now() + limit, take);
    if ended.is_err() {
        // It may have ended in the meantime; either way it is reaped.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.kill();
        let _ = child.wait();
    }
    ended
}

/// Writes and reads at once, so that neither side waits for the other's full pipe.
fn converse(
    child: &mut Child,
    mut input: &[u8],
    deadline: Instant,
    mut take: impl FnMut(&[u8]),
) -> io::Result<FinishedProgram> {
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let pipes = [
        stdin.as_ref().map(AsFd::as_fd),
        stdout.as_ref().map(AsFd::as_fd),
        stderr.as_ref().map(AsFd::as_fd),
    ];
    for pipe in pipes.into_iter().flatten() {
        ioctl_fionbio(pipe, true)?;
    }
    let mut errors = Vec::new();
    let mut take_errors = |bytes: &[u8]| {
        let room = MAX_ERROR_BYTES.saturating_sub(errors.len());
        errors.extend_from_slice(&bytes[..bytes.len().min(room)]);
    };
    let mut buffer = vec![0; 64 * 1024];
    while stdout.is_some() || stderr.is_some() {
        if stdin.as_mut().is_some_and(|pipe| !give(pipe, &mut input)) {
            stdin = None;
        }
        let before = (stdout.is_some(), stderr.is_some());
        stdout = stdout.filter(|pipe| read(pipe, &mut buffer, &mut take));
        stderr = stderr.filter(|pipe| read(pipe, &mut buffer, &mut take_errors));
        if before != (stdout.is_some(), stderr.is_some()) {
            continue;
        }
        let mut waiting = Vec::with_capacity(3);
        waiting.extend(stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        waiting.extend(stdout.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        waiting.extend(stderr.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        wait(&mut waiting, time_left(deadline)?)?;
    }
    // Its ends of the pipes are closed, so it is about to end.
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(FinishedProgram { status, errors });
        }
        let left = time_left(deadline)?;
        match pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
            Ok(end) => wait(&mut [PollFd::new(&end, PollFlags::IN)], left)?,
            // Kernels before 5.3 have no pidfd.
            Err(_) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        let text = "it did not end in time and was stopped";
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    Ok(left)
}

/// Writes input. Returns `false` if nothing is left to write, or nobody reads.
fn give(pipe: &mut impl Write, input: &mut &[u8]) -> bool {
    while !input.is_empty() {
        match pipe.write(input) {
            Ok(0) => return false,
            Ok(written) => *input = &input[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    false
}

/// Reads what is available. Returns `false` at the end.
fn read(pipe: &impl AsFd, buffer: &mut [u8], take: &mut impl FnMut(&[u8])) -> bool {
    loop {
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(0) => return false,
            Ok(len) => take(&buffer[..len]),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return error == rustix::io::Errno::AGAIN,
        }
    }
}

fn wait(fds: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(fds, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str, input: &[u8], limit: Duration) -> io::Result<(FinishedProgram, Vec<u8>)> {
        let mut output = Vec::new();
        let ended = run_program(Command::new("sh").args(["-c", script]), input, limit, |bytes| {
            output.extend_from_slice(bytes);
        })?;
        Ok((ended, output))
    }

    #[test]
    fn input_goes_in_and_output_comes_out_however_long() {
        let long: Vec<u8> = (0..200_000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let (ended, output) = sh("cat", &long, LONG).unwrap();
        assert!(ended.status.success());
        assert_eq!(output, long);
    }

    #[test]
    fn a_program_that_reads_nothing_has_not_failed() {
        let (ended, output) = sh("exit 0", &vec![b'x'; 1 << 20], LONG).unwrap();
        assert!(ended.status.success() && output.is_empty());
    }

    #[test]
    fn complaints_are_kept_up_to_a_bound() {
        let (ended, _) = sh("echo no >&2; exit 4", b"", LONG).unwrap();
        assert_eq!((ended.status.code(), &*ended.errors), (Some(4), &b"no\n"[..]));
        let (ended, _) = sh("head -c 1000000 /dev/zero >&2", b"", LONG).unwrap();
        assert_eq!(ended.errors.len(), MAX_ERROR_BYTES);
    }

    #[test]
    fn one_that_does_not_end_is_ended() {
        for script in ["exec sleep 600", "exec sleep 600 >&- 2>&-"] {
            let error = sh(script, b"", Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }
}
