//! Growing pauses between attempts: no broken service is overloaded, and ten thousand nodes do not retry in step.

use std::time::Duration;

/// Pauses before the next attempt, by the number of attempts that have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub most: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// Pause after `step` failures: doubles with every step, up to `most`, give or take a quarter.
    pub fn pause(&self, step: u32, rng: &mut fastrand::Rng) -> Duration {
        let plain = self.first.saturating_mul(1 << step.min(16)).min(self.most);
        plain.mul_f64(0.75 + 0.5 * rng.f64())
    }

    /// Counts attempts, for callers that only go from one to the next.
    pub fn tries(self, rng: fastrand::Rng) -> Tries {
        Tries { backoff: self, made: 0, rng }
    }
}

#[derive(Clone, Debug)]
pub struct Tries {
    backoff: Backoff,
    made: u32,
    rng: fastrand::Rng,
}

impl Tries {
    /// Pause after another failure.
    pub fn pause(&mut self) -> Duration {
        let pause = self.backoff.pause(self.made, &mut self.rng);
        self.made = self.made.saturating_add(1);
        pause
    }

    /// Notes a success: the next failure is a first one.
    pub fn reset(&mut self) {
        self.made = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(first: u64, most: u64, seed: u64) -> Tries {
        let ms = Duration::from_millis;
        Backoff::new(ms(first), ms(most)).tries(fastrand::Rng::with_seed(seed))
    }

    #[test]
    fn pauses_double_up_to_the_most_and_start_over_after_a_reset() {
        let mut tries = tries(100, 5_000, 1);
        for span in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let (pause, span) = (tries.pause(), Duration::from_millis(span));
            assert!(
                (span.mul_f64(0.75)..=span.mul_f64(1.25)).contains(&pause),
                "{pause:?} for a span of {span:?}"
            );
        }
        tries.reset();
        assert!(tries.pause() <= Duration::from_millis(125));
    }

    #[test]
    fn two_nodes_do_not_pause_alike() {
        assert_ne!(tries(1_000, 1_000, 1).pause(), tries(1_000, 1_000, 2).pause());
    }

    #[test]
    fn it_never_overflows() {
        let backoff = Backoff::new(Duration::MAX, Duration::from_secs(60));
        assert!(backoff.pause(u32::MAX, &mut fastrand::Rng::with_seed(1)).as_secs() <= 75);
    }
}
