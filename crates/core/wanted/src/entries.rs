//! Reports on single entries. They cost nothing until somebody asks for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use flannel_state::{EntryCondition, RepairedEntry};

use crate::slots::Place;
use crate::wanted::Slot;
use crate::{FailureKind, KeyedEntry, Wanted};

/// Number of entries in a page of reports; the rest of the last requester's entries comes with them.
const PAGE_ENTRIES: usize = 1_000;
const LISTED_ENTRIES: usize = 1_000;

const NOT_YET: &str = "not yet written";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryQuery<S> {
    pub of: Requesters<S>,
    pub wrong_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requesters<S> {
    /// One page of requesters in order: those after this one, or the first ones.
    After(Option<S>),
    These(Vec<S>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryReport<S> {
    pub requester: S,
    /// Kind of the entry, such as `route`.
    pub kind: &'static str,
    pub entry: String,
    pub condition: EntryCondition,
    pub why: Option<String>,
}

/// Result of comparing everything with what is wanted, and of the repairs that followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    pub wanted: usize,
    pub found: usize,
    /// The first of those entries, as they are now.
    pub entries: Vec<RepairedEntry>,
    /// Entries of ours that nobody wanted, and that were removed.
    pub removed: Vec<String>,
    pub failure: Option<String>,
}

impl<S: Ord + Clone, E: KeyedEntry> Wanted<S, E> {
    /// Reports on the entries of a query. A page is empty when there is nothing after it.
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
            reports.len() < PAGE_ENTRIES
        };
        match &query.of {
            Requesters::After(after) => {
                for (who, places) in self.requesters.after(after.as_ref()) {
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
            None => (&slot.entry, slot.condition(now)),
        };
        let (requester, kind) = (who.clone(), entry.kind());
        EntryReport { requester, kind, entry: entry.describe(), condition, why }
    }

    /// Starts recording entries that are found not to be as wanted, and retries at once what waits for its turn.
    pub fn begin_comparison(&mut self) {
        let bad = self.slots.iter().filter(|slot| !slot.good).take(self.bad());
        self.compared = Some(bad.map(|slot| slot.entry.key()).collect());
        for (_, place) in std::mem::take(&mut self.waiting) {
            if let Some(attempts) = &mut self.slots[place].attempts {
                attempts.resume = None;
                attempts.history.forget_refusals();
                self.mark_at(place);
            }
        }
    }

    /// Returns the entries recorded since [`Self::begin_comparison`], and how they are now.
    pub fn end_comparison(&mut self, now: Instant) -> Comparison {
        let found: BTreeSet<E::Key> = self.compared.take().unwrap_or_default();
        let still_wanted: BTreeMap<_, _> =
            found.iter().filter_map(|key| Some((key, self.slots.get(key)?))).collect();
        let compared = |slot: &&Slot<E>| {
            let (state, why) = slot.condition(now);
            RepairedEntry { entry: slot.entry.describe(), state, why }
        };
        Comparison {
            wanted: self.len(),
            found: still_wanted.len(),
            entries: still_wanted.values().take(LISTED_ENTRIES).map(compared).collect(),
            ..Comparison::default()
        }
    }
}

impl<E> Slot<E> {
    fn condition(&self, now: Instant) -> (EntryCondition, Option<String>) {
        let attempts = self.attempts.as_ref();
        match attempts.and_then(|attempts| attempts.error.clone()) {
            _ if self.good => (EntryCondition::Programmed, None),
            Some(error) => (EntryCondition::Refused, Some(error)),
            None => {
                let resume = attempts.and_then(|attempts| attempts.resume);
                let left = resume.map(|resume| resume.saturating_duration_since(now));
                let left = left.map(|left| format!(": it is left alone for {left:.0?}"));
                let why =
                    self.contested_by().map(|who| format!("{who}{}", left.unwrap_or_default()));
                (EntryCondition::Missing, Some(why.unwrap_or_else(|| NOT_YET.to_owned())))
            }
        }
    }

    /// Why the entry is not there. The text does not change while the reason is the same.
    pub(crate) fn reason(&self) -> String {
        let error = self.attempts.as_ref().and_then(|attempts| attempts.error.clone());
        error.or_else(|| self.contested_by()).unwrap_or_else(|| NOT_YET.to_owned())
    }

    pub(crate) fn failure(&self) -> Option<FailureKind> {
        let attempts = self.attempts.as_ref()?;
        match attempts.error {
            Some(_) => Some(FailureKind::Refused),
            None => attempts.is_fought_over.then_some(FailureKind::FoughtOver),
        }
    }

    pub(crate) fn contested_by(&self) -> Option<String> {
        let attempts = self.attempts.as_ref().filter(|attempts| attempts.is_fought_over)?;
        let who = attempts.undone_by.as_ref().map(|who| format!(" ({who})")).unwrap_or_default();
        Some(format!("changed by somebody else again and again{who}"))
    }
}
