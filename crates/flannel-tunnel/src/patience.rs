//! How long a thread looks for the next packet before it sleeps.
//!
//! Waking a thread whose processor has gone to sleep takes tens of microseconds, more than all else that is done
//! for a packet. Where packets have come one by one and close to each other, as requests and answers do, the next
//! is likely to come soon, and is looked for a little while. Where they come in numbers the thread is hardly ever
//! asleep, and where they are far apart it sleeps at once.

use std::time::{Duration, Instant};

/// Longer than a round trip between neighbours, and short enough to be nothing when it is in vain.
const LOOK: Duration = Duration::from_micros(100);
/// Packets this close to each other are worth looking for.
const CLOSE: Duration = Duration::from_micros(200);

#[derive(Debug, Default)]
pub(crate) struct Patience {
    last: Option<Instant>,
    worth_it: bool,
}

impl Patience {
    /// A packet has come, by itself or among others.
    pub(crate) fn came(&mut self, now: Instant, alone: bool) {
        let close = |last| now.saturating_duration_since(last) <= CLOSE;
        self.worth_it = alone && self.last.is_some_and(close);
        self.last = Some(now);
    }

    /// Until when it is looked for the next one; `None`: not at all.
    pub(crate) fn look_until(&self, now: Instant) -> Option<Instant> {
        self.worth_it.then(|| now + LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(gaps: &[u64]) -> bool {
        let mut now = Instant::now();
        let mut patience = Patience::default();
        patience.came(now, true);
        for gap in gaps {
            now += Duration::from_micros(*gap);
            patience.came(now, true);
        }
        patience.look_until(now).is_some()
    }

    #[test]
    fn packets_that_follow_closely_are_looked_for_and_others_waited_for() {
        assert!(!after(&[]), "one alone says nothing of the next");
        assert!(after(&[60]));
        assert!(after(&[5000, 60]));
        assert!(!after(&[60, 5000]), "the first that comes late ends it");
    }

    #[test]
    fn it_is_looked_for_a_tenth_of_a_millisecond_at_most() {
        let now = Instant::now();
        let mut patience = Patience::default();
        patience.came(now, true);
        patience.came(now, true);
        assert_eq!(patience.look_until(now), Some(now + Duration::from_micros(100)));
        patience.came(now, false);
        assert_eq!(patience.look_until(now), None, "many at once need no looking for");
    }
}
