//! Who wants entries. Each has a number, so that an entry need not hold all that a requester is known by; and each knows
//! the places of what it wants.

use std::ops::Bound;

use smallvec::SmallVec;

use crate::slots::Place;

/// Of a requester, for as long as it wants something.
pub(crate) type Number = u32;

/// In order of their numbers. A peer wants three entries, as a rule: they are kept without an allocation of their own.
pub(crate) type Places = SmallVec<[Place; 4]>;

pub(crate) struct Requesters<S> {
    all: Vec<Option<Requester<S>>>,
    free: Vec<Number>,
    /// In order of who they are.
    order: Vec<Number>,
}

struct Requester<S> {
    who: S,
    places: Places,
}

impl<S: Ord + Clone> Requesters<S> {
    pub(crate) fn new() -> Self {
        Self { all: Vec::new(), free: Vec::new(), order: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn contains(&self, who: &S) -> bool {
        self.find(who).is_some()
    }

    pub(crate) fn who(&self, number: Number) -> &S {
        &self.get(number).who
    }

    /// Nothing for somebody who wants nothing.
    pub(crate) fn places(&self, who: &S) -> &[Place] {
        self.find(who).map_or(&[], |number| &self.get(number).places)
    }

    /// In order of who they are.
    pub(crate) fn names(&self) -> impl Iterator<Item = &S> {
        self.order.iter().map(|number| self.who(*number))
    }

    /// All of them after somebody, in order, with what they want.
    pub(crate) fn after(&self, who: Bound<&S>) -> impl Iterator<Item = (&S, &[Place])> {
        let begin = self.order.partition_point(|number| match who {
            Bound::Unbounded => false,
            Bound::Included(who) => self.who(*number) < who,
            Bound::Excluded(who) => self.who(*number) <= who,
        });
        self.order[begin..].iter().map(|number| {
            let Requester { who, places } = self.get(*number);
            (who, &places[..])
        })
    }

    /// The number of one that may be new.
    pub(crate) fn number(&mut self, who: &S) -> Number {
        match self.seek(who) {
            Ok(at) => self.order[at],
            Err(at) => {
                let number = self.admit(who.clone());
                self.order.insert(at, number);
                number
            }
        }
    }

    /// One of many that are new, and not found before they are [put in order](Self::put_in_order).
    pub(crate) fn admit(&mut self, who: S) -> Number {
        let new = Some(Requester { who, places: Places::new() });
        if let Some(number) = self.free.pop() {
            self.all[number as usize] = new;
            return number;
        }
        self.all.push(new);
        Number::try_from(self.all.len() - 1).expect("fewer requesters than memory has bytes")
    }

    pub(crate) fn make_room(&mut self, many: usize) {
        self.all.reserve_exact(many.saturating_sub(self.free.len()));
        self.order.reserve_exact(many);
    }

    pub(crate) fn put_in_order(&mut self, admitted: impl IntoIterator<Item = Number>) {
        let mut order = std::mem::take(&mut self.order);
        order.extend(admitted);
        // Stable, and quick where it finds much in order already.
        order.sort_by(|a, b| self.who(*a).cmp(self.who(*b)));
        self.order = order;
    }

    /// Replaces what somebody wants; who wants nothing is forgotten. Returns what was wanted before.
    pub(crate) fn set(&mut self, number: Number, places: Places) -> Places {
        if !places.is_empty() {
            return std::mem::replace(&mut self.get_mut(number).places, places);
        }
        if let Ok(at) = self.seek(&self.get(number).who) {
            self.order.remove(at);
        }
        self.free.push(number);
        self.all[number as usize].take().map(|gone| gone.places).unwrap_or_default()
    }

    fn find(&self, who: &S) -> Option<Number> {
        self.seek(who).ok().map(|at| self.order[at])
    }

    /// Where it stands, or would.
    fn seek(&self, who: &S) -> Result<usize, usize> {
        self.order.binary_search_by(|number| self.who(*number).cmp(who))
    }

    fn get(&self, number: Number) -> &Requester<S> {
        self.all[number as usize].as_ref().expect("who has a number wants something")
    }

    fn get_mut(&mut self, number: Number) -> &mut Requester<S> {
        self.all[number as usize].as_mut().expect("who has a number wants something")
    }
}
