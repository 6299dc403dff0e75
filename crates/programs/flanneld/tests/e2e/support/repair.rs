//! Doing something to a kernel, and measuring how long it takes until it is as it was.

use std::time::{Duration, Instant};

use flannel_lab::{Lab, LabError, Result};

use super::{Held, Kernel, LIMIT, measured};

/// What the project promises, to machines that have the time to keep it. What a test insists on is
/// [`LIMIT`]: what is repaired within it, the kernel has told the daemon of, which compares all entries of
/// its own accord only every two minutes.
const PROMISE: Duration = Duration::from_millis(100);

/// Repair times of one test: from before the deed, and from when it was done.
#[derive(Default)]
pub(crate) struct Repairs(Vec<(String, Duration, Duration)>);

impl Repairs {
    /// Does it, and waits until the kernel holds what it held before. The time counts from before
    /// the deed, so the command's own time is in it.
    pub(crate) fn after(
        &mut self,
        what: &str,
        kernel: &mut Kernel,
        deed: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = kernel.held();
        let begin = Instant::now();
        deed()?;
        let done = Instant::now();
        wait_for(kernel, &before, done, what)?;
        self.0.push((what.to_owned(), begin.elapsed(), done.elapsed()));
        Ok(())
    }

    /// Does it, and waits until it is so.
    pub(crate) fn until<E: std::fmt::Display>(
        &mut self,
        lab: &Lab,
        what: &str,
        deed: impl FnOnce() -> Result<()>,
        look: impl FnMut() -> std::result::Result<(), E>,
    ) -> Result<()> {
        let begin = Instant::now();
        deed()?;
        let done = Instant::now();
        lab.wait_until(what, LIMIT, look)?;
        self.0.push((what.to_owned(), begin.elapsed(), done.elapsed()));
        Ok(())
    }

    /// Prints all times.
    pub(crate) fn report(self) {
        for (what, time, rest) in &self.0 {
            let slow = if *rest > PROMISE { " (slower than promised)" } else { "" };
            measured(format_args!("repaired after {time:.1?}{slow}: {what}"));
        }
        let longest = self.0.iter().map(|(_, time, _)| *time).max().unwrap_or_default();
        measured(format_args!("{} repairs, the longest {longest:.1?}", self.0.len()));
    }
}

fn wait_for(kernel: &mut Kernel, expected: &Held, begin: Instant, what: &str) -> Result<()> {
    loop {
        let held = kernel.held();
        if held == *expected {
            return Ok(());
        }
        if begin.elapsed() > LIMIT {
            return Err(LabError::Timeout {
                what: format!("a repair after: {what}"),
                waited: begin.elapsed(),
                state: difference(expected, &held),
                logs: String::new(),
            });
        }
        // Closely at first, to measure; what takes longer is no longer a matter of milliseconds.
        let soon = begin.elapsed() < PROMISE;
        std::thread::sleep(Duration::from_micros(if soon { 200 } else { 5_000 }));
    }
}

/// What is missing and what is too much, for people.
pub(crate) fn difference(expected: &Held, held: &Held) -> String {
    let missing = expected.difference(held).map(|line| format!("\n  missing: {line}"));
    let surplus = held.difference(expected).map(|line| format!("\n  surplus: {line}"));
    missing.chain(surplus).collect()
}
