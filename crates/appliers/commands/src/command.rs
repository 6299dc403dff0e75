//! Runs one command, with its input, its variables and its time limit.

use std::io;
use std::process::Command as Program;

use flannel_common::run_program;
use flannel_entries::commands::{Command, Form};

use crate::expand::expand;

/// Largest output of a command: more than fits into a lease is an error, not data.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;
/// Number of characters of its output in our log.
pub(crate) const MAX_SHOWN_CHARS: usize = 400;

/// Runs a command to its end. Returns its output without white space around it. The error is for people.
pub fn run(command: &Command) -> Result<String, String> {
    let mut program = program(command)?;
    program.envs(command.variables.iter().map(|(name, value)| (name, value)));
    let input = format!("{}\n", command.input.reveal());
    let (mut output, mut whole) = (Vec::new(), true);
    let ended = run_program(&mut program, input.as_bytes(), command.limit, |bytes| {
        let room = MAX_OUTPUT_BYTES - output.len();
        whole &= bytes.len() <= room;
        output.extend_from_slice(&bytes[..bytes.len().min(room)]);
    });
    let ended = ended.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => format!(
            "it has not ended within {:?} and was stopped; raise Backend.Timeout if it needs longer, and let \
             whatever it leaves running close its output (>/dev/null 2>&1)",
            command.limit
        ),
        _ => format!("cannot run {}: {error}", program.get_program().to_string_lossy()),
    })?;
    let output = String::from_utf8_lossy(&output).trim().to_owned();
    if !ended.status.success() {
        let errors = String::from_utf8_lossy(&ended.errors);
        let output = command.input.hide_in(&format!("{} {output}", errors.trim()));
        return Err(format!("{}{}", ended.status, shown_output(&output)));
    }
    match whole {
        true => Ok(output),
        false => Err(format!("it wrote more than {} KiB", MAX_OUTPUT_BYTES / 1024)),
    }
}

fn program(command: &Command) -> Result<Program, String> {
    match command.form {
        Form::Shell => {
            let mut program = Program::new("sh");
            program.args(["-c", &command.line]);
            Ok(program)
        }
        Form::Direct => {
            let value = |name: &str| variable(command, name);
            let mut words = command.line.split_whitespace().map(|word| expand(word, &value));
            let first = words.next().filter(|first| !first.is_empty()).ok_or_else(|| {
                let name = command.name;
                format!("it is empty: write a command into Backend.{name}, or leave it out")
            })?;
            let mut program = Program::new(first);
            program.args(words);
            Ok(program)
        }
    }
}

fn variable(command: &Command, name: &str) -> Option<String> {
    let own = command.variables.iter().find(|(own, _)| *own == name);
    own.map(|(_, value)| value.clone()).or_else(|| std::env::var(name).ok())
}

/// One line of output, and not all of it.
fn shown_output(output: &str) -> String {
    let words: Vec<&str> = output.split_whitespace().collect();
    let shown: String = words.join(" ").chars().take(MAX_SHOWN_CHARS).collect();
    if shown.is_empty() { shown } else { format!(": {shown}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use std::time::Duration;

    use flannel_common::Secret;

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

    fn run_line(form: Form, line: &str) -> Result<String, String> {
        run(&command(form, line)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_direct_form_knows_words_and_variables_and_no_shell() {
        assert_eq!(
            run_line(Form::Direct, "echo  $SUBNET ${SUBNET}x"),
            Ok("10.1.2.0/24 10.1.2.0/24x".into())
        );
        assert_eq!(run_line(Form::Direct, "echo 'a b' ; echo"), Ok("'a b' ; echo".into()));
        assert_eq!(run_line(Form::Direct, "printenv SUBNET"), Ok("10.1.2.0/24".into()));
    }

    #[test]
    fn the_shell_form_is_what_a_shell_makes_of_it() {
        assert_eq!(
            run_line(Form::Shell, "printf '%s|' 'a b' $SUBNET; echo"),
            Ok("a b|10.1.2.0/24|".into())
        );
    }

    #[test]
    fn its_input_ends_with_a_newline_and_may_be_longer_than_a_pipe_holds() {
        assert_eq!(run_line(Form::Shell, "read line; echo \"$line $?\""), Ok("hunter2 0".into()));
        let long =
            Command { input: Secret::new("x".repeat(200_000)), ..command(Form::Direct, "wc -c") };
        assert_eq!(run(&long).unwrap(), "200001");
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
            let error = run_line(form, line).unwrap_err();
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
        let error = run(&command).unwrap_err().to_string();
        assert!(
            error.contains("has not ended within 100ms") && error.contains("Timeout"),
            "{error}"
        );
        std::thread::sleep(Duration::from_secs(3));
        assert!(!file.exists(), "what it had started went on");
    }
}
