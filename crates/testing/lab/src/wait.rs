//! Waiting for something to become true, with an error that shows what was seen instead.

use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::error::{LabError, Result};
use crate::lab::Lab;

/// Lines of every daemon's log that an error shows.
const LOG_LINES: usize = 5;

/// What a look can say: yes with a value, or not yet and what was seen.
pub trait Condition {
    /// What is handed out when the wait is over.
    type Value;

    /// The value, or what was seen instead.
    fn met(self) -> std::result::Result<Self::Value, String>;
}

impl Condition for bool {
    type Value = ();

    fn met(self) -> std::result::Result<(), String> {
        if self { Ok(()) } else { Err("not true".into()) }
    }
}

impl<T> Condition for Option<T> {
    type Value = T;

    fn met(self) -> std::result::Result<T, String> {
        self.ok_or_else(|| "nothing".into())
    }
}

impl<T, E: Display> Condition for std::result::Result<T, E> {
    type Value = T;

    fn met(self) -> std::result::Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

impl Lab {
    /// Looks again and again until it is so, at most for `limit`. The closure returns a `bool`, an
    /// `Option` or a `Result` whose error tells the state; the last state is in the error of the
    /// wait, with the ends of the daemons' logs.
    pub fn wait_until<C: Condition>(
        &self,
        what: &str,
        limit: Duration,
        look: impl FnMut() -> C,
    ) -> Result<C::Value> {
        wait_until(what, limit, look).map_err(|error| match error {
            LabError::Timeout { what, waited, state, .. } => {
                LabError::Timeout { what, waited, state, logs: self.log_tails() }
            }
            other => other,
        })
    }

    fn log_tails(&self) -> String {
        let mut tails = String::new();
        for node in self.nodes() {
            let tail = node.flanneld().log_tail(LOG_LINES);
            if !tail.is_empty() {
                tails.push_str(&format!("\n  log of node {}:\n{}", node.number(), tail.trim_end()));
            }
        }
        tails
    }
}

/// As [`Lab::wait_until`], without logs.
pub fn wait_until<C: Condition>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> C,
) -> Result<C::Value> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let state = match look().met() {
            Ok(value) => return Ok(value),
            Err(state) => state,
        };
        let waited = begin.elapsed();
        if waited >= limit {
            return Err(LabError::Timeout {
                what: what.into(),
                waited,
                state,
                logs: String::new(),
            });
        }
        std::thread::sleep(pause.min(limit - waited));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_value_or_with_the_last_state() {
        let mut looks = 0;
        let value = wait_until("three looks", Duration::from_secs(5), || {
            looks += 1;
            if looks < 3 { Err("too few") } else { Ok(looks) }
        });
        assert_eq!(value.unwrap(), 3);

        let error =
            wait_until("the impossible", Duration::from_millis(5), || Err::<(), _>("a blue moon"));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("the impossible") && text.contains("a blue moon"), "{text}");
    }
}
