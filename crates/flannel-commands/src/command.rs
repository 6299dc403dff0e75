//! One command: what is run, what it is given, and how long it may take.

use std::io;
use std::process::{Command as Program, ExitStatus};
use std::time::Duration;

use flannel_common::{Secret, run_program};

use crate::expand::expand;

/// Of what a command writes: more than fits into a lease is an error, not data.
const MOST_OUTPUT: usize = 64 * 1024;
/// Of what it says, in our log.
pub(crate) const MOST_SHOWN: usize = 400;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// What it is called in the network config.
    pub name: &'static str,
    pub line: String,
    pub form: Form,
    /// Set for it, besides what this process has.
    pub variables: Vec<(&'static str, String)>,
    /// What it reads, without the newline that it gets at the end. Never shown: it may be a key.
    pub input: Secret,
    pub limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Split at white space, variables expanded in every word, and run without a shell.
    Direct,
    /// Given to `sh -c`.
    Shell,
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("it is empty: write a command into Backend.{0}, or leave it out")]
    Empty(&'static str),
    #[error("cannot run {program}: {error}")]
    Start { program: String, error: io::Error },
    #[error(
        "it has not ended within {limit:?} and was stopped; raise Backend.Timeout if it needs longer, and let \
         whatever it leaves running close its output (>/dev/null 2>&1)"
    )]
    TooLong { limit: Duration },
    #[error("it wrote more than {} KiB", MOST_OUTPUT / 1024)]
    TooMuch,
    #[error("{status}{}", said(.output))]
    Failed { status: ExitStatus, output: String },
}

impl Command {
    /// Runs it to its end. Returns what it wrote to its standard output, without white space around it.
    pub fn run(&self) -> Result<String, CommandError> {
        let mut program = self.program()?;
        program.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let input = format!("{}\n", self.input.reveal());
        let (mut output, mut whole) = (Vec::new(), true);
        let ended = run_program(&mut program, input.as_bytes(), self.limit, |bytes| {
            let room = MOST_OUTPUT - output.len();
            whole &= bytes.len() <= room;
            output.extend_from_slice(&bytes[..bytes.len().min(room)]);
        });
        let ended = ended.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => CommandError::TooLong { limit: self.limit },
            _ => {
                let program = program.get_program().to_string_lossy().into_owned();
                CommandError::Start { program, error }
            }
        })?;
        let output = String::from_utf8_lossy(&output).trim().to_owned();
        if !ended.status.success() {
            let errors = String::from_utf8_lossy(&ended.errors);
            let output = self.input.hide_in(&format!("{} {output}", errors.trim()));
            return Err(CommandError::Failed { status: ended.status, output });
        }
        whole.then_some(output).ok_or(CommandError::TooMuch)
    }

    fn program(&self) -> Result<Program, CommandError> {
        match self.form {
            Form::Shell => {
                let mut program = Program::new("sh");
                program.args(["-c", &self.line]);
                Ok(program)
            }
            Form::Direct => {
                let value = |name: &str| self.variable(name);
                let mut words = self.line.split_whitespace().map(|word| expand(word, &value));
                let first = words.next().filter(|first| !first.is_empty());
                let mut program = Program::new(first.ok_or(CommandError::Empty(self.name))?);
                program.args(words);
                Ok(program)
            }
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        let own = self.variables.iter().find(|(own, _)| *own == name);
        own.map(|(_, value)| value.clone()).or_else(|| std::env::var(name).ok())
    }
}

/// In one line, and not all of it.
fn said(output: &str) -> String {
    let words: Vec<&str> = output.split_whitespace().collect();
    let shown: String = words.join(" ").chars().take(MOST_SHOWN).collect();
    if shown.is_empty() { shown } else { format!(": {shown}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use super::*;

    fn command(form: Form, line: &str) -> Command {
        Command {
            name: "SubnetAddCommand",
            line: line.to_owned(),
            form,
            variables: vec![("SUBNET", "10.1.2.0/24".to_owned())],
            input: Secret::new("hunter2"),
            limit: Duration::from_secs(60),
        }
    }

    fn run(form: Form, line: &str) -> Result<String, String> {
        command(form, line).run().map_err(|error| error.to_string())
    }

    #[test]
    fn the_direct_form_knows_words_and_variables_and_no_shell() {
        assert_eq!(
            run(Form::Direct, "echo  $SUBNET ${SUBNET}x"),
            Ok("10.1.2.0/24 10.1.2.0/24x".into())
        );
        assert_eq!(run(Form::Direct, "echo 'a b' ; echo"), Ok("'a b' ; echo".into()));
        assert_eq!(run(Form::Direct, "printenv SUBNET"), Ok("10.1.2.0/24".into()));
    }

    #[test]
    fn the_shell_form_is_what_a_shell_makes_of_it() {
        assert_eq!(
            run(Form::Shell, "printf '%s|' 'a b' $SUBNET; echo"),
            Ok("a b|10.1.2.0/24|".into())
        );
    }

    #[test]
    fn its_input_ends_with_a_newline_and_may_be_longer_than_a_pipe_holds() {
        assert_eq!(run(Form::Shell, "read line; echo \"$line $?\""), Ok("hunter2 0".into()));
        let long =
            Command { input: Secret::new("x".repeat(200_000)), ..command(Form::Direct, "wc -c") };
        assert_eq!(long.run().unwrap(), "200001");
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_do_and_without_the_input() {
        for (form, line, told) in [
            (Form::Direct, " ", "it is empty: write a command into Backend.SubnetAddCommand"),
            (Form::Direct, "$NOTHING x", "it is empty"),
            (Form::Direct, "/no/such x", "cannot run /no/such: No such file"),
            (Form::Shell, "echo out; echo two lines >&2; exit 3", "exit status: 3: two lines out"),
            (Form::Shell, "read it; echo no $it >&2; exit 1", "exit status: 1: no <secret>"),
            (Form::Shell, "kill -9 $$", "signal: 9"),
            (Form::Shell, "head -c 70000 /dev/zero", "it wrote more than 64 KiB"),
        ] {
            let error = run(form, line).unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
            assert!(!error.contains("hunter2"));
        }
        assert!(!format!("{:?}", command(Form::Direct, "x")).contains("hunter2"));
    }

    #[test]
    fn one_that_does_not_end_is_stopped_with_all_it_has_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("survived");
        let line = format!("(sleep 2; touch {}) & sleep 600", file.display());
        let command = Command { limit: Duration::from_millis(100), ..command(Form::Shell, &line) };
        let error = command.run().unwrap_err().to_string();
        assert!(
            error.contains("has not ended within 100ms") && error.contains("Timeout"),
            "{error}"
        );
        std::thread::sleep(Duration::from_secs(3));
        assert!(!file.exists(), "what it had started went on");
    }
}
