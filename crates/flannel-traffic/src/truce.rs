//! When to write again what somebody has undone, or what could not be written. Time is passed in.

use std::time::{Duration, Instant};

use flannel_backoff::Backoff;

/// Repairs that are made at once before somebody undoing them again and again is met with pauses.
const PATIENCE: u32 = 10;
/// The count of repairs starts over after this long without one.
const CALM: Duration = Duration::from_secs(60);
const TRUCE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
const ONCE_A_MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Truce {
    failures: u32,
    repairs: u32,
    last_repair: Option<Instant>,
    last_said: Option<Instant>,
    unsaid: u32,
}

impl Truce {
    /// Somebody else has changed it. Returns how long to leave it so; zero: it is to be repaired now.
    pub(crate) fn disturbed(&mut self, now: Instant, rng: &mut fastrand::Rng) -> Duration {
        if self.last_repair.is_some_and(|last| now.duration_since(last) > CALM) {
            self.repairs = 0;
        }
        self.repairs += 1;
        self.last_repair = Some(now);
        match self.repairs.checked_sub(PATIENCE + 1) {
            None => Duration::ZERO,
            Some(step) => TRUCE.pause(step, rng),
        }
    }

    /// It could not be written. Returns when to try again.
    pub(crate) fn failed(&mut self, rng: &mut fastrand::Rng) -> Duration {
        let pause = RETRY.pause(self.failures, rng);
        self.failures += 1;
        pause
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Whether to say so in the log, and how often it was not said since the last time.
    pub(crate) fn may_say(&mut self, now: Instant) -> Option<u32> {
        if self.last_said.is_some_and(|last| now.duration_since(last) < ONCE_A_MINUTE) {
            self.unsaid += 1;
            return None;
        }
        self.last_said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_who_undoes_again_and_again_is_met_with_growing_pauses() {
        let (mut truce, mut rng) = (Truce::default(), fastrand::Rng::with_seed(1));
        let mut now = Instant::now();
        for _ in 0..PATIENCE {
            assert_eq!(truce.disturbed(now, &mut rng), Duration::ZERO);
        }
        let first = truce.disturbed(now, &mut rng);
        assert!(first >= TRUCE.first.mul_f64(0.75));
        let later = (0..10).map(|_| truce.disturbed(now, &mut rng)).max().unwrap();
        assert!(later > first && later <= TRUCE.most.mul_f64(1.25));
        now += CALM + Duration::from_secs(1);
        assert_eq!(truce.disturbed(now, &mut rng), Duration::ZERO, "calm restores patience");
    }

    #[test]
    fn failures_are_retried_ever_later_until_one_succeeds() {
        let (mut truce, mut rng) = (Truce::default(), fastrand::Rng::with_seed(1));
        let pauses: Vec<Duration> = (0..12).map(|_| truce.failed(&mut rng)).collect();
        assert!(pauses[0] < Duration::from_millis(200));
        assert!(pauses[11] > Duration::from_secs(20));
        truce.succeeded();
        assert!(truce.failed(&mut rng) < Duration::from_millis(200));
    }

    #[test]
    fn the_log_hears_of_it_once_a_minute() {
        let (mut truce, now) = (Truce::default(), Instant::now());
        assert_eq!(truce.may_say(now), Some(0));
        assert_eq!(truce.may_say(now), None);
        assert_eq!(truce.may_say(now + Duration::from_secs(59)), None);
        assert_eq!(truce.may_say(now + Duration::from_secs(61)), Some(2));
    }
}
