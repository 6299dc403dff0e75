//! The lease table: who owns which subnet, and what changed. Everything downstream works on the changes
//! alone, so a change is reported exactly when what a reader of the table sees has changed.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::{Lease, LeaseAttrs, Subnet};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    New(Lease),
    /// A peer's lease has other attributes than before, or what leads to it is to be thought over.
    Changed(Lease),
    Gone(Subnet),
}

impl Change {
    pub fn subnet(&self) -> Subnet {
        match self {
            Self::New(lease) | Self::Changed(lease) => lease.subnet,
            Self::Gone(subnet) => *subnet,
        }
    }
}

/// The peers' leases. The own one is hidden, but known: another node may have it when the own subnet changes.
#[derive(Clone, Debug, Default)]
pub struct LeaseTable {
    leases: BTreeMap<Subnet, LeaseAttrs>,
    own: Option<Subnet>,
}

impl LeaseTable {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set_own(&mut self, own: Option<Subnet>) -> Vec<Change> {
        if self.own == own {
            return Vec::new();
        }
        let former = std::mem::replace(&mut self.own, own);
        let hidden = own.filter(|subnet| self.leases.contains_key(subnet)).map(Change::Gone);
        let shown = former
            .and_then(|subnet| self.get(&subnet).map(|attrs| Change::New(lease(subnet, attrs))));
        hidden.into_iter().chain(shown).collect()
    }

    /// Replaces all leases. Removals come first, so that no subnet is claimed twice in between.
    pub fn snapshot(&mut self, leases: impl IntoIterator<Item = Lease>) -> Vec<Change> {
        let new: BTreeMap<_, _> =
            leases.into_iter().map(|lease| (lease.subnet, lease.attrs)).collect();
        let old = std::mem::replace(&mut self.leases, new);
        let gone = old
            .keys()
            .filter(|subnet| !self.is_own(subnet) && !self.leases.contains_key(subnet))
            .map(|subnet| Change::Gone(*subnet));
        let changed = self
            .iter()
            .filter(|(subnet, attrs)| old.get(subnet) != Some(attrs))
            .map(|(subnet, attrs)| put(lease(*subnet, attrs), old.contains_key(subnet)));
        gone.chain(changed).collect()
    }

    /// A renewal that changes no attribute is not a change.
    pub fn put(&mut self, lease: Lease) -> Option<Change> {
        if self.leases.get(&lease.subnet) == Some(&lease.attrs) {
            return None;
        }
        let former = self.leases.insert(lease.subnet, lease.attrs.clone());
        (!self.is_own(&lease.subnet)).then(|| put(lease, former.is_some()))
    }

    pub fn remove(&mut self, subnet: &Subnet) -> Option<Change> {
        self.leases.remove(subnet)?;
        (!self.is_own(subnet)).then_some(Change::Gone(*subnet))
    }

    pub fn get(&self, subnet: &Subnet) -> Option<&LeaseAttrs> {
        self.leases.get(subnet).filter(|_| !self.is_own(subnet))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Subnet, &LeaseAttrs)> {
        self.iter_after(None)
    }

    /// In their order, those that come after this one, whether it is there any more or not; or all.
    pub fn iter_after(
        &self,
        subnet: Option<Subnet>,
    ) -> impl Iterator<Item = (&Subnet, &LeaseAttrs)> {
        let from = subnet.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.leases.range((from, Bound::Unbounded));
        rest.filter(|(subnet, _)| !self.is_own(subnet))
    }

    pub fn own(&self) -> Option<Subnet> {
        self.own
    }

    pub fn len(&self) -> usize {
        let own_known = self.own.is_some_and(|own| self.leases.contains_key(&own));
        self.leases.len() - usize::from(own_known)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_own(&self, subnet: &Subnet) -> bool {
        self.own.as_ref() == Some(subnet)
    }
}

fn lease(subnet: Subnet, attrs: &LeaseAttrs) -> Lease {
    Lease { subnet, attrs: attrs.clone() }
}

fn put(lease: Lease, was_known: bool) -> Change {
    if was_known { Change::Changed(lease) } else { Change::New(lease) }
}
