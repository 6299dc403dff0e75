//! The requesters of entries. Each has a number, which is smaller than its name, and knows its entries' places.

use smallvec::SmallVec;

use crate::slots::Place;

/// Number of a requester, valid as long as it wants something.
pub(crate) type Number = u32;

/// Sorted places of a requester's entries. A peer usually wants three entries: they need no allocation of their own.
pub(crate) type Places = SmallVec<[Place; 4]>;

pub(crate) struct Requesters<S> {
    all: Vec<Option<Requester<S>>>,
    free: Vec<Number>,
    /// Numbers, sorted by requester.
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

    pub(crate) fn contains(&self, who: &S) -> bool {
        self.find(who).is_some()
    }

    pub(crate) fn who(&self, number: Number) -> &S {
        &self.get(number).who
    }

    /// Places of a requester's entries; none for an unknown requester.
    pub(crate) fn places(&self, who: &S) -> &[Place] {
        self.find(who).map_or(&[], |number| &self.get(number).places)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &S> {
        self.order.iter().map(|number| self.who(*number))
    }

    /// Iterates over the requesters after a given one, or over all, in order, with the places of their entries.
    pub(crate) fn after(&self, who: Option<&S>) -> impl Iterator<Item = (&S, &[Place])> {
        let is_before = |number: &Number| who.is_some_and(|who| self.who(*number) <= who);
        let begin = self.order.partition_point(is_before);
        self.order[begin..].iter().map(|number| {
            let Requester { who, places } = self.get(*number);
            (who, &places[..])
        })
    }

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

    /// Adds one of many new requesters. It is found only after [`Self::put_in_order`].
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
        // A stable sort, and quick where much is in order already.
        order.sort_by(|a, b| self.who(*a).cmp(self.who(*b)));
        self.order = order;
    }

    /// Replaces the places of a requester's entries, and returns the former ones. One without entries is forgotten.
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

    /// Position of a requester in the order, or the position where it belongs.
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
