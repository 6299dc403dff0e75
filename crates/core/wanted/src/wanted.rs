//! The desired state: every entry once, by key, with who wants it and what state it is in.
//!
//! Pure bookkeeping: nothing in here talks to the world, and time is passed in. Entries are wanted by a
//! requester (a lease, or the node itself), whose entries are replaced as a whole. Should two requesters
//! want different versions of one entry, that of the lower in order is in force, so that the outcome
//! depends on who wants what and never on who came first. Only [`KeyedEntry`] knows what an entry is.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::RangeBounds;
use std::time::{Duration, Instant};

use flannel_common::{RepairHistory, RepairPolicy};

use crate::Desired;
use crate::requesters::{Number, Places, Requesters};
use crate::slots::{Place, Slots};

/// An entry that can be wanted: one version of its key. It may hold a secret, so it is never printed.
pub trait KeyedEntry: Clone + PartialEq + Send + 'static {
    type Key: Ord + Clone;
    /// A device that entries need: without it they are gone.
    type Device: Ord;

    fn key(&self) -> Self::Key;

    /// Compares the entry's key with another one, without building it where that is frequent.
    fn compare_key(&self, key: &Self::Key) -> Ordering {
        self.key().cmp(key)
    }

    /// All devices that the entry needs.
    fn devices(&self) -> impl Iterator<Item = Self::Device> {
        std::iter::empty()
    }

    /// Description for people, in a log or a report, without secrets.
    fn describe(&self) -> String;

    /// Kind of the entry: one of a few words in lower case, for counting.
    fn kind(&self) -> &'static str;

    fn importance(&self) -> Importance {
        Importance::Ordinary
    }
}

/// What is lost without an entry, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    /// No peer can be reached: a tunnel's device, say.
    Foundation,
    Required,
    /// One peer, as a rule.
    Ordinary,
    /// Nothing that the node's readiness waits for.
    Optional,
}

pub struct Wanted<S, E: KeyedEntry> {
    policy: RepairPolicy,
    pub(crate) slots: Slots<E>,
    pub(crate) requesters: Requesters<S>,
    /// All versions of the few entries that more than one requester wants.
    pub(crate) contested: BTreeMap<Place, BTreeMap<S, E>>,
    /// Number of entries in force that need a device. It is read at every event of every device of the node.
    devices: BTreeMap<E::Device, usize>,
    /// Places of entries to be written, unordered; some twice, or written since. `dirty_count` is the true number.
    dirty: Vec<Place>,
    dirty_count: usize,
    pub(crate) waiting: BTreeSet<(Instant, Place)>,
    pub(crate) counts: Counts,
    /// Entries found not to be as wanted, while a comparison is under way.
    pub(crate) compared: Option<BTreeSet<E::Key>>,
}

#[derive(Default)]
pub(crate) struct Counts {
    bad: usize,
    pub(crate) repaired: BTreeMap<&'static str, u64>,
}

pub(crate) struct Slot<E> {
    pub(crate) entry: E,
    pub(crate) requester: Number,
    /// The entry was last seen as wanted.
    pub(crate) good: bool,
    /// Somebody else has changed the entry since it was good.
    undone: bool,
    dirty: bool,
    /// The current resync has seen the entry, or it was written since.
    seen: bool,
    pub(crate) attempts: Option<Box<Attempts>>,
}

#[derive(Default)]
pub(crate) struct Attempts {
    pub(crate) history: RepairHistory,
    pub(crate) error: Option<String>,
    pub(crate) resume: Option<Instant>,
    /// Somebody else undoes it so often that it is repaired only after pauses.
    pub(crate) is_fought_over: bool,
    pub(crate) undone_by: Option<String>,
}

/// Share of entries to be written (one in so many) above which walking over all is cheaper than finding each.
const WALK_ABOVE: usize = 8;

/// Share of requesters that change (one in so many) above which rebuilding the table is cheaper.
const REBUILD_ABOVE: usize = 32;

pub enum Batch<K> {
    Few(Vec<K>),
    Many,
}

/// What to do about an entry that somebody else has changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Repair {
    Now,
    /// The entry has been undone too often: it is repaired after this pause.
    Later(Duration),
    /// The entry was to be written anyway.
    AlreadyDue,
}

impl<E: KeyedEntry> Slot<E> {
    fn new(entry: E, requester: Number) -> Self {
        Self {
            entry,
            requester,
            good: false,
            undone: false,
            dirty: true,
            seen: false,
            attempts: None,
        }
    }

