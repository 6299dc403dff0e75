//! Replay protection: each packet is accepted once, and not when it comes too late.

/// Size of the window: packets overtake each other by as many as there are queues and processors in between.
const BITS: u64 = 8192;
const WORDS: usize = (BITS / 64) as usize;
/// The word of the highest counter has replaced the oldest.
const REACH: u64 = BITS - 64;

/// A window that moves with the highest counter seen.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ReplayWindow {
    /// One more than the highest counter seen.
    next: u64,
    words: Vec<u64>,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { next: 0, words: vec![0; WORDS] }
    }
}

impl ReplayWindow {
    /// Whether it has the size of this version's. One that another process has handed over may have any.
    pub(crate) fn is_whole(&self) -> bool {
        self.words.len() == WORDS
    }

    /// Whether this counter may be accepted. A cheap question, before anything is decrypted.
    pub(crate) fn may_take(&self, counter: u64) -> bool {
        if counter >= self.next {
            return true;
        }
        self.next - counter <= REACH && !self.has(counter)
    }

    /// Accepts the counter of an authentic packet. Returns false if it has come before, or too late.
    pub(crate) fn take(&mut self, counter: u64) -> bool {
        if !self.may_take(counter) {
            return false;
        }
        if counter >= self.next {
            // All words in between are of counters that have not come.
            let (from, to) = (self.next.div_ceil(64), counter / 64);
            for word in from..=to.min(from + WORDS as u64) {
                self.words[Self::at(word)] = 0;
            }
            self.next = counter + 1;
        }
        self.words[Self::at(counter / 64)] |= 1 << (counter % 64);
        true
    }

    fn at(word: u64) -> usize {
        (word % WORDS as u64) as usize
    }

    fn has(&self, counter: u64) -> bool {
        self.words[Self::at(counter / 64)] & 1 << (counter % 64) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_packet_that_comes_too_late_is_not_taken() {
        let mut window = ReplayWindow::default();
        assert!(window.take(0) && !window.take(0));
        assert!(window.take(BITS + 100));
        assert!(!window.take(100) && window.take(200) && !window.take(200));
        assert!(window.take(1 << 60) && !window.take(BITS + 101));
    }

    #[test]
    fn a_window_of_another_size_is_not_whole() {
        let handed = |words| serde_json::from_value(serde_json::json!({"next": 9, "words": words}));
        let of = |words: Vec<u64>| -> ReplayWindow { handed(words).expect("a window") };
        assert!(ReplayWindow::default().is_whole() && of(vec![0; WORDS]).is_whole());
        assert!(!of(vec![]).is_whole() && !of(vec![0; WORDS - 1]).is_whole());
    }

    proptest! {
        /// Against a set that forgets nothing; what is within half a window is always judged alike.
        #[test]
        fn each_is_taken_once(steps in proptest::collection::vec(0_u64..4000, 1..400), jumps in 0_u64..20_000) {
            let (mut window, mut seen, mut highest) = (ReplayWindow::default(), BTreeSet::new(), 0);
            for (at, step) in steps.into_iter().enumerate() {
                let base = at as u64 * jumps / 50;
                let counter = base + step;
                let late = highest > counter && highest - counter > REACH - 64;
                let taken = window.take(counter);
                if !late {
                    prop_assert_eq!(taken, seen.insert(counter));
                } else if taken {
                    prop_assert!(seen.insert(counter));
                }
                highest = highest.max(counter);
            }
        }
    }
}
