//! Storage of tens of thousands of wanted entries. Each has a numbered place, and the places are sorted by the entries'
//! keys. Keys are not stored separately: an entry knows its key, and requesters know its place.

use std::mem::{Discriminant, discriminant};
use std::ops::{Bound, Index, IndexMut, RangeBounds};

use crate::KeyedEntry;
use crate::wanted::Slot;

/// The number of an entry's place, valid as long as the entry is wanted.
pub(crate) type Place = u32;

/// Largest number of places in one run, so that an insertion moves only a few.
const RUN: usize = 512;

pub(crate) struct Slots<E> {
    slots: Vec<Option<Slot<E>>>,
    free: Vec<Place>,
    /// Places sorted by key, in runs none of which is empty.
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

    pub(crate) fn at(&self, place: Place) -> Option<&Slot<E>> {
        self.slots.get(place as usize)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot<E>> {
        self.places().map(|place| &self[place]).inspect(|_| note_walked())
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        self.runs.iter().flatten().copied()
    }

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

    pub(crate) fn insert(&mut self, slot: Slot<E>) -> Place {
        let (run, at) = self.seek(&slot.entry.key()).unwrap_or_else(|at| at);
        let place = self.insert_unsorted(slot);
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
        self.take(place)
    }

    pub(crate) fn make_room(&mut self, many: usize) {
        self.slots.reserve_exact(many.saturating_sub(self.free.len()));
    }

    /// Stores an entry without making it findable by its key: see [`Self::put_in_order`].
    pub(crate) fn insert_unsorted(&mut self, slot: Slot<E>) -> Place {
        if let Some(place) = self.free.pop() {
            self.slots[place as usize] = Some(slot);
            return place;
        }
        self.slots.push(Some(slot));
        Place::try_from(self.slots.len() - 1).expect("fewer entries than memory has bytes")
    }

    /// Takes out an entry that is not findable by its key.
    pub(crate) fn take(&mut self, place: Place) -> Option<Slot<E>> {
        let slot = self.slots[place as usize].take();
        self.free.extend(slot.is_some().then_some(place));
        slot
    }

    /// Makes these places findable by their keys. Returns those whose key an earlier place has already.
    pub(crate) fn put_in_order(&mut self, unsorted: Vec<Place>) -> Vec<Place> {
        // By kind of key: a requester's entries are of several kinds, and requesters come in order.
        let mut kinds: Vec<(Discriminant<E::Key>, Vec<Place>)> = Vec::new();
        for place in unsorted {
            let kind = discriminant(&self[place].entry.key());
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, places)) => places.push(place),
                None => kinds.push((kind, vec![place])),
            }
        }
        let new = kinds.into_iter().flat_map(|(_, places)| places);
        let mut places: Vec<Place> = self.runs.drain(..).flatten().chain(new).collect();
        // A stable sort, and quick where much is in order already.
        places.sort_by(|a, b| self[*a].entry.key().cmp(&self[*b].entry.key()));
        let mut duplicates = Vec::new();
        places.dedup_by(|later, earlier| {
            let is_duplicate = self[*later].entry.key() == self[*earlier].entry.key();
            duplicates.extend(is_duplicate.then_some(*later));
            is_duplicate
        });
        self.runs = places.chunks(RUN).map(Vec::from).collect();
        duplicates
    }

    /// Position of a key's place, or the position where it belongs.
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
    /// Number of entries that this thread has walked over.
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