    /// Sets whether the entry is good. Returns whether it was before.
    fn judge(&mut self, good: bool, counts: &mut Counts) -> bool {
        match (self.good, good) {
            (true, false) => counts.bad += 1,
            (false, true) => {
                counts.bad -= 1;
                if std::mem::take(&mut self.undone) {
                    *counts.repaired.entry(self.entry.kind()).or_default() += 1;
                }
            }
            _ => {}
        }
        std::mem::replace(&mut self.good, good)
    }

    /// Notes that somebody else has changed the entry. Returns whether it was good before.
    fn lost(&mut self, counts: &mut Counts) -> bool {
        let was_good = self.judge(false, counts);
        self.undone |= was_good;
        was_good
    }
}

impl<S: Ord + Clone, E: KeyedEntry> Wanted<S, E> {
    pub fn new(policy: RepairPolicy) -> Self {
        Self {
            policy,
            slots: Slots::new(),
            requesters: Requesters::new(),
            contested: BTreeMap::new(),
            devices: BTreeMap::new(),
            dirty: Vec::new(),
            dirty_count: 0,
            waiting: BTreeSet::new(),
            counts: Counts::default(),
            compared: None,
        }
    }

    /// Replaces all that is wanted. Returns the entries nobody wants any more.
    pub fn replace(&mut self, desired: Desired<S, E>) -> Vec<E> {
        let mut unwanted = Vec::new();
        if self.requesters.len() > 0 {
            unwanted = self.retain(&desired.iter().map(|(who, _)| who.clone()).collect());
        }
        unwanted.extend(self.set_each(desired));
        self.still_unwanted(unwanted)
    }

    /// Replaces what single requesters want. Returns the entries nobody wants any more.
    pub fn update(&mut self, changes: Desired<S, E>) -> Vec<E> {
        let unwanted = self.set_each(changes);
        self.still_unwanted(unwanted)
    }

    fn set_each(&mut self, changes: Desired<S, E>) -> Vec<E> {
        let mut changes = changes;
        // A stable sort: of one requester's requests the last one counts.
        changes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let each_once = changes.is_sorted_by(|(a, _), (b, _)| a < b);
        if each_once && changes.len() * REBUILD_ABOVE > self.requesters.len() {
            let is_new = |(who, _): &mut (S, Vec<E>)| !self.requesters.contains(who);
            let new = changes.extract_if(.., is_new).collect();
            self.add(new);
        }
        changes.into_iter().flat_map(|(who, entries)| self.set(who, entries)).collect()
    }

    /// Drops entries that another requester wants by now: those are overwritten, not removed.
    fn still_unwanted(&self, mut unwanted: Vec<E>) -> Vec<E> {
        unwanted.retain(|entry| self.slots.find(&entry.key()).is_none());
        unwanted
    }

    /// Adds many unknown requesters at once, sorting them only once.
    fn add(&mut self, many: Desired<S, E>) {
        let count = many.iter().map(|(_, entries)| entries.len()).sum();
        self.slots.make_room(count);
        let mut unsorted = Vec::with_capacity(count);
        self.requesters.make_room(many.len());
        let mut requesters = Vec::with_capacity(many.len());
        for (requester, entries) in many.into_iter().filter(|(_, entries)| !entries.is_empty()) {
            let (begin, requester) = (unsorted.len(), self.requesters.admit(requester));
            for entry in entries {
                count_in(&mut self.devices, &entry);
                unsorted.push(self.slots.insert_unsorted(Slot::new(entry, requester)));
            }
            self.requesters.set(requester, in_order(&unsorted[begin..]));
            requesters.push(requester);
        }
        self.counts.bad += count;
        self.dirty_count += count;
        self.dirty.extend(&unsorted);
        self.requesters.put_in_order(requesters);
        for duplicate in self.slots.put_in_order(unsorted) {
            let Some(slot) = self.slots.take(duplicate) else { continue };
            count_out(&mut self.devices, &slot.entry);
            self.counts.bad -= 1;
            self.dirty_count -= 1;
            let place = self.request(slot.requester, slot.entry);
            let who = self.requesters.who(slot.requester);
            let mut places = Places::from_slice(self.requesters.places(who));
            places.retain(|other| *other != duplicate);
            places.push(place);
            self.requesters.set(slot.requester, in_order(&places));
        }
    }

