//! When a cloud is asked again. An account's nodes share a rate limit, so all of them slow down while throttled.

use std::time::{Duration, Instant};

use flannel_common::Backoff;

const QUIET: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));
/// Longest pause, whatever a server asks for.
const LONGEST: Duration = Duration::from_secs(3600);
/// Largest number of doublings of the interval between two looks.
const MAX_DOUBLINGS: u32 = 4;

#[derive(Default)]
pub(crate) struct Pace {
    /// How often we were throttled, less the rounds that went well since.
    slow: u32,
    quiet_until: Option<Instant>,
    pub(crate) next_look: Option<Instant>,
}

impl Pace {
    pub(crate) fn ended(&mut self, every: Duration, now: Instant, rng: &mut fastrand::Rng) {
        self.slow = self.slow.saturating_sub(1);
        self.quiet_until = None;
        self.plan(every, now, rng);
    }

    /// Notes that we were throttled. Returns how long nothing is asked; `told` is what the server has asked for.
    pub(crate) fn throttled(
        &mut self,
        every: Duration,
        told: Option<Duration>,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Duration {
        let pause = QUIET.pause(self.slow, rng).max(told.unwrap_or_default().min(LONGEST));
        self.slow = (self.slow + 1).min(MAX_DOUBLINGS);
        self.quiet_until = Some(now + pause);
        self.plan(every, now, rng);
        pause
    }

    fn plan(&mut self, every: Duration, now: Instant, rng: &mut fastrand::Rng) {
        let span = Backoff::new(every, Duration::MAX).pause(self.slow, rng);
        self.next_look = Some(now + span);
    }

    pub(crate) fn quiet_until(&self, now: Instant) -> Option<Instant> {
        self.quiet_until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_spread_become_rare_when_it_is_too_much_and_frequent_again() {
        let (now, every) = (Instant::now(), Duration::from_secs(60));
        let wait = |pace: &Pace| pace.next_look.expect("planned") - now;
        let pauses: Vec<Duration> = (0..20)
            .map(|seed| {
                let mut pace = Pace::default();
                pace.ended(every, now, &mut fastrand::Rng::with_seed(seed));
                wait(&pace)
            })
            .collect();
        assert!(pauses.iter().all(|pause| (45..=75).contains(&pause.as_secs())), "{pauses:?}");
        assert!(pauses.iter().max() > pauses.iter().min(), "nodes do not ask in step");

        let (mut pace, mut rng) = (Pace::default(), fastrand::Rng::with_seed(1));
        let mut quiet = Vec::new();
        for _ in 0..8 {
            quiet.push(pace.throttled(every, None, now, &mut rng));
        }
        assert!(
            quiet[0] < Duration::from_secs(7) && quiet[7] > Duration::from_secs(50),
            "{quiet:?}"
        );
        assert!(wait(&pace) >= 12 * every && wait(&pace) <= 20 * every, "{:?}", wait(&pace));
        assert!(pace.quiet_until(now).is_some());
        for _ in 0..MAX_DOUBLINGS {
            pace.ended(every, now, &mut rng);
        }
        assert!(wait(&pace) <= every.mul_f64(1.25) && pace.quiet_until(now).is_none());
    }

    #[test]
    fn a_server_is_left_alone_for_as_long_as_it_says_but_not_for_ever() {
        let (now, every) = (Instant::now(), Duration::from_secs(60));
        let mut rng = fastrand::Rng::with_seed(1);
        let mut told = |seconds| {
            let mut pace = Pace::default();
            pace.throttled(every, Some(Duration::from_secs(seconds)), now, &mut rng);
            pace.quiet_until(now).map(|until| (until - now).as_secs())
        };
        assert_eq!(told(90), Some(90));
        assert_eq!(told(1_000_000), Some(3600));
        assert!(told(0) >= Some(3), "never less than without a word of it");
    }
}
