//! Storage of the wanted entries. Each has a numbered place, and the places are sorted by
//! the entries' keys. Keys are not stored separately: an entry knows its key, and requesters
//! know its place. There may be tens of thousands of entries.

use std::mem::{Discriminant, discriminant};
use std::ops::{Bound, Index, IndexMut, RangeBounds};

use crate::KeyedEntry;
use crate::wanted::Slot;

/// The number of an entry's place, valid as long as the entry is wanted.
pub(crate) type Place = u32;

/// The most places in one run, so that an insertion moves only a few.
const RUN: usize = 512;

pub(crate) struct Slots<E> {
    slots: Vec<Option<Slot<E>>>,
    free: Vec<Place>,
    /// In order of keys. None is empty.
    runs: Vec<Vec<Place>>,
}

impl<E: KeyedEntry> Slots<E> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), runs: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn find(&self, key: &E::Key) -> Option<Place> {
        self.seek(key).ok().map(|(run, at)| self.runs[run][at])
    }

    pub(crate) fn get(&self, key: &E::Key) -> Option<&Slot<E>> {
        self.find(key).map(|place| &self[place])
    }

    /// What lies there, if anything does.
    pub(crate) fn at(&self, place: Place) -> Option<&Slot<E>> {
        self.slots.get(place as usize)?.as_ref()
    }

    /// In order of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot<E>> {
        self.places().map(|place| &self[place]).inspect(|_| note_walked())
    }

    /// In order of keys.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        self.runs.iter().flatten().copied()
    }

    /// In no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Place, &mut Slot<E>)> {
        let slots = (0..).zip(&mut self.slots).inspect(|_| note_walked());
        slots.filter_map(|(place, slot)| Some((place, slot.as_mut()?)))
    }

    pub(crate) fn range(&self, keys: impl RangeBounds<E::Key>) -> impl Iterator<Item = &Slot<E>> {
        let (run, at) = match keys.start_bound() {
            Bound::Unbounded => (0, 0),
            Bound::Included(key) => self.seek(key).unwrap_or_else(|at| at),
            Bound::Excluded(key) => self.seek(key).map_or_else(|at| at, |(run, at)| (run, at + 1)),
        };
        let places = self.runs.iter().skip(run).flatten().skip(at);
        places.map(|place| &self[*place]).take_while(move |slot| {
            note_walked();
            let key = slot.entry.key();
            match keys.end_bound() {
                Bound::Unbounded => true,
                Bound::Included(end) => key <= *end,
                Bound::Excluded(end) => key < *end,
            }
        })
    }

    /// One of a key that is not there.
    pub(crate) fn insert(&mut self, slot: Slot<E>) -> Place {
        let (run, at) = self.seek(&slot.entry.key()).unwrap_or_else(|at| at);
        let place = self.lay_down(slot);
        match self.runs.get_mut(run) {
            None => self.runs.push(vec![place]),
            Some(places) => {
                places.insert(at, place);
                if places.len() > RUN {
                    let rest = places.split_off(RUN / 2);
                    self.runs.insert(run + 1, rest);
                }
            }
        }
        place
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Slot<E>> {
        if let Ok((run, at)) = self.seek(&self[place].entry.key()) {
            self.runs[run].remove(at);
            if self.runs[run].is_empty() {
                self.runs.remove(run);
            }
        }
        self.pick_up(place)
    }

    /// Many more are about to be laid down.
    pub(crate) fn make_room(&mut self, many: usize) {
        self.slots.reserve_exact(many.saturating_sub(self.free.len()));
    }

    /// One that is not yet found by its key: see [`Self::put_in_order`].
    pub(crate) fn lay_down(&mut self, slot: Slot<E>) -> Place {
        if let Some(place) = self.free.pop() {
            self.slots[place as usize] = Some(slot);
            return place;
        }
        self.slots.push(Some(slot));
        Place::try_from(self.slots.len() - 1).expect("fewer entries than memory has bytes")
    }

    /// One that is not found by its key.
    pub(crate) fn pick_up(&mut self, place: Place) -> Option<Slot<E>> {
        let slot = self.slots[place as usize].take();
        self.free.extend(slot.is_some().then_some(place));
        slot
    }

    /// All of these are found by their keys from now on, but for those of a key that an earlier one has: they are
    /// returned.
    pub(crate) fn put_in_order(&mut self, laid_down: Vec<Place>) -> Vec<Place> {
        // By kind of key: whoever wants several entries has them of several kinds, and comes in order himself.
        let mut kinds: Vec<(Discriminant<E::Key>, Vec<Place>)> = Vec::new();
        for place in laid_down {
            let kind = discriminant(&self[place].entry.key());
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, places)) => places.push(place),
                None => kinds.push((kind, vec![place])),
            }
        }
        let new = kinds.into_iter().flat_map(|(_, places)| places);
        let mut places: Vec<Place> = self.runs.drain(..).flatten().chain(new).collect();
        // Stable, and quick where it finds much in order already.
        places.sort_by(|a, b| self[*a].entry.key().cmp(&self[*b].entry.key()));
        let mut twins = Vec::new();
        places.dedup_by(|later, earlier| {
            let is_twin = self[*later].entry.key() == self[*earlier].entry.key();
            twins.extend(is_twin.then_some(*later));
            is_twin
        });
        self.runs = places.chunks(RUN).map(Vec::from).collect();
        twins
    }

    /// Where its place stands, or would.
    fn seek(&self, key: &E::Key) -> Result<(usize, usize), (usize, usize)> {
        let compare = |place: Place| self[place].entry.compare_key(key);
        let after = self.runs.partition_point(|run| compare(run[0]).is_le());
        let run = after.saturating_sub(1);
        let places = self.runs.get(run).map_or(&[][..], |run| run);
        match places.binary_search_by(|place| compare(*place)) {
            Ok(at) => Ok((run, at)),
            Err(at) => Err((run, at)),
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
thread_local! {
    /// How many entries this thread has come across while walking over them.
    pub static WALKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn note_walked() {
    #[cfg(any(test, feature = "test-util"))]
    WALKED.set(WALKED.get() + 1);
}

impl<E> Index<Place> for Slots<E> {
    type Output = Slot<E>;

    fn index(&self, place: Place) -> &Slot<E> {
        self.slots[place as usize].as_ref().expect("what has a place is wanted")
    }
}

impl<E> IndexMut<Place> for Slots<E> {
    fn index_mut(&mut self, place: Place) -> &mut Slot<E> {
        self.slots[place as usize].as_mut().expect("what has a place is wanted")
    }
}