    fn set(&mut self, who: S, entries: Vec<E>) -> Vec<E> {
        if entries.is_empty() && !self.requesters.contains(&who) {
            return Vec::new();
        }
        let requester = self.requesters.number(&who);
        let places: Places =
            entries.into_iter().map(|entry| self.request(requester, entry)).collect();
        let places = in_order(&places);
        if self.requesters.places(&who) == &places[..] {
            return Vec::new();
        }
        let old = Places::from_slice(self.requesters.places(&who));
        let gone = old.iter().filter(|place| places.binary_search(place).is_err());
        let unwanted = gone.filter_map(|place| self.release(*place, &who)).collect();
        self.requesters.set(requester, places);
        unwanted
    }

    /// Forgets every requester that is not in `keep`. Returns the entries nobody wants any more.
    fn retain(&mut self, keep: &BTreeSet<S>) -> Vec<E> {
        let gone: Vec<S> =
            self.requesters.names().filter(|who| !keep.contains(who)).cloned().collect();
        gone.into_iter().flat_map(|requester| self.set(requester, Vec::new())).collect()
    }

    fn request(&mut self, requester: Number, entry: E) -> Place {
        let Some(place) = self.slots.find(&entry.key()) else {
            count_in(&mut self.devices, &entry);
            self.counts.bad += 1;
            let slot = Slot { dirty: false, ..Slot::new(entry, requester) };
            let place = self.slots.insert(slot);
            self.mark_at(place);
            return place;
        };
        let slot = &self.slots[place];
        if slot.requester != requester || self.contested.contains_key(&place) {
            let who = |number: Number| self.requesters.who(number).clone();
            let requests = self
                .contested
                .entry(place)
                .or_insert_with(|| BTreeMap::from([(who(slot.requester), slot.entry.clone())]));
            requests.insert(who(requester), entry);
            self.put_lowest_in_force(place);
        } else {
            self.put_in_force(place, entry);
        }
        place
    }

    fn release(&mut self, place: Place, who: &S) -> Option<E> {
        if let Some(requests) = self.contested.get_mut(&place) {
            requests.remove(who);
            self.put_lowest_in_force(place);
            return None;
        }
        self.clean(place);
        let slot = self.slots.remove(place)?;
        self.counts.bad -= usize::from(!slot.good);
        count_out(&mut self.devices, &slot.entry);
        Some(slot.entry)
    }

    fn put_lowest_in_force(&mut self, place: Place) {
        let Some(requests) = self.contested.get(&place) else { return };
        let Some((who, entry)) = requests.first_key_value() else { return };
        let (requester, entry) = (self.requesters.number(who), entry.clone());
        if requests.len() == 1 {
            self.contested.remove(&place);
        }
        self.slots[place].requester = requester;
        self.put_in_force(place, entry);
    }

    fn put_in_force(&mut self, place: Place, entry: E) {
        let slot = &mut self.slots[place];
        if slot.entry != entry {
            count_in(&mut self.devices, &entry);
            count_out(&mut self.devices, &std::mem::replace(&mut slot.entry, entry));
            self.clean(place);
            let slot = &mut self.slots[place];
            slot.judge(false, &mut self.counts);
            slot.undone = false;
            slot.attempts = None;
            self.mark_at(place);
        }
    }

    pub fn get(&self, key: &E::Key) -> Option<&E> {
        self.slots.get(key).map(|slot| &slot.entry)
    }

    pub fn iter(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().map(|slot| &slot.entry)
    }

    pub fn range(&self, keys: impl RangeBounds<E::Key>) -> impl Iterator<Item = &E> {
        self.slots.range(keys).map(|slot| &slot.entry)
    }

