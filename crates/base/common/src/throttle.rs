//! Lets one message pass per interval and counts the others: repeating it is noise, silence hides problems.

use std::time::{Duration, Instant};

/// One for each thing that may be said:
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use flannel_common::Throttle;
/// let mut lost = Throttle::new(Duration::from_secs(60));
/// if let Some(suppressed) = lost.pass(Instant::now()) {
///     eprintln!("the store does not answer ({suppressed} more such lines)");
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Throttle {
    most: u32,
    interval: Duration,
    /// When the interval began, and how many have passed in it.
    last: Option<Instant>,
    passed: u32,
    suppressed: u32,
}

/// One a minute.
impl Default for Throttle {
    fn default() -> Self {
        Self::new(Duration::from_secs(60))
    }
}

impl Throttle {
    pub fn new(interval: Duration) -> Self {
        Self::with_burst(1, interval)
    }

    /// Lets so many pass per interval.
    pub const fn with_burst(most: u32, interval: Duration) -> Self {
        Self { most, interval, last: None, passed: 0, suppressed: 0 }
    }

    /// How many were held back since the last that passed, if this one may pass.
    pub fn pass(&mut self, now: Instant) -> Option<u32> {
        if !self.has_passed_lately(now) {
            (self.last, self.passed) = (Some(now), 0);
        }
        if self.passed >= self.most {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Whether one has passed within the interval.
    pub fn has_passed_lately(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < self.interval)
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
    fn as_many_pass_per_interval_as_are_allowed() {
        let start = Instant::now();
        let mut throttle = Throttle::with_burst(3, MINUTE);
        let passed =
            |throttle: &mut Throttle, now| (0..5).filter_map(|_| throttle.pass(now)).count();
        assert_eq!(passed(&mut throttle, start), 3);
        assert_eq!(passed(&mut throttle, start + MINUTE / 2), 0);
        assert_eq!(throttle.pass(start + MINUTE), Some(7));
        assert_eq!(passed(&mut throttle, start + MINUTE), 2);
    }

    #[test]
    fn a_clock_that_steps_back_does_not_let_a_flood_through() {
        let later = Instant::now() + MINUTE;
        let mut throttle = Throttle::new(MINUTE);
        throttle.pass(later);
        assert_eq!(throttle.pass(later - MINUTE), None);
    }
}
