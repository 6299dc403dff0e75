//! Runs a program to its end: input in, lines out, and never longer than allowed.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;

use crate::TrafficError;

/// More than the programs' own wait for the xtables lock.
const LIMIT: Duration = Duration::from_secs(15);
/// Of a program's complaints.
const MOST_ERROR_TEXT: usize = 4096;

/// Programs are run through this, so that tests can answer in their stead.
pub(crate) trait Runner: Send {
    /// Returns the lines of its output that contain one of `only`; all if that is empty.
    fn run(
        &mut self,
        program: &Path,
        arguments: &[&str],
        input: &str,
        only: &[&str],
    ) -> Result<String, TrafficError>;
}

/// Runs them on this machine, in the network namespace of the calling thread.
pub(crate) struct Machine;

impl Runner for Machine {
    fn run(
        &mut self,
        program: &Path,
        arguments: &[&str],
        input: &str,
        only: &[&str],
    ) -> Result<String, TrafficError> {
        let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
        let command = || [&[&*name], arguments].concat().join(" ");
        let mut child = Command::new(program)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| TrafficError::Run { command: command(), source })?;
        let mut talk = Talk::new(input, only);
        let ended = talk.hold(&mut child, Instant::now() + LIMIT);
        if !matches!(ended, Ok(Some(_))) {
            // It may have ended meanwhile; either way it is gone and reaped.
            let _ = child.kill();
            let _ = child.wait();
        }
        match ended {
            Err(source) => Err(TrafficError::Run { command: command(), source }),
            Ok(None) => Err(TrafficError::TimedOut { command: command(), limit: LIMIT }),
            Ok(Some(status)) if status.success() => Ok(talk.output.kept),
            Ok(Some(status)) => {
                let reason = complaint(&String::from_utf8_lossy(&talk.errors), status);
                Err(TrafficError::Failed { command: command(), reason })
            }
        }
    }
}

fn complaint(errors: &str, status: ExitStatus) -> String {
    let lines: Vec<&str> = errors.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { status.to_string() } else { lines.join("; ") }
}

struct Talk<'a> {
    input: &'a [u8],
    output: Lines<'a>,
    errors: Vec<u8>,
}

