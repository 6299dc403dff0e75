//! What test programs print, and what follows from it.

use std::process::ExitStatus;

/// What the tests of one step came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: usize,
    pub(crate) ignored: usize,
    /// Names of failed tests, and what is wrong with programs that name none.
    pub(crate) failures: Vec<String>,
}

impl Outcome {
    /// Judges what `programs` test programs have printed to one log, one after the other, and how they ended.
    ///
    /// A program that prints no `test result:` line has crashed, was killed or hung, however it ended.
    pub(crate) fn of(output: &str, programs: usize, ended: Ended) -> Self {
        let mut outcome = Self::default();
        let mut results = 0;
        let mut names: Option<Vec<&str>> = None;
        let mut failed_count = 0;
        for line in output.lines() {
            if let Some(result) = TestResult::parse(line) {
                results += 1;
                outcome.passed += result.passed;
                outcome.ignored += result.ignored;
                failed_count += result.failed;
                if result.failed > 0 {
                    let names = names.take().unwrap_or_default();
                    outcome.failures.extend(names.into_iter().map(str::to_owned));
                }
                names = None;
            } else if line == "failures:" {
                names = Some(Vec::new());
            } else if let (Some(names), Some(name)) = (&mut names, failed_name(line)) {
                names.push(name);
            }
        }
        if results < programs {
            let missing = programs - results;
            outcome
                .failures
                .push(format!("{missing} of {programs} programs printed no result: {ended}"));
        } else if outcome.failures.len() < failed_count {
            outcome.failures.push("failed tests whose names were not printed".to_owned());
        } else if outcome.failures.is_empty() && !ended.is_success() {
            outcome.failures.push(format!("all tests passed, and yet: {ended}"));
        }
        outcome
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    By(ExitStatus),
    TimedOut { seconds: u64 },
}

impl Ended {
    pub(crate) fn is_success(self) -> bool {
        matches!(self, Self::By(status) if status.success())
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::By(status) => write!(f, "{status}"),
            Self::TimedOut { seconds } => write!(f, "killed after {seconds} s"),
        }
    }
}

struct TestResult {
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl TestResult {
    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`. What a process beside has printed may
    /// stand before it on its line.
    fn parse(line: &str) -> Option<Self> {
        let (_, result) = line.split_once("test result: ")?;
        let (_, counts) = result.split_once(". ")?;
        let count = |what: &str| {
            let mut parts = counts.split("; ").map(str::trim);
            parts.find_map(|part| part.strip_suffix(what)?.trim_end().parse().ok())
        };
        Some(Self {
            passed: count("passed")?,
            failed: count("failed")?,
            ignored: count("ignored")?,
        })
    }
}

/// A line of the list at the end: four blanks and a path of names.
fn failed_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix("    ")?;
    let fits = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == ':';
    (!name.is_empty() && name.chars().all(fits)).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const OK: &str = "running 2 tests\ntest a ... ok\ntest b ... ok\n\n\
        test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
    const FAILED: &str = "running 2 tests\ntest a ... ok\ntest deep::b ... FAILED\n\nfailures:\n\n\
        ---- deep::b stdout ----\nthread panicked\n    indented words here\n\n\nfailures:\n    deep::b\n\n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";

    fn exit(code: i32) -> Ended {
        Ended::By(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn result_lines_are_counted() {
        let outcome = Outcome::of(&OK.repeat(2), 2, exit(0));
        assert_eq!(outcome, Outcome { passed: 4, ignored: 2, failures: Vec::new() });
    }

    #[test]
    fn failed_tests_are_named() {
        let outcome = Outcome::of(FAILED, 1, exit(101));
        assert_eq!(outcome, Outcome { passed: 1, ignored: 0, failures: vec!["deep::b".into()] });
    }

    #[test]
    fn failure_is_a_failure_though_the_program_says_success() {
        assert_eq!(Outcome::of(FAILED, 1, exit(0)).failures, ["deep::b"]);
    }

    #[test]
    fn missing_result_line_is_a_failure_though_the_program_says_success() {
        let outcome = Outcome::of("running 2 tests\ntest a ... ok\n", 1, exit(0));
        assert_eq!(outcome.failures.len(), 1);
        assert!(outcome.failures[0].contains("printed no result"), "{:?}", outcome.failures);
    }

    #[test]
    fn crash_is_a_failure_and_names_the_signal() {
        let outcome = Outcome::of("running 2 tests\n", 1, Ended::By(ExitStatus::from_raw(11)));
        assert!(outcome.failures[0].contains("signal: 11"), "{:?}", outcome.failures);
    }

    #[test]
    fn crash_after_another_program_failed_is_not_forgotten() {
        let output = format!("{FAILED}running 3 tests\ntest c ... ok\n");
        let outcome = Outcome::of(&output, 2, exit(101));
        assert_eq!(outcome.failures.len(), 2, "{:?}", outcome.failures);
        assert_eq!(outcome.failures[0], "deep::b");
    }

    #[test]
    fn status_that_contradicts_the_result_is_a_failure() {
        assert_eq!(Outcome::of(OK, 1, exit(101)).failures.len(), 1);
    }

    #[test]
    fn failed_test_without_a_name_is_a_failure() {
        let output =
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(Outcome::of(output, 1, exit(0)).failures.len(), 1);
    }

    #[test]
    fn result_behind_what_a_process_printed_is_found() {
        let output = format!("a daemon speaks {}", &OK[OK.find("test result").unwrap_or(0)..]);
        assert_eq!(Outcome::of(&output, 1, exit(0)).passed, 2);
    }

    #[test]
    fn program_that_hung_is_a_failure() {
        let outcome = Outcome::of("running 1 test\n", 1, Ended::TimedOut { seconds: 9 });
        assert!(outcome.failures[0].contains("killed after 9 s"), "{:?}", outcome.failures);
    }
}
