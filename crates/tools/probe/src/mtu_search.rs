//! The largest packet that passes, found by a short search between one that does and one that does not.

/// Sizes of whole IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MtuSearch {
    passes: u32,
    too_large: u32,
    /// What it was elsewhere, or the last time: most often it is the same here.
    guess: Option<u32>,
}

impl MtuSearch {
    pub(crate) fn new(passes: u32, too_large: u32, guess: Option<u32>) -> Self {
        Self { passes, too_large, guess }
    }

    /// What to try next; `None` when it is found.
    pub(crate) fn next(&mut self) -> Option<u32> {
        if self.too_large - self.passes <= 1 {
            return None;
        }
        let within = self.passes + 1..self.too_large;
        // First the guess, then the one that must fail if it is right.
        match self.guess {
            Some(guess) if within.contains(&guess) => Some(guess),
            Some(guess) if guess == self.passes => {
                self.guess = None;
                Some(guess + 1)
            }
            _ => Some(self.passes.midpoint(self.too_large)),
        }
    }

    pub(crate) fn tell(&mut self, size: u32, has_passed: bool) {
        if has_passed {
            self.passes = self.passes.max(size);
        } else {
            self.too_large = self.too_large.min(size);
        }
        // Packets get lost, too: whatever came, the search goes on between what is left.
        self.too_large = self.too_large.max(self.passes + 1);
    }

    pub(crate) fn found(&self) -> u32 {
        self.passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(limit: u32, guess: Option<u32>) -> (u32, usize) {
        let mut search = MtuSearch::new(100, 1450, guess);
        let mut count = 0;
        while let Some(size) = search.next() {
            search.tell(size, size <= limit);
            count += 1;
        }
        (search.found(), count)
    }

    #[test]
    fn it_is_found_to_the_byte_in_a_dozen_tries_and_in_two_if_it_was_guessed() {
        for limit in 100..1450 {
            let (found, count) = tries(limit, None);
            assert!(found == limit && count <= 11, "{limit}: {found} in {count}");
            let (found, count) = tries(limit, Some(1350));
            assert!(found == limit && count <= 13, "{limit}: {found} in {count}");
        }
        assert_eq!(tries(1350, Some(1350)), (1350, 2));
        assert_eq!(tries(1449, Some(1449)), (1449, 1));
        assert_eq!(tries(1350, Some(9000)).0, 1350, "a guess that cannot be");
    }
}
