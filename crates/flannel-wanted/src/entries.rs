//! The state of single entries, in words. It costs nothing unless somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Instant;

use crate::slots::Place;
use crate::wanted::Slot;
use crate::{FailureKind, KeyedEntry, Wanted};

/// Entries told of at once; what is left of the last requester comes with them.
const PAGE: usize = 1_000;
/// Entries that a comparison lists; the rest is a number.
const LISTED: usize = 1_000;

const NOT_YET: &str = "not yet written";

/// Which entries are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryQuery<S> {
    pub of: Requesters<S>,
    /// Only what is not as wanted.
    pub wrong_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requesters<S> {
    /// A page of them, in order: those after this one, or the first.
    After(Option<S>),
    These(Vec<S>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryReport<S> {
    pub requester: S,
    /// What kind of entry, such as `route`.
    pub kind: &'static str,
    /// As the entry describes itself.
    pub entry: String,
    pub condition: EntryCondition,
    /// Why it is not there.
    pub why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryCondition {
    /// The world was last seen to hold it so.
    Programmed,
    /// It is to be written, now or at its time.
    Missing,
    /// It could not be written, and is tried again.
    Refused,
    /// Another requester wants another version, and has priority.
    Contested,
}

/// What a comparison of everything has found, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    pub wanted: usize,
    /// How many entries were not as wanted.
    pub found: usize,
    /// The first of them, as they are now.
    pub entries: Vec<ComparedEntry>,
    /// What was ours, wanted by nobody, and was taken away.
    pub removed: Vec<String>,
    /// Why it could not be compared.
    pub failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedEntry {
    pub entry: String,
    pub condition: EntryCondition,
    pub why: Option<String>,
}

impl<S: Ord + Clone, E: KeyedEntry> Wanted<S, E> {
    /// A page is empty when there is nothing after it.
    pub fn report(&self, query: &EntryQuery<S>, now: Instant) -> Vec<EntryReport<S>> {
        if query.wrong_only && self.bad() == 0 && self.contested.is_empty() {
            return Vec::new();
        }
        let mut reports = Vec::new();
        let mut add = |who: &S, places: &[Place]| {
            let mut places = places.to_vec();
            places.sort_by_cached_key(|place| self.slots[*place].entry.key());
            let told = places.into_iter().map(|place| self.report_one(who, place, now));
            reports.extend(told.filter(|report| {
                !query.wrong_only || report.condition != EntryCondition::Programmed
            }));
            reports.len() < PAGE
        };
        match &query.of {
            Requesters::After(after) => {
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                for (who, places) in self.requesters.after(from) {
                    if !add(who, places) {
                        break;
                    }
                }
            }
            Requesters::These(requesters) => {
                for who in requesters {
                    add(who, self.requesters.places(who));
                }
            }
        }
        reports
    }

    fn report_one(&self, who: &S, place: Place, now: Instant) -> EntryReport<S> {
        let slot = &self.slots[place];
        let own = self.contested.get(&place).and_then(|requests| requests.get(who));
        let (entry, (condition, why)) = match own.filter(|own| **own != slot.entry) {
            Some(own) => {
                let why =
                    format!("another requester wants another version: {}", slot.entry.describe());
                (own, (EntryCondition::Contested, Some(why)))
            }
            None => (&slot.entry, slot.fate(now)),
        };
        let (requester, kind) = (who.clone(), entry.kind());
        EntryReport { requester, kind, entry: entry.describe(), condition, why }
    }

    /// From now on it is noted what is found not to be as wanted; what waits for its time is tried now.
    pub fn begin_comparison(&mut self) {
        let bad = self.slots.iter().filter(|slot| !slot.good).take(self.bad());
        self.compared = Some(bad.map(|slot| slot.entry.key()).collect());
        for (_, place) in std::mem::take(&mut self.waiting) {
            if let Some(attempts) = &mut self.slots[place].attempts {
                attempts.resume = None;
                attempts.history.circumstances_changed();
                self.mark_at(place);
            }
        }
    }

    /// What was found since, and how it is now.
    pub fn end_comparison(&mut self, now: Instant) -> Comparison {
        let found: BTreeSet<E::Key> = self.compared.take().unwrap_or_default();
        let still_wanted: BTreeMap<_, _> =
            found.iter().filter_map(|key| Some((key, self.slots.get(key)?))).collect();
        let compared = |slot: &&Slot<E>| {
            let (condition, why) = slot.fate(now);
            ComparedEntry { entry: slot.entry.describe(), condition, why }
        };
        Comparison {
            wanted: self.len(),
            found: still_wanted.len(),
            entries: still_wanted.values().take(LISTED).map(compared).collect(),
            ..Comparison::default()
        }
    }
}

impl<E> Slot<E> {
    /// How it fares, and why it is not there.
    fn fate(&self, now: Instant) -> (EntryCondition, Option<String>) {
        let attempts = self.attempts.as_ref();
        match attempts.and_then(|attempts| attempts.error.clone()) {
            _ if self.good => (EntryCondition::Programmed, None),
            Some(error) => (EntryCondition::Refused, Some(error)),
            None => {
                let resume = attempts.and_then(|attempts| attempts.resume);
                let left = resume.map(|resume| resume.saturating_duration_since(now));
                let left = left.map(|left| format!(": it is left alone for {left:.0?}"));
                let why = self.quarrel().map(|who| format!("{who}{}", left.unwrap_or_default()));
                (EntryCondition::Missing, Some(why.unwrap_or_else(|| NOT_YET.to_owned())))
            }
        }
    }

    /// Why it is not there, in words that stay the same as long as it is so.
    pub(crate) fn reason(&self) -> String {
        let error = self.attempts.as_ref().and_then(|attempts| attempts.error.clone());
        error.or_else(|| self.quarrel()).unwrap_or_else(|| NOT_YET.to_owned())
    }

    pub(crate) fn failure(&self) -> Option<FailureKind> {
        let attempts = self.attempts.as_ref()?;
        match attempts.error {
            Some(_) => Some(FailureKind::Refused),
            None => attempts.is_fought_over.then_some(FailureKind::FoughtOver),
        }
    }

    /// Who undoes it again and again, if somebody does.
    pub(crate) fn quarrel(&self) -> Option<String> {
        let attempts = self.attempts.as_ref().filter(|attempts| attempts.is_fought_over)?;
        let who = attempts.undone_by.as_ref().map(|who| format!(" ({who})")).unwrap_or_default();
        Some(format!("changed by somebody else again and again{who}"))
    }
}
