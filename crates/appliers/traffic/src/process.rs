//! The programs that read and write rules, behind a trait for which tests answer in their stead.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use flannel_common::run_program;

use crate::TrafficError;

/// More than the programs' own wait for the xtables lock.
const LIMIT: Duration = Duration::from_secs(15);

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
        let mut lines = Lines { only, kept: String::new(), partial: Vec::new() };
        let mut words = Command::new(program);
        words.args(arguments).env("LC_ALL", "C");
        match run_program(&mut words, input.as_bytes(), LIMIT, |bytes| lines.take(bytes)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(TrafficError::TimedOut { command: command(), limit: LIMIT })
            }
            Err(source) => Err(TrafficError::Run { command: command(), source }),
            Ok(ended) if ended.status.success() => {
                lines.finish();
                Ok(lines.kept)
            }
            Ok(ended) => {
                let reason = complaint(&String::from_utf8_lossy(&ended.errors), ended.status);
                Err(TrafficError::Failed { command: command(), reason })
            }
        }
    }
}

fn complaint(errors: &str, status: ExitStatus) -> String {
    let lines: Vec<&str> = errors.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { status.to_string() } else { lines.join("; ") }
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
    fn its_complaint_is_told() {
        let error = sh("echo one >&2; echo two >&2; exit 4", "", &[]).unwrap_err().to_string();
        assert_eq!(error, "sh -c echo one >&2; echo two >&2; exit 4: one; two");
        let error = sh("exit 3", "", &[]).unwrap_err().to_string();
        assert!(error.ends_with("exit status: 3"), "{error}");
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

    type Script = dyn FnMut(&str, &[&str], &str) -> String + Send;

    /// Answers in the programs' stead and writes down what they were told.
    pub(crate) struct Recorder {
        answer: Box<Script>,
        log: Arc<Mutex<Vec<String>>>,
    }

    impl Recorder {
        /// The closure is given the program's name, its arguments and its input.
        pub(crate) fn answering(
            answer: impl FnMut(&str, &[&str], &str) -> String + Send + 'static,
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
            let text = (self.answer)(&name, arguments, input);
            let mut lines = Lines { only, kept: String::new(), partial: Vec::new() };
            lines.take(text.as_bytes());
            lines.finish();
            Ok(lines.kept)
        }
    }
}
