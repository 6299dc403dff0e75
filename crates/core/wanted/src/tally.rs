//! Counts entries by kind and state, for metrics. Computed on request.

use std::collections::{BTreeMap, BTreeSet};

use crate::{KeyedEntry, Wanted};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally<S> {
    pub kinds: BTreeMap<&'static str, KindTally>,
    pub contested: usize,
    pub incomplete: BTreeSet<S>,
    pub comparisons: u64,
    pub overflows: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindTally {
    pub wanted: usize,
    /// Entries still to be written, now or after a pause.
    pub missing: usize,
    pub refused: BTreeMap<&'static str, usize>,
    /// How often an entry was repaired that somebody else had changed.
    pub repaired: u64,
}

impl KindTally {
    pub fn programmed(&self) -> usize {
        self.wanted - self.missing - self.refused.values().sum::<usize>()
    }
}

impl<S> Default for Tally<S> {
    fn default() -> Self {
        let (kinds, incomplete) = (BTreeMap::new(), BTreeSet::new());
        Self { kinds, contested: 0, incomplete, comparisons: 0, overflows: 0 }
    }
}

impl<S: Ord + Clone, E: KeyedEntry> Wanted<S, E> {
    pub fn tally(&self) -> Tally<S> {
        let mut tally = Tally { contested: self.contested(), ..Tally::default() };
        for (kind, repaired) in &self.counts.repaired {
            tally.kinds.entry(kind).or_default().repaired = *repaired;
        }
        // Entries of one kind are neighbours, so each kind is looked up about once.
        let mut entries = self.slots.iter().peekable();
        while let Some(first) = entries.peek() {
            let kind = first.entry.kind();
            let of_kind = tally.kinds.entry(kind).or_default();
            while let Some(slot) = entries.next_if(|slot| slot.entry.kind() == kind) {
                of_kind.wanted += 1;
                if slot.good {
                    continue;
                }
                tally.incomplete.insert(self.requesters.who(slot.requester).clone());
                let error = slot.attempts.as_ref().and_then(|attempts| attempts.error.as_deref());
                match error {
                    Some(error) => *of_kind.refused.entry(class(error)).or_default() += 1,
                    None => of_kind.missing += 1,
                }
            }
        }
        for (place, requests) in &self.contested {
            let in_force = &self.slots[*place].entry;
            let losers = requests.iter().filter(|(_, entry)| *entry != in_force);
            tally.incomplete.extend(losers.map(|(who, _)| who.clone()));
        }
        tally
    }
}

/// Class of an error, by the number that the system's errors end with.
fn class(error: &str) -> &'static str {
    let number = error.rsplit_once("(os error ").and_then(|(_, rest)| rest.split(')').next());
    match number.and_then(|number| number.parse::<u8>().ok()) {
        Some(1 | 13) => "not-permitted",
        Some(2 | 3) => "not-found",
        Some(12 | 28 | 105) => "no-room",
        Some(16 | 98) => "busy",
        Some(17) => "exists",
        Some(6 | 19 | 100) => "no-device",
        Some(22 | 34) => "invalid",
        Some(93 | 94 | 95 | 97) => "unsupported",
        Some(99 | 101 | 113) => "unreachable",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::class;

    #[test]
    fn what_the_system_says_becomes_one_of_a_few_words() {
        let said = |errno| Error::from_raw_os_error(errno).to_string();
        assert_eq!(class(&said(101)), "unreachable");
        assert_eq!(class(&format!("Nexthop has invalid gateway ({})", said(101))), "unreachable");
        assert_eq!(class(&format!("{}; next try soon", said(17))), "exists");
        assert_eq!(class("device flannel.1 is not there"), "other");
        assert_eq!(class("(os error 70000)"), "other");
    }
}
