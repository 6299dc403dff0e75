//! Whether a path takes far longer than it has been seen to take. Compared are the shortest round trip of many asks,
//! for a busy node answers some late, and the shortest that the path ever had.

use std::num::NonZeroU32;
use std::time::Duration;

/// A path that takes less than this beyond its shortest round trip is as it was.
const FAR_ABOVE: Duration = Duration::from_millis(50);
/// Nor is a path slow that takes less than so many times its shortest round trip: those around the world vary.
const TIMES: u32 = 2;

/// The shortest round trip of a path since this node probes it. Small: there is one for each peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShortestRoundTrip(Option<NonZeroU32>);

impl ShortestRoundTrip {
    /// Whether this is far more than the path was seen to take.
    pub(crate) fn is_exceeded_by(self, now: Duration) -> bool {
        let least = self.0.map(|least| Duration::from_micros(least.get().into()));
        least.is_some_and(|least| now >= least + FAR_ABOVE && now >= least * TIMES)
    }

    /// Takes in the shortest round trip of a turn; what it was before, if the turn's is far above it.
    pub(crate) fn note(&mut self, now: Duration) -> Option<RoundTrips> {
        let is_exceeded = self.is_exceeded_by(now);
        let now = micros(now);
        let least = self.0.map_or(now, |least| least.min(now));
        self.0 = Some(least);
        is_exceeded.then_some(RoundTrips { shortest: least.get(), now: now.get() })
    }
}

fn micros(time: Duration) -> NonZeroU32 {
    let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    NonZeroU32::new(micros).unwrap_or(NonZeroU32::MIN)
}

/// Round trips of a path that has become slow, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    /// The shortest that it ever had.
    pub shortest: u32,
    /// The shortest of many that it has now.
    pub now: u32,
}

impl RoundTrips {
    /// `312.4 ms`.
    pub(crate) fn in_words(micros: u32) -> String {
        format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seen: &[u64], now: u64) -> Option<RoundTrips> {
        let mut shortest = ShortestRoundTrip::default();
        for millis in seen {
            shortest.note(Duration::from_millis(*millis));
        }
        shortest.note(Duration::from_millis(now))
    }

    #[test]
    fn a_path_is_slow_that_takes_far_longer_than_it_was_seen_to_take() {
        assert_eq!(after(&[1], 120), Some(RoundTrips { shortest: 1_000, now: 120_000 }));
        assert_eq!(after(&[3, 1, 30], 51), Some(RoundTrips { shortest: 1_000, now: 51_000 }));
        assert_eq!(after(&[100], 250), Some(RoundTrips { shortest: 100_000, now: 250_000 }));
    }

    #[test]
    fn a_path_that_was_never_seen_to_be_faster_or_varies_as_long_ones_do_is_not_slow() {
        assert_eq!(after(&[], 500), None, "nothing to compare with");
        assert_eq!(after(&[500], 520), None);
        assert_eq!(after(&[1], 45), None, "a busy node");
        assert_eq!(after(&[140], 230), None, "around the world");
        assert_eq!(after(&[500, 2], 2), None, "it has become faster");
    }

    #[test]
    fn what_a_slow_path_takes_is_never_its_shortest_round_trip() {
        let mut shortest = ShortestRoundTrip::default();
        shortest.note(Duration::from_millis(2));
        for _ in 0..100 {
            assert!(shortest.note(Duration::from_millis(80)).is_some());
        }
        assert_eq!(shortest.note(Duration::ZERO), None);
        assert!(shortest.is_exceeded_by(Duration::from_millis(51)));
    }
}