impl<'a> Talk<'a> {
    fn new(input: &'a str, only: &'a [&'a str]) -> Self {
        let output = Lines { only, kept: String::new(), partial: Vec::new() };
        Self { input: input.as_bytes(), output, errors: Vec::new() }
    }

    /// `None`: it has not ended in time.
    fn hold(&mut self, child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        let (mut stdin, mut stdout, mut stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        for fd in [stdin.as_ref().map(AsFd::as_fd), stdout.as_ref().map(AsFd::as_fd)] {
            fd.map(|fd| ioctl_fionbio(fd, true)).transpose()?;
        }
        stderr.as_ref().map(|fd| ioctl_fionbio(fd, true)).transpose()?;
        let mut buffer = vec![0; 64 * 1024];
        while stdout.is_some() || stderr.is_some() {
            if stdin.as_mut().is_some_and(|pipe| !self.give(pipe)) {
                stdin = None;
            }
            let before = (stdout.is_some(), stderr.is_some());
            if stdout
                .as_ref()
                .is_some_and(|pipe| !take(pipe, &mut buffer, |bytes| self.output.take(bytes)))
            {
                stdout = None;
                self.output.finish();
            }
            if stderr.as_ref().is_some_and(|pipe| {
                !take(pipe, &mut buffer, |bytes| {
                    let room = MOST_ERROR_TEXT.saturating_sub(self.errors.len());
                    self.errors.extend_from_slice(&bytes[..bytes.len().min(room)]);
                })
            }) {
                stderr = None;
            }
            if before != (stdout.is_some(), stderr.is_some()) {
                continue;
            }
            let mut waiting = Vec::with_capacity(3);
            waiting.extend(stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
            waiting.extend(stdout.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            waiting.extend(stderr.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait(&mut waiting, left)?;
        }
        // Its ends of the pipes are closed, so it is about to end.
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// `false`: there is nothing more to give, or nobody to take it.
    fn give(&mut self, pipe: &mut impl Write) -> bool {
        while !self.input.is_empty() {
            match pipe.write(self.input) {
                Ok(0) => return false,
                Ok(written) => self.input = &self.input[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        false
    }
}

/// Takes what there is. `false`: there will be no more.
fn take(pipe: &impl AsFd, buffer: &mut [u8], mut eat: impl FnMut(&[u8])) -> bool {
    loop {
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(0) => return false,
            Ok(len) => eat(&buffer[..len]),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return error == rustix::io::Errno::AGAIN,
        }
    }
}

fn wait(fds: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    match poll(fds, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Keeps the lines that matter: `iptables-save` of a large cluster is megabytes of others' rules.
struct Lines<'a> {
    only: &'a [&'a str],
    kept: String,
    partial: Vec<u8>,
}

impl Lines<'_> {
    fn take(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.finish();
            }
        }
    }

    fn finish(&mut self) {
        let line = String::from_utf8_lossy(&self.partial);
        if self.only.is_empty() || self.only.iter().any(|part| line.contains(part)) {
            self.kept += &line;
        }
        self.partial.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, input: &str, only: &[&str]) -> Result<String, TrafficError> {
        Machine.run(Path::new("/bin/sh"), &["-c", script], input, only)
    }

    #[test]
    fn input_goes_in_and_output_comes_out_however_long() {
        let long: String = (0..200_000).map(|n| format!("line {n}\n")).collect();
        assert_eq!(sh("cat", &long, &[]).unwrap(), long);
        assert_eq!(sh("cat", &long, &["99999"]).unwrap(), "line 99999\nline 199999\n");
        assert_eq!(sh("printf 'no end of line'", "", &[]).unwrap(), "no end of line");
    }

    #[test]
    fn a_program_that_reads_nothing_is_no_failure() {
        let long = "x".repeat(1 << 20);
        assert_eq!(sh("exit 0", &long, &[]).unwrap(), "");
    }

    #[test]
    fn its_complaint_is_told() {
        let error = sh("echo one >&2; echo two >&2; exit 4", "", &[]).unwrap_err().to_string();
        assert_eq!(error, "sh -c echo one >&2; echo two >&2; exit 4: one; two");
        let error = sh("exit 3", "", &[]).unwrap_err().to_string();
        assert!(error.ends_with("exit status: 3"), "{error}");
    }

    #[test]
    fn one_that_does_not_end_is_ended() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        let ended = Talk::new("", &[]).hold(&mut child, start + Duration::from_millis(50)).unwrap();
        assert!(ended.is_none() && start.elapsed() < Duration::from_secs(5));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Machine.run(Path::new("/nowhere/nft"), &["-f", "-"], "", &[]).unwrap_err();
        assert!(error.to_string().starts_with("cannot run nft -f -: No such file"), "{error}");
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use std::sync::{Arc, Mutex};

    use super::*;

    pub(crate) enum Answer {
        Output(String),
        Failure(String),
    }

    type Script = dyn FnMut(&str, &[&str], &str) -> Answer + Send;

    /// Answers in the programs' stead and writes down what they were told.
    pub(crate) struct Recorder {
        answer: Box<Script>,
        log: Arc<Mutex<Vec<String>>>,
    }

    impl Recorder {
        /// The closure is given the program's name, its arguments and its input.
        pub(crate) fn answering(
            answer: impl FnMut(&str, &[&str], &str) -> Answer + Send + 'static,
        ) -> Self {
            Self { answer: Box::new(answer), log: Arc::default() }
        }

        /// Every command line with its input below it.
        pub(crate) fn log(&self) -> Arc<Mutex<Vec<String>>> {
            self.log.clone()
        }
    }

    impl Runner for Recorder {
        fn run(
            &mut self,
            program: &Path,
            arguments: &[&str],
            input: &str,
            only: &[&str],
        ) -> Result<String, TrafficError> {
            let name = program.file_name().unwrap().to_string_lossy();
            let command = [&[&*name], arguments].concat().join(" ");
            self.log.lock().unwrap().push(format!("{command}\n{input}"));
            match (self.answer)(&name, arguments, input) {
                Answer::Output(text) => {
                    let mut lines = Lines { only, kept: String::new(), partial: Vec::new() };
                    lines.take(text.as_bytes());
                    lines.finish();
                    Ok(lines.kept)
                }
                Answer::Failure(reason) => Err(TrafficError::Failed { command, reason }),
            }
        }
    }
}
