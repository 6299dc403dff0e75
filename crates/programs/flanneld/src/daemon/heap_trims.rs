//! When memory that start-up needed goes back to the system.

use std::time::{Duration, Instant};

/// Pauses from the start, the first last: start-up, and what comes once after it, is over by then.
const PAUSES: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(1)];

/// Trims that are still to come, the next one last.
pub(super) struct HeapTrims(Vec<Instant>);

impl HeapTrims {
    pub(super) fn new(now: Instant) -> Self {
        Self(PAUSES.map(|pause| now + pause).to_vec())
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.0.last().copied()
    }

    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.0.pop_if(|due| *due <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_trimmed_one_and_three_seconds_after_the_start_and_never_again() {
        let begin = Instant::now();
        let mut trims = HeapTrims::new(begin);
        let mut trimmed_at = Vec::new();
        for half_second in 0..20_u64 {
            let now = begin + Duration::from_millis(500 * half_second);
            if trims.take_due(now) {
                trimmed_at.push(half_second);
            }
        }
        assert_eq!(trimmed_at, [2, 6]);
        assert_eq!(trims.next_wake(), None);
    }
}
