//! The desired state: every entry once, keyed, with whoever wants it, and how it fares.
//!
//! Pure bookkeeping: nothing in here talks to the world, and time is passed in. Entries are wanted by a
//! requester (a lease, or the node itself), whose entries are replaced as a whole. Should two requesters
//! want different versions of one entry, that of the lower in order is in force, so that the outcome
//! depends on who wants what and never on who came first. What an entry is, only its [`KeyedEntry`] says.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::mem::discriminant;
use std::ops::RangeBounds;
use std::time::{Duration, Instant};

use flannel_common::{RepairHistory, RepairPolicy};

use crate::Desired;

/// What can be wanted: known by its key, of which it is one version. It need not be printable, and is
/// not printed here: it may hold a secret.
pub trait KeyedEntry: Clone + PartialEq + Send + 'static {
    type Key: Ord + Clone;
    /// What entries stand on: it goes, and they go with it.
    type Device: Ord;

    fn key(&self) -> Self::Key;

    /// All that it cannot be without.
    fn devices(&self) -> impl Iterator<Item = Self::Device>;

    /// As people are told of it, in a log or a probe's answer. Without what is secret.
    fn describe(&self) -> String;

    /// What kind of entry it is, of a few: a word in lower case, for counting.
    fn kind(&self) -> &'static str;

    /// Whether no peer can be reached without it: a tunnel's device, say.
    fn is_foundation(&self) -> bool {
        false
    }
}

pub struct Wanted<S, E: KeyedEntry> {
    policy: RepairPolicy,
    pub(crate) slots: BTreeMap<E::Key, Slot<S, E>>,
    pub(crate) requesters: BTreeMap<S, Box<[E::Key]>>,
    /// All requests for the few keys that more than one of them wants.
    pub(crate) contested: BTreeMap<E::Key, BTreeMap<S, E>>,
    /// How many entries in force stand on a device. Asked for every event of every device of the node.
    devices: BTreeMap<E::Device, usize>,
    /// What is to be written: the keys in no order, perhaps twice or no longer so; and how many.
    dirty: Vec<E::Key>,
    dirty_count: usize,
    pub(crate) waiting: BTreeSet<(Instant, E::Key)>,
    epoch: u32,
    pub(crate) counts: Counts,
    /// While somebody has asked for a comparison: what was found not to be as wanted.
    pub(crate) compared: Option<BTreeSet<E::Key>>,
}

#[derive(Default)]
pub(crate) struct Counts {
    /// How many entries are not good.
    bad: usize,
    /// How often entries of a kind were put right.
    repaired: Vec<(&'static str, u64)>,
}

impl Counts {
    fn repair(&mut self, kind: &'static str) {
        match self.repaired.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, times)) => *times += 1,
            None => self.repaired.push((kind, 1)),
        }
    }

    pub(crate) fn repaired(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.repaired.iter().copied()
    }
}

pub(crate) struct Slot<S, E> {
    pub(crate) entry: E,
    pub(crate) requester: S,
    /// The world was last seen to hold it so.
    pub(crate) good: bool,
    /// It was so before somebody else changed that.
    undone: bool,
    /// It is to be written.
    dirty: bool,
    /// The resync that saw it.
    seen: u32,
    pub(crate) attempts: Option<Box<Attempts>>,
}

type SlotOfKey<S, E> = (<E as KeyedEntry>::Key, Slot<S, E>);

/// How writing it, and repairing it, has gone.
#[derive(Default)]
pub(crate) struct Attempts {
    pub(crate) history: RepairHistory,
    pub(crate) error: Option<String>,
    pub(crate) resume: Option<Instant>,
}

/// More than one in this many entries to be written is many: walking all is then cheaper than finding
/// each.
const MANY: usize = 8;

/// More than one in this many requesters are a crowd: to build the table anew is then cheaper than to find
/// the place of each.
const CROWD: usize = 32;

/// Entries to be written together.
pub enum Batch<K> {
    Few(Vec<K>),
    /// All that are marked.
    Many,
}

/// What to do about an entry that somebody else has changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Repair {
    /// It is to be written anew now.
    Now,
    /// It has been undone too often: it is left alone for this long.
    Later(Duration),
    /// It was due to be written anyway.
    AlreadyDue,
}

