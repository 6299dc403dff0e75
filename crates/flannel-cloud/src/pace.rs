//! When a cloud is asked again. All nodes of an account share what the provider lets it ask for, so each of
//! them asks less while there is too much of it.

use std::time::{Duration, Instant};

use flannel_common::Backoff;

/// After being told that it is too much.
const QUIET: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));
/// However long a server wants to be left alone.
const LONGEST: Duration = Duration::from_secs(3600);
/// Looks become rarer by so many doublings.
const MOST_SLOW: u32 = 4;

pub(crate) struct Pace {
    /// How often we were told so, less the times that all went well since.
    slow: u32,
    quiet_until: Option<Instant>,
    next_look: Option<Instant>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { slow: 0, quiet_until: None, next_look: None }
    }

    /// A round has ended: when is the next?
    pub(crate) fn ended(&mut self, every: Duration, now: Instant, rng: &mut fastrand::Rng) {
        self.slow = self.slow.saturating_sub(1);
        self.quiet_until = None;
        self.plan(every, now, rng);
    }

    /// It was too much. Returns how long nothing is asked; `told`: what the server has said of that.
    pub(crate) fn throttled(
        &mut self,
        every: Duration,
        told: Option<Duration>,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Duration {
        let pause = QUIET.pause(self.slow, rng).max(told.unwrap_or_default().min(LONGEST));
        self.slow = (self.slow + 1).min(MOST_SLOW);
        self.quiet_until = Some(now + pause);
        self.plan(every, now, rng);
        pause
    }

    fn plan(&mut self, every: Duration, now: Instant, rng: &mut fastrand::Rng) {
        let span = Backoff::new(every, Duration::MAX).pause(self.slow, rng);
        self.next_look = Some(now + span);
    }

    /// Until when nothing is asked at all.
    pub(crate) fn quiet_until(&self, now: Instant) -> Option<Instant> {
        self.quiet_until.filter(|until| *until > now)
    }

    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_spread_become_rare_when_it_is_too_much_and_frequent_again() {
        let (now, every) = (Instant::now(), Duration::from_secs(60));
        let wait = |pace: &Pace| pace.next_look().expect("planned") - now;
        let pauses: Vec<Duration> = (0..20)
            .map(|seed| {
                let mut pace = Pace::new();
                pace.ended(every, now, &mut fastrand::Rng::with_seed(seed));
                wait(&pace)
            })
            .collect();
        assert!(pauses.iter().all(|pause| (45..=75).contains(&pause.as_secs())), "{pauses:?}");
        assert!(pauses.iter().max() > pauses.iter().min(), "nodes do not ask in step");

        let (mut pace, mut rng) = (Pace::new(), fastrand::Rng::with_seed(1));
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
        for _ in 0..MOST_SLOW {
            pace.ended(every, now, &mut rng);
        }
        assert!(wait(&pace) <= every.mul_f64(1.25) && pace.quiet_until(now).is_none());
    }

    #[test]
    fn a_server_is_left_alone_for_as_long_as_it_says_but_not_for_ever() {
        let (now, every) = (Instant::now(), Duration::from_secs(60));
        let mut rng = fastrand::Rng::with_seed(1);
        let mut told = |seconds| {
            let mut pace = Pace::new();
            pace.throttled(every, Some(Duration::from_secs(seconds)), now, &mut rng);
            pace.quiet_until(now).map(|until| (until - now).as_secs())
        };
        assert_eq!(told(90), Some(90));
        assert_eq!(told(1_000_000), Some(3600));
        assert!(told(0) >= Some(3), "never less than without a word of it");
    }
}
