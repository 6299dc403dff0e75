//! Decides when to write again what somebody else has undone, or what could not be written. Time is passed in.

use std::time::{Duration, Instant};

use crate::Backoff;

#[derive(Clone, Copy, Debug)]
pub struct RepairPolicy {
    /// Number of repairs made at once; later ones are delayed by pauses.
    pub at_once: u32,
    /// The count of repairs starts over after so long without one.
    pub calm: Duration,
    /// Pauses between repairs of what is undone again and again.
    pub undone: Backoff,
    /// Pauses between attempts to write what is refused.
    pub refused: Backoff,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairHistory {
    refusals: u32,
    repairs: u32,
    last_repair: Option<Instant>,
}

impl RepairHistory {
    /// Notes that somebody else has changed it. Returns the pause before the repair; zero means now.
    pub fn undone(
        &mut self,
        policy: &RepairPolicy,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Duration {
        if self.last_repair.is_some_and(|last| now.duration_since(last) > policy.calm) {
            self.repairs = 0;
        }
        self.repairs += 1;
        self.last_repair = Some(now);
        match self.repairs.checked_sub(policy.at_once + 1) {
            None => Duration::ZERO,
            Some(step) => policy.undone.pause(step, rng),
        }
    }

    /// Notes that it could not be written. Returns the pause before the next attempt.
    pub fn refused(&mut self, policy: &RepairPolicy, rng: &mut fastrand::Rng) -> Duration {
        let pause = policy.refused.pause(self.refusals, rng);
        self.refusals += 1;
        pause
    }

    /// Notes that it was written, or that what refused it may have changed: the next attempts come soon again.
    pub fn forget_refusals(&mut self) {
        self.refusals = 0;
    }

    /// Whether the history is that of a new one.
    pub fn is_blank(&self) -> bool {
        self.refusals == 0 && self.repairs == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A_MINUTE: Duration = Duration::from_secs(60);
    const POLICY: RepairPolicy = RepairPolicy {
        at_once: 10,
        calm: A_MINUTE,
        undone: Backoff::new(Duration::from_secs(1), A_MINUTE),
        refused: Backoff::new(Duration::from_millis(100), Duration::from_secs(30)),
    };

    #[test]
    fn somebody_who_undoes_again_and_again_is_met_with_growing_pauses() {
        let (mut history, mut rng) = (RepairHistory::default(), fastrand::Rng::with_seed(1));
        let mut now = Instant::now();
        for _ in 0..POLICY.at_once {
            assert_eq!(history.undone(&POLICY, now, &mut rng), Duration::ZERO);
        }
        let first = history.undone(&POLICY, now, &mut rng);
        assert!(first >= POLICY.undone.first.mul_f64(0.75));
        let later = (0..10).map(|_| history.undone(&POLICY, now, &mut rng)).max().unwrap();
        assert!(later > first && later <= POLICY.undone.most.mul_f64(1.25));
        now += POLICY.calm + Duration::from_secs(1);
        let after = history.undone(&POLICY, now, &mut rng);
        assert_eq!(after, Duration::ZERO, "the count has started over");
    }

    #[test]
    fn what_is_refused_is_tried_ever_later_until_it_is_written() {
        let (mut history, mut rng) = (RepairHistory::default(), fastrand::Rng::with_seed(1));
        let pauses: Vec<Duration> = (0..12).map(|_| history.refused(&POLICY, &mut rng)).collect();
        assert!(pauses[0] < Duration::from_millis(200));
        assert!(pauses[11] > Duration::from_secs(20));
        history.forget_refusals();
        assert!(history.refused(&POLICY, &mut rng) < Duration::from_millis(200));
    }
}