    /// Whether the entry was last seen as wanted; `None` if it is not wanted.
    pub fn is_good(&self, key: &E::Key) -> Option<bool> {
        self.slots.get(key).map(|slot| slot.good && !slot.dirty)
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bad(&self) -> usize {
        self.counts.bad
    }

    pub fn contested(&self) -> usize {
        self.contested.len()
    }

    pub fn devices(&self) -> impl Iterator<Item = &E::Device> {
        self.devices.keys()
    }

    /// Marks entries for which `is_lost` is true to be written again; it gets the entry and whether it was good.
    pub fn rewrite_where(&mut self, is_lost: impl Fn(&E, bool) -> bool) {
        for (place, slot) in self.slots.iter_mut() {
            if is_lost(&slot.entry, slot.good) {
                if slot.lost(&mut self.counts)
                    && let Some(compared) = &mut self.compared
                {
                    compared.insert(slot.entry.key());
                }
                if !std::mem::replace(&mut slot.dirty, true) {
                    self.dirty_count += 1;
                    self.dirty.push(place);
                }
            }
        }
    }

    pub fn mark(&mut self, key: &E::Key) {
        if let Some(place) = self.slots.find(key) {
            self.mark_at(place);
        }
    }

    pub(crate) fn mark_at(&mut self, place: Place) {
        if !std::mem::replace(&mut self.slots[place].dirty, true) {
            self.dirty_count += 1;
            self.dirty.push(place);
        }
    }

    /// Takes an entry off all lists.
    fn clean(&mut self, place: Place) {
        let slot = &mut self.slots[place];
        self.dirty_count -= usize::from(std::mem::replace(&mut slot.dirty, false));
        if let Some(resume) = slot.attempts.as_ref().and_then(|attempts| attempts.resume) {
            self.waiting.remove(&(resume, place));
        }
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty_count > 0
    }

    pub fn is_marked(&self, key: &E::Key) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.dirty)
    }

    pub fn batch(&mut self) -> Batch<E::Key> {
        if self.dirty_count * WALK_ABOVE > self.slots.len() {
            return Batch::Many;
        }
        let is_dirty = |place: &Place| self.slots.at(*place).is_some_and(|slot| slot.dirty);
        self.dirty.retain(is_dirty);
        self.dirty.sort_unstable();
        self.dirty.dedup();
        let keys = self.dirty.iter().map(|place| self.slots[*place].entry.key());
        let mut keys: Vec<E::Key> = keys.collect();
        keys.sort_unstable();
        Batch::Few(keys)
    }

    /// The entries of a batch, in order of dependency.
    pub fn entries<'a>(&'a self, batch: &'a Batch<E::Key>) -> Box<dyn Iterator<Item = &'a E> + 'a> {
        match batch {
            Batch::Few(keys) => Box::new(keys.iter().filter_map(|key| self.get(key))),
            Batch::Many => {
                Box::new(self.slots.iter().filter(|slot| slot.dirty).map(|slot| &slot.entry))
            }
        }
    }

    pub fn written(&mut self, batch: Batch<E::Key>, failed: &BTreeSet<E::Key>) {
        let keys = match batch {
            Batch::Few(keys) => keys,
            Batch::Many => {
                let mut others = Vec::new();
                for (_, slot) in self.slots.iter_mut().filter(|(_, slot)| slot.dirty) {
                    let is_failed = || !failed.is_empty() && failed.contains(&slot.entry.key());
                    if slot.attempts.is_some() || is_failed() {
                        others.push(slot.entry.key());
                        continue;
                    }
                    slot.dirty = false;
                    self.dirty_count -= 1;
                    slot.judge(true, &mut self.counts);
                    slot.seen = true;
                }
                others
            }
        };
        for key in keys.iter().filter(|key| !failed.contains(key)) {
            self.succeeded(key);
        }
        if self.dirty_count == 0 {
            self.dirty = Vec::new();
        }
    }

    pub fn succeeded(&mut self, key: &E::Key) {
        if let Some(place) = self.slots.find(key) {
            self.succeeded_at(place);
        }
    }

    fn succeeded_at(&mut self, place: Place) {
        let slot = &mut self.slots[place];
        self.dirty_count -= usize::from(std::mem::replace(&mut slot.dirty, false));
        slot.judge(true, &mut self.counts);
        slot.seen = true;
        if let Some(attempts) = &mut slot.attempts {
            attempts.history.forget_refusals();
            attempts.error = None;
            if let Some(resume) = attempts.resume.take() {
                self.waiting.remove(&(resume, place));
            }
            if attempts.history.is_blank() {
                slot.attempts = None;
            }
        }
    }

    /// Schedules the next attempt. Returns the pause before it, and whether the error is a new one.
    pub fn failed(
        &mut self,
        key: &E::Key,
        error: String,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Option<(Duration, bool)> {
        let place = self.slots.find(key)?;
        self.clean(place);
        let slot = &mut self.slots[place];
        slot.judge(false, &mut self.counts);
        let attempts = slot.attempts.get_or_insert_default();
        let news = attempts.error.as_ref() != Some(&error);
        let pause = attempts.history.refused(&self.policy, rng);
        attempts.error = Some(error);
        attempts.resume = Some(now + pause);
        self.waiting.insert((now + pause, place));
        Some((pause, news))
    }

    pub fn disturbed(&mut self, key: &E::Key, now: Instant, rng: &mut fastrand::Rng) -> Repair {
        let Some(place) = self.slots.find(key) else { return Repair::AlreadyDue };
        let slot = &mut self.slots[place];
        let was_good = slot.lost(&mut self.counts);
        if let Some(compared) = &mut self.compared {
            compared.insert(key.clone());
        }
        if slot.dirty || slot.attempts.as_ref().is_some_and(|attempts| attempts.resume.is_some()) {
            return Repair::AlreadyDue;
        }
        if !was_good {
            self.mark_at(place);
            return Repair::AlreadyDue;
        }
        let attempts = slot.attempts.get_or_insert_default();
        let pause = attempts.history.undone(&self.policy, now, rng);
        attempts.is_fought_over = !pause.is_zero();
        // A comparison that an operator asked for repairs at once, however often an entry was undone.
        if pause.is_zero() || self.compared.is_some() {
            self.mark_at(place);
            return Repair::Now;
        }
        attempts.resume = Some(now + pause);
        self.waiting.insert((now + pause, place));
        Repair::Later(pause)
    }

    /// Notes who has removed or altered an entry, until somebody else is named.
    pub fn undone_by(&mut self, key: &E::Key, who: String) {
        let Some(place) = self.slots.find(key) else { return };
        let attempts = self.slots[place].attempts.as_mut();
        if let Some(attempts) = attempts {
            attempts.undone_by = Some(who);
        }
    }

    pub fn wake(&mut self, now: Instant) {
        let due: Vec<_> = self.waiting.extract_if(..=(now, Place::MAX), |_| true).collect();
        for (_, place) in due {
            if let Some(attempts) = &mut self.slots[place].attempts {
                attempts.resume = None;
                self.mark_at(place);
            }
        }
    }

    /// Retries now what has failed, because circumstances have changed, and soon again should it fail. Entries that
    /// somebody else keeps undoing go on waiting.
    pub fn retry_failed(&mut self) {
        let failed: Vec<Place> = self.waiting.iter().map(|(_, place)| *place).collect();
        for place in failed {
            self.retry_at(place);
        }
    }

    /// Like [`Self::retry_failed`], for one entry.
    pub fn retry(&mut self, key: &E::Key) {
        if let Some(place) = self.slots.find(key) {
            self.retry_at(place);
        }
    }

    fn retry_at(&mut self, place: Place) {
        let attempts = self.slots[place].attempts.as_mut();
        let Some(attempts) = attempts.filter(|attempts| attempts.error.is_some()) else { return };
        attempts.history.forget_refusals();
        if let Some(resume) = attempts.resume.take() {
            self.waiting.remove(&(resume, place));
            self.mark_at(place);
        }
    }

    pub fn next_wake(&self) -> Option<Instant> {
        self.waiting.first().map(|(due, _)| *due)
    }

    pub fn begin_resync(&mut self) {
        self.slots.iter_mut().for_each(|(_, slot)| slot.seen = false);
    }

    pub fn seen(&mut self, key: &E::Key) {
        let Some(place) = self.slots.find(key) else { return };
        let slot = &mut self.slots[place];
        slot.seen = true;
        if !slot.good {
            // Somebody else has restored it: it need not be written.
            slot.undone = false;
            self.clean(place);
            self.succeeded_at(place);
        }
    }

    /// Keys of these kinds that the resync has not come across, except those that are to be written anyway.
    pub fn unseen(&self, kinds: impl Fn(&E::Key) -> bool) -> Vec<E::Key> {
        let unseen = self.slots.iter().filter(|slot| !slot.seen && !slot.dirty);
        unseen.map(|slot| slot.entry.key()).filter(kinds).collect()
    }

    /// Iterates over the entries that are not as wanted, in order of keys: all are written now or after a pause.
    pub(crate) fn problems(&self) -> Box<dyn Iterator<Item = &Slot<E>> + '_> {
        if self.counts.bad * WALK_ABOVE > self.slots.len() {
            return Box::new(self.slots.iter().filter(|slot| !slot.good));
        }
        let waiting = self.waiting.iter().map(|(_, place)| place);
        let slots = self.dirty.iter().chain(waiting).filter_map(|place| self.slots.at(*place));
        let bad = slots.filter(|slot| !slot.good).map(|slot| (slot.entry.key(), slot));
        let bad: BTreeMap<E::Key, &Slot<E>> = bad.collect();
        Box::new(bad.into_values())
    }
}

fn in_order(places: &[Place]) -> Places {
    let mut places = Places::from_slice(places);
    places.sort_unstable();
    places.dedup();
    places
}

fn count_in<E: KeyedEntry>(devices: &mut BTreeMap<E::Device, usize>, entry: &E) {
    for device in entry.devices() {
        *devices.entry(device).or_default() += 1;
    }
}

fn count_out<E: KeyedEntry>(devices: &mut BTreeMap<E::Device, usize>, entry: &E) {
    for device in entry.devices() {
        if let btree_map::Entry::Occupied(mut count) = devices.entry(device) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