impl<S: Clone, E: KeyedEntry> Slot<S, E> {
    /// Wanted, and still to be written.
    fn new(entry: E, requester: &S) -> Self {
        Self {
            entry,
            requester: requester.clone(),
            good: false,
            undone: false,
            dirty: true,
            seen: 0,
            attempts: None,
        }
    }

    /// Returns what was thought of it before.
    fn judge(&mut self, good: bool, counts: &mut Counts) -> bool {
        match (self.good, good) {
            (true, false) => counts.bad += 1,
            (false, true) => {
                counts.bad -= 1;
                if std::mem::take(&mut self.undone) {
                    counts.repair(self.entry.kind());
                }
            }
            _ => {}
        }
        std::mem::replace(&mut self.good, good)
    }

    /// Somebody else has changed it. Returns what was thought of it before.
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
            slots: BTreeMap::new(),
            requesters: BTreeMap::new(),
            contested: BTreeMap::new(),
            devices: BTreeMap::new(),
            dirty: Vec::new(),
            dirty_count: 0,
            waiting: BTreeSet::new(),
            epoch: 0,
            counts: Counts::default(),
            compared: None,
        }
    }

    /// Replaces all that is wanted. Returns the entries nobody wants any more.
    pub fn replace(&mut self, desired: Desired<S, E>) -> Vec<E> {
        let mut unwanted = Vec::new();
        if !self.requesters.is_empty() {
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
        // Stable: what one requester wants last is what it wants.
        changes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let each_once = changes.is_sorted_by(|(a, _), (b, _)| a < b);
        if each_once && changes.len() * CROWD > self.requesters.len() {
            let is_new = |(who, _): &mut (S, Vec<E>)| !self.requesters.contains_key(who);
            let new = changes.extract_if(.., is_new).collect();
            self.add(new);
        }
        let mut unwanted = Vec::new();
        for (requester, entries) in changes {
            unwanted.extend(self.set(requester, entries));
        }
        unwanted
    }

    /// One may have let go of what another has taken up since: that is written over.
    fn still_unwanted(&self, mut unwanted: Vec<E>) -> Vec<E> {
        unwanted.retain(|entry| !self.slots.contains_key(&entry.key()));
        unwanted
    }

    /// Adds many requesters at once, none of which is known: in one sorted stroke, which leaves no
    /// half-empty nodes behind as tens of thousands of single insertions would.
    fn add(&mut self, many: Desired<S, E>) {
        // One run per kind of key: requesters come in order, so the runs are sorted, or nearly so.
        let mut runs: Vec<Vec<SlotOfKey<S, E>>> = Vec::new();
        let mut requesters = Vec::with_capacity(many.len());
        let mut contested = Vec::new();
        for (requester, entries) in many.into_iter().filter(|(_, entries)| !entries.is_empty()) {
            let mut keys: Vec<E::Key> = entries.iter().map(E::key).collect();
            keys.sort_unstable();
            keys.dedup();
            requesters.push((requester.clone(), keys.into_boxed_slice()));
            for entry in entries {
                let key = entry.key();
                let kind = discriminant(&key);
                let slot = (key, Slot::new(entry, &requester));
                match runs.iter_mut().find(|run| discriminant(&run[0].0) == kind) {
                    Some(run) => run.push(slot),
                    None => runs.push(vec![slot]),
                }
            }
        }
        let mut slots: Vec<SlotOfKey<S, E>> = Vec::with_capacity(runs.iter().map(Vec::len).sum());
        for mut run in runs {
            slots.append(&mut run);
        }
        slots.sort_by(|(a, _), (b, _)| a.cmp(b));
        if !self.slots.is_empty() {
            let known = slots.extract_if(.., |(key, _)| self.slots.contains_key(key));
            contested.extend(known.map(|(_, slot)| (slot.requester, slot.entry)));
        }
        slots.dedup_by(|later, earlier| {
            let twice = later.0 == earlier.0;
            if twice {
                contested.push((later.1.requester.clone(), later.1.entry.clone()));
            }
            twice
        });
        for (_, slot) in &slots {
            count_in(&mut self.devices, &slot.entry);
        }
        self.counts.bad += slots.len();
        self.dirty_count += slots.len();
        self.dirty.extend(slots.iter().map(|(key, _)| key.clone()));
        self.slots.append(&mut slots.into_iter().collect());
        self.requesters.append(&mut requesters.into_iter().collect());
        for (requester, entry) in contested {
            self.request(&requester, entry);
        }
    }

    fn set(&mut self, requester: S, entries: Vec<E>) -> Vec<E> {
        let mut keys: Vec<E::Key> = entries.iter().map(E::key).collect();
        keys.sort_unstable();
        keys.dedup();
        if self.requesters.get(&requester).is_some_and(|old| **old == *keys) {
            entries.into_iter().for_each(|entry| self.request(&requester, entry));
            return Vec::new();
        }
        let old = self.requesters.remove(&requester).unwrap_or_default();
        let mut unwanted = Vec::new();
        for key in old.iter().filter(|key| keys.binary_search(key).is_err()) {
            unwanted.extend(self.release(key, &requester));
        }
        for entry in entries {
            self.request(&requester, entry);
        }
        if !keys.is_empty() {
            self.requesters.insert(requester, keys.into_boxed_slice());
        }
        unwanted
    }

    /// Forgets every requester that is not in `keep`. Returns the entries nobody wants any more.
    fn retain(&mut self, keep: &BTreeSet<S>) -> Vec<E> {
        let gone: Vec<S> =
            self.requesters.keys().filter(|requester| !keep.contains(requester)).cloned().collect();
        gone.into_iter().flat_map(|requester| self.set(requester, Vec::new())).collect()
    }

    fn request(&mut self, requester: &S, entry: E) {
        let key = entry.key();
        let Some(slot) = self.slots.get_mut(&key) else {
            count_in(&mut self.devices, &entry);
            let slot = Slot { dirty: false, ..Slot::new(entry, requester) };
            self.slots.insert(key.clone(), slot);
            self.counts.bad += 1;
            self.mark(key);
            return;
        };
        if slot.requester != *requester || self.contested.contains_key(&key) {
            let requests = self
                .contested
                .entry(key.clone())
                .or_insert_with(|| BTreeMap::from([(slot.requester.clone(), slot.entry.clone())]));
            requests.insert(requester.clone(), entry);
            self.settle_claims(&key);
        } else if slot.entry != entry {
            count_in(&mut self.devices, &entry);
            count_out(&mut self.devices, &std::mem::replace(&mut slot.entry, entry));
            self.rewrite(key);
        }
    }

    fn release(&mut self, key: &E::Key, requester: &S) -> Option<E> {
        if let Some(requests) = self.contested.get_mut(key) {
            requests.remove(requester);
            self.settle_claims(key);
            return None;
        }
        self.clean(key);
        let slot = self.slots.remove(key)?;
        self.counts.bad -= usize::from(!slot.good);
        count_out(&mut self.devices, &slot.entry);
        Some(slot.entry)
    }

    /// Puts the lowest-ordered request in force.
    fn settle_claims(&mut self, key: &E::Key) {
        let Some(requests) = self.contested.get(key) else { return };
        let Some((requester, entry)) = requests.first_key_value() else { return };
        let (requester, entry) = (requester.clone(), entry.clone());
        if requests.len() == 1 {
            self.contested.remove(key);
        }
        let Some(slot) = self.slots.get_mut(key) else { return };
        slot.requester = requester;
        if slot.entry != entry {
            count_in(&mut self.devices, &entry);
            count_out(&mut self.devices, &std::mem::replace(&mut slot.entry, entry));
            self.rewrite(key.clone());
        }
    }

    pub fn get(&self, key: &E::Key) -> Option<&E> {
        self.slots.get(key).map(|slot| &slot.entry)
    }

    /// In order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&E::Key, &E)> {
        self.slots.iter().map(|(key, slot)| (key, &slot.entry))
    }

    pub fn range(&self, keys: impl RangeBounds<E::Key>) -> impl Iterator<Item = (&E::Key, &E)> {
        self.slots.range(keys).map(|(key, slot)| (key, &slot.entry))
    }

    /// Whether the world was last seen to hold it so; `None` if it is not wanted.
    pub fn is_good(&self, key: &E::Key) -> Option<bool> {
        self.slots.get(key).map(|slot| slot.good && !slot.dirty)
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many entries are not (known to be) as wanted.
    pub fn bad(&self) -> usize {
        self.counts.bad
    }

    pub fn contested(&self) -> usize {
        self.contested.len()
    }

    /// Whether any entry stands on this device, or a device of ours has it as its parent.
    pub fn refers_to(&self, device: &E::Device) -> bool {
        self.devices.contains_key(device)
    }

    /// To be written (again), whatever has been thought of them: those of which `is_lost` says so, given
    /// the entry and whether it was last seen as wanted.
    pub fn rewrite_where(&mut self, is_lost: impl Fn(&E, bool) -> bool) {
        for (key, slot) in &mut self.slots {
            if is_lost(&slot.entry, slot.good) {
                if slot.lost(&mut self.counts)
                    && let Some(compared) = &mut self.compared
                {
                    compared.insert(key.clone());
                }
                if !std::mem::replace(&mut slot.dirty, true) {
                    self.dirty_count += 1;
                    self.dirty.push(key.clone());
                }
            }
        }
    }

    fn rewrite(&mut self, key: E::Key) {
        self.clean(&key);
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.judge(false, &mut self.counts);
            slot.undone = false;
            slot.attempts = None;
            self.mark(key);
        }
    }

    /// To be written (again), if it is wanted.
    pub fn mark(&mut self, key: E::Key) {
        if let Some(slot) = self.slots.get_mut(&key)
            && !std::mem::replace(&mut slot.dirty, true)
        {
            self.dirty_count += 1;
            self.dirty.push(key);
        }
    }

    /// Takes a key off all lists.
    fn clean(&mut self, key: &E::Key) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        self.dirty_count -= usize::from(std::mem::replace(&mut slot.dirty, false));
        if let Some(resume) = slot.attempts.as_ref().and_then(|attempts| attempts.resume) {
            self.waiting.remove(&(resume, key.clone()));
        }
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty_count > 0
    }

    pub fn is_marked(&self, key: &E::Key) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.dirty)
    }

    /// The entries to be written now.
    pub fn batch(&mut self) -> Batch<E::Key> {
        let mut keys = std::mem::take(&mut self.dirty);
        if self.dirty_count * MANY > self.slots.len() {
            return Batch::Many;
        }
        keys.retain(|key| self.is_marked(key));
        keys.sort_unstable();
        keys.dedup();
        Batch::Few(keys)
    }

    /// The entries of a batch, in order of dependency.
    pub fn entries<'a>(
        &'a self,
        batch: &'a Batch<E::Key>,
    ) -> Box<dyn Iterator<Item = (&'a E::Key, &'a E)> + 'a> {
        match batch {
            Batch::Few(keys) => Box::new(keys.iter().filter_map(|key| Some((key, self.get(key)?)))),
            Batch::Many => Box::new(
                self.slots.iter().filter(|(_, slot)| slot.dirty).map(|(key, s)| (key, &s.entry)),
            ),
        }
    }

    /// A batch has been written, all of it but the `failed` keys.
    pub fn written(&mut self, batch: Batch<E::Key>, failed: &BTreeSet<E::Key>) {
        match batch {
            Batch::Few(keys) => {
                for key in keys.iter().filter(|key| !failed.contains(key)) {
                    self.succeeded(key);
                }
            }
            Batch::Many => {
                let mut others = Vec::new();
                for (key, slot) in self.slots.iter_mut().filter(|(_, slot)| slot.dirty) {
                    if slot.attempts.is_some() || failed.contains(key) {
                        others.push(key.clone());
                        continue;
                    }
                    slot.dirty = false;
                    self.dirty_count -= 1;
                    slot.judge(true, &mut self.counts);
                    slot.seen = self.epoch;
                }
                for key in others.iter().filter(|key| !failed.contains(key)) {
                    self.succeeded(key);
                }
            }
        }
    }

    pub fn succeeded(&mut self, key: &E::Key) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        self.dirty_count -= usize::from(std::mem::replace(&mut slot.dirty, false));
        slot.judge(true, &mut self.counts);
        slot.seen = self.epoch;
        if let Some(attempts) = &mut slot.attempts {
            attempts.history.written();
            attempts.error = None;
            if let Some(resume) = attempts.resume.take() {
                self.waiting.remove(&(resume, key.clone()));
            }
            if attempts.history.is_blank() {
                slot.attempts = None;
            }
        }
    }

    /// Schedules the next try. Returns when it will be, and whether this error is news.
    pub fn failed(
        &mut self,
        key: &E::Key,
        error: String,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Option<(Duration, bool)> {
        self.clean(key);
        let slot = self.slots.get_mut(key)?;
        slot.judge(false, &mut self.counts);
        let attempts = slot.attempts.get_or_insert_default();
        let news = attempts.error.as_ref() != Some(&error);
        let pause = attempts.history.refused(&self.policy, rng);
        attempts.error = Some(error);
        attempts.resume = Some(now + pause);
        self.waiting.insert((now + pause, key.clone()));
        Some((pause, news))
    }

    /// Somebody else has removed or altered this entry.
    pub fn disturbed(&mut self, key: &E::Key, now: Instant, rng: &mut fastrand::Rng) -> Repair {
        let Some(slot) = self.slots.get_mut(key) else { return Repair::AlreadyDue };
        let was_good = slot.lost(&mut self.counts);
        if let Some(compared) = &mut self.compared {
            compared.insert(key.clone());
        }
        if slot.dirty || slot.attempts.as_ref().is_some_and(|attempts| attempts.resume.is_some()) {
            return Repair::AlreadyDue;
        }
        if !was_good {
            self.mark(key.clone());
            return Repair::AlreadyDue;
        }
        let attempts = slot.attempts.get_or_insert_default();
        let pause = attempts.history.undone(&self.policy, now, rng);
        // Who asks for a comparison wants it put right now, however often it was undone.
        if pause.is_zero() || self.compared.is_some() {
            self.mark(key.clone());
            return Repair::Now;
        }
        attempts.resume = Some(now + pause);
        self.waiting.insert((now + pause, key.clone()));
        Repair::Later(pause)
    }

    /// Moves what is due onto the list of entries to be written.
    pub fn wake(&mut self, now: Instant) {
        while let Some((due, _)) = self.waiting.first() {
            if *due > now {
                break;
            }
            let Some((_, key)) = self.waiting.pop_first() else { break };
            if let Some(attempts) = self.slots.get_mut(&key).and_then(|s| s.attempts.as_mut()) {
                attempts.resume = None;
                self.mark(key);
            }
        }
    }

    /// Circumstances have changed: what has failed is tried again now, and soon again should that
    /// fail. What somebody else keeps undoing waits on.
    pub fn retry_failed(&mut self) {
        let failed: Vec<E::Key> = self.waiting.iter().map(|(_, key)| key.clone()).collect();
        for key in failed {
            self.retry(&key);
        }
    }

    /// The same for one entry.
    pub fn retry(&mut self, key: &E::Key) {
        let attempts = self.slots.get_mut(key).and_then(|slot| slot.attempts.as_mut());
        let Some(attempts) = attempts.filter(|attempts| attempts.error.is_some()) else { return };
        attempts.history.circumstances_changed();
        if let Some(resume) = attempts.resume.take() {
            self.waiting.remove(&(resume, key.clone()));
            self.mark(key.clone());
        }
    }

    pub fn next_wake(&self) -> Option<Instant> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// Begins a comparison with all that there is.
    pub fn begin_resync(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// It was found as wanted.
    pub fn seen(&mut self, key: &E::Key) {
        let epoch = self.epoch;
        if let Some(slot) = self.slots.get_mut(key) {
            slot.seen = epoch;
            if !slot.good {
                // It need not be written after all: somebody else has put it right.
                slot.undone = false;
                self.clean(key);
                self.succeeded(key);
            }
        }
    }

    /// The keys of these kinds that the comparison has not come across. Those that are to be written
    /// anyway need not be found missing.
    pub fn unseen(&self, kinds: impl Fn(&E::Key) -> bool) -> Vec<E::Key> {
        self.slots
            .iter()
            .filter(|(key, slot)| slot.seen != self.epoch && !slot.dirty && kinds(key))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// What is not as it should be, and why.
    pub fn problems(&self) -> impl Iterator<Item = (&E, &str)> {
        self.slots.values().filter(|slot| !slot.good).take(self.counts.bad).map(|slot| {
            let error = slot.attempts.as_ref().and_then(|t| t.error.as_deref());
            (&slot.entry, error.unwrap_or("not yet written"))
        })
    }
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
