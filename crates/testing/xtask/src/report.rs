//! What all steps came to: printed as they end, and as a summary.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::alone::Alone;
use crate::test_output::Outcome;

/// Results of the steps so far.
#[derive(Default)]
pub(crate) struct Report {
    steps: Mutex<Vec<StepResult>>,
}

struct StepResult {
    row: &'static str,
    name: String,
    took: StepTime,
    outcome: Outcome,
    /// Why it was not done, if it was not.
    skipped: Option<String>,
}

/// How long a step took.
#[derive(Clone, Copy, Default)]
pub(crate) struct StepTime {
    pub(crate) elapsed: Duration,
    pub(crate) processor: Duration,
}

impl Report {
    /// Prints that a step has ended, and keeps it for the summary. Says whether it passed.
    pub(crate) fn add(
        &self,
        row: &'static str,
        name: &str,
        took: StepTime,
        outcome: Outcome,
    ) -> bool {
        let passed = outcome.failures.is_empty();
        let seconds = took.elapsed.as_secs();
        if passed {
            eprintln!("==> {name}: passed in {seconds} s");
        } else {
            eprintln!("==> {name}: failed after {seconds} s: {}", outcome.failures.join(", "));
        }
        self.lock().push(StepResult { row, name: name.to_owned(), took, outcome, skipped: None });
        passed
    }

    pub(crate) fn skip(&self, row: &'static str, name: &str, why: String) {
        eprintln!("==> {name}: skipped: {why}");
        let (took, outcome) = (StepTime::default(), Outcome::default());
        self.lock().push(StepResult {
            row,
            name: name.to_owned(),
            took,
            outcome,
            skipped: Some(why),
        });
    }

    /// Prints what a row has printed, whole.
    pub(crate) fn show_log(&self, row: &str, log: &Path) {
        let text = fs::read(log).unwrap_or_default();
        let _steps = self.lock();
        let mut stderr = io::stderr().lock();
        let _ = writeln!(stderr, "\n--- {row}");
        let _ = stderr.write_all(&text);
        let _ = writeln!(stderr, "--- end of {row}");
    }

    /// The summary: every step with its time, the tests that ran alone, what failed, and the sum of all.
    pub(crate) fn summary(&self, alone: &[Alone], elapsed: Duration) -> String {
        let steps = self.lock();
        let mut text = String::from(
            "\nrow        step                                    seconds  processor  passed  failed\n",
        );
        for StepResult { row, name, took, outcome, skipped } in &*steps {
            let Outcome { passed, failures, .. } = outcome;
            let result = match skipped {
                Some(_) => "skipped".to_owned(),
                None => format!("{passed:>7}  {:>6}", failures.len()),
            };
            let (seconds, processor) = (took.elapsed.as_secs(), took.processor.as_secs());
            text += &format!("{row:10} {name:40} {seconds:>6}  {processor:>9}  {result}\n");
        }
        if !alone.is_empty() {
            text += "\nTests that run when nothing else does:\n";
        }
        for Alone { program, filter, why, until } in alone {
            text += &format!("  {program} {filter}\n    because it {why}\n    until {until}\n");
        }
        text += "\n";
        for StepResult { name, skipped, .. } in &*steps {
            if let Some(why) = skipped {
                text += &format!("skipped: {name}: {why}\n");
            }
        }
        for StepResult { name, outcome, .. } in &*steps {
            for failure in &outcome.failures {
                text += &format!("failed: {name}: {failure}\n");
            }
        }
        let passed: usize = steps.iter().map(|step| step.outcome.passed).sum();
        let failed: usize = steps.iter().map(|step| step.outcome.failures.len()).sum();
        let processor: Duration = steps.iter().map(|step| step.took.processor).sum();
        text += &format!(
            "all steps together: {} s, {} s of processor time\n{passed} passed, {failed} failed\n",
            elapsed.as_secs(),
            processor.as_secs()
        );
        text
    }

    pub(crate) fn all_passed(&self) -> bool {
        let steps = self.lock();
        !steps.is_empty() && steps.iter().all(|step| step.outcome.failures.is_empty())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StepResult>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(passed: usize, failures: &[&str]) -> Outcome {
        Outcome {
            passed,
            ignored: 0,
            failures: failures.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// A step that had the processor half of its time.
    fn seconds(elapsed: u64) -> StepTime {
        let elapsed = Duration::from_secs(elapsed);
        StepTime { elapsed, processor: elapsed / 2 }
    }

    #[test]
    fn summary_names_every_failure_and_sums_all() {
        let report = Report::default();
        assert!(!report.all_passed(), "nothing was tried");
        assert!(report.add("rest", "flannel-lease", seconds(3), outcome(5, &[])));
        assert!(report.all_passed());
        assert!(!report.add("waiting", "flanneld e2e", seconds(70), outcome(1, &["a::b"])));
        report.skip("checks", "advisories", "no database".into());
        assert!(!report.all_passed());
        let alone = [Alone { program: "e2e", filter: "x::", why: "counts", until: "it does not" }];
        let summary = report.summary(&alone, Duration::from_secs(80));
        for line in [
            "failed: flanneld e2e: a::b",
            "skipped: advisories: no database",
            "all steps together: 80 s, 36 s of processor time",
            "6 passed, 1 failed",
            "  e2e x::",
        ] {
            assert!(summary.lines().any(|other| other == line), "{line} in {summary}");
        }
    }
}
