//! The desired state of the kernel: its entries stand on devices, and its routes on each other.

use std::time::Duration;

use flannel_common::{Backoff, RepairPolicy};
use ipnet::IpNet;

use super::{KeyedEntry, Wanted};
use crate::{Entry, IfName, Key, Link};

pub(crate) const REPAIRS: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    // The first pause is short: `ip route flush` goes on for as long as it finds something to remove,
    // so it undoes every repair that is quick enough, and ends at the first pause.
    undone: Backoff::new(Duration::from_millis(50), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(50), Duration::from_secs(30)),
};

impl KeyedEntry for Entry {
    type Key = Key;
    type Device = IfName;

    fn key(&self) -> Key {
        self.key()
    }

    fn devices(&self) -> impl Iterator<Item = IfName> {
        self.devices()
    }
}

impl<S: Ord + Clone> Wanted<S, Entry> {
    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.slots.values().map_while(|slot| match &slot.entry {
            Entry::Link(link) => Some(&**link),
            _ => None,
        })
    }

    /// To be written (again): the device it stands on was made anew.
    pub(crate) fn rewrite_all_on(&mut self, name: IfName) {
        for (key, slot) in &mut self.slots {
            let depends = match &slot.entry {
                Entry::Sysctl(_) => true,
                Entry::Link(link) => link.kind.parent() == Some(name) && !slot.good,
                entry => entry.link() == Some(name),
            };
            if depends {
                slot.judge(false, &mut self.bad);
                if !std::mem::replace(&mut slot.dirty, true) {
                    self.dirty_count += 1;
                    self.dirty.push(key.clone());
                }
            }
        }
    }

    /// To be written (again): a removal may have hit them.
    pub(crate) fn rewrite_routes_to(&mut self, dst: IpNet) {
        let keys: Vec<Key> = self.routes_to(dst).map(|(key, _)| key.clone()).collect();
        keys.into_iter().for_each(|key| self.mark(key));
    }

    /// The wanted routes of exactly this destination, best metric first.
    pub(crate) fn routes_to(&self, dst: IpNet) -> impl Iterator<Item = (&Key, &Entry)> {
        self.slots
            .range(Key::Route(dst, 0)..=Key::Route(dst, u32::MAX))
            .map(|(key, slot)| (key, &slot.entry))
    }
}
