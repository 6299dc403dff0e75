//! Saying the same thing again and again is noise; saying nothing hides problems. A throttle lets
//! one through per interval and counts the others.

use std::time::{Duration, Instant};

/// One for each thing that may be said:
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use flanneld::logging::Throttle;
/// let mut lost = Throttle::new(Duration::from_secs(60));
/// if let Some(suppressed) = lost.pass(Instant::now()) {
///     tracing::warn!(suppressed, "the store does not answer");
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Throttle {
    interval: Duration,
    last: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    pub fn new(interval: Duration) -> Self {
        Self { interval, last: None, suppressed: 0 }
    }

    /// How many were held back since the last that passed, if this one may pass.
    pub fn pass(&mut self, now: Instant) -> Option<u64> {
        let early =
            self.last.is_some_and(|last| now.saturating_duration_since(last) < self.interval);
        if early {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }

    /// The problem is over: the next of its kind is news again.
    pub fn reset(&mut self) {
        *self = Self::new(self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn one_passes_per_interval_and_tells_how_many_did_not() {
        let start = Instant::now();
        let mut throttle = Throttle::new(MINUTE);
        assert_eq!(throttle.pass(start), Some(0));
        for second in 1..60 {
            assert_eq!(throttle.pass(start + Duration::from_secs(second)), None);
        }
        assert_eq!(throttle.pass(start + MINUTE), Some(59));
        assert_eq!(throttle.pass(start + MINUTE), None);
        assert_eq!(throttle.pass(start + 10 * MINUTE), Some(1));
    }

    #[test]
    fn after_a_reset_the_next_passes_at_once() {
        let start = Instant::now();
        let mut throttle = Throttle::new(MINUTE);
        throttle.pass(start);
        throttle.pass(start);
        throttle.reset();
        assert_eq!(throttle.pass(start), Some(0));
    }

    #[test]
    fn a_clock_that_steps_back_does_not_let_a_flood_through() {
        let later = Instant::now() + MINUTE;
        let mut throttle = Throttle::new(MINUTE);
        throttle.pass(later);
        assert_eq!(throttle.pass(later - MINUTE), None);
    }
}
