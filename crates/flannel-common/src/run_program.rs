//! Runs another program to its end: input in, output out, and never longer than allowed.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Bytes that are kept of what a program writes to its standard error.
const MOST_ERROR_TEXT: usize = 64 * 1024;

/// A program that has ended by itself.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// The beginning of what it wrote to its standard error.
    pub errors: Vec<u8>,
}

/// Gives the program its input, and its output to `take` as it comes. One that has not ended within
/// `limit` is killed with all that it has started, which is [`io::ErrorKind::TimedOut`].
pub fn run_program(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
    take: impl FnMut(&[u8]),
) -> io::Result<Ended> {
    // A group of its own, so that what it starts can be ended with it.
    let command = command.process_group(0);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let ended = converse(&mut child, input, Instant::now() + limit, take);
    if ended.is_err() {
        // It may have ended meanwhile; either way it is gone and reaped.
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
) -> io::Result<Ended> {
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
        let room = MOST_ERROR_TEXT.saturating_sub(errors.len());
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
            return Ok(Ended { status, errors });
        }
        let left = time_left(deadline)?;
        match pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
            Ok(end) => wait(&mut [PollFd::new(&end, PollFlags::IN)], left)?,
            // Kernels before 5.3 do not tell.
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

/// `false`: there is nothing more to give, or nobody to take it.
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

/// Takes what there is. `false`: there will be no more.
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
    let time =
        Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    match poll(fds, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str, input: &[u8], limit: Duration) -> io::Result<(Ended, Vec<u8>)> {
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
        assert_eq!(ended.errors.len(), MOST_ERROR_TEXT);
    }

    #[test]
    fn one_that_does_not_end_is_ended() {
        for script in ["exec sleep 600", "exec sleep 600 >&- 2>&-"] {
            let error = sh(script, b"", Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }
}
