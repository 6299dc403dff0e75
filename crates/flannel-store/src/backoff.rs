//! Growing, jittered pauses between tries, so that ten thousand nodes do not try again in step.

use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
    rng: fastrand::Rng,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration, rng: fastrand::Rng) -> Self {
        Self { first, max, next: first, rng }
    }

    /// The next pause: between half and the whole of a span that doubles up to the maximum.
    pub(crate) fn pause(&mut self) -> Duration {
        let span = self.next;
        self.next = (span * 2).min(self.max);
        span.mul_f64(0.5 + self.rng.f64() / 2.0)
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_start_over_after_a_reset() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(5_000), fastrand::Rng::with_seed(1));
        for span in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let pause = backoff.pause();
            assert!(
                pause >= ms(span / 2) && pause <= ms(span),
                "{pause:?} for a span of {span} ms"
            );
        }
        backoff.reset();
        assert!(backoff.pause() <= ms(100));
    }

    #[test]
    fn two_nodes_do_not_pause_alike() {
        let pauses = |seed| {
            let rng = fastrand::Rng::with_seed(seed);
            Backoff::new(Duration::from_secs(1), Duration::from_secs(1), rng).pause()
        };
        assert_ne!(pauses(1), pauses(2));
    }
}
