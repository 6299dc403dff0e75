//! The desired state of the kernel: entries need devices, and routes need each other.

use std::ops::Bound;
use std::time::Duration;

use flannel_common::{Backoff, Family, RepairPolicy};
use flannel_wanted::Wanted;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use flannel_common::IfName;
use flannel_entries::kernel::{Entry, Key, Link};

pub(crate) const REPAIRS: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    // The first pause is short: `ip route flush` goes on for as long as it finds something to remove,
    // so it undoes every repair that is quick enough, and ends at the first pause.
    undone: Backoff::new(Duration::from_millis(50), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(50), Duration::from_secs(30)),
};

/// Questions to the desired state that are special to the kernel.
pub(crate) trait WantedOfKernel {
    fn links(&self) -> impl Iterator<Item = &Link>;

    /// Marks all entries on a device to be written again, because the device was made again.
    fn rewrite_all_on(&mut self, name: IfName);

    /// Marks the routes to a destination to be written again, because a removal may have hit them.
    fn rewrite_routes_to(&mut self, dst: IpNet);

    /// Wanted routes of exactly this destination, best metric first.
    fn routes_to(&self, dst: IpNet) -> impl Iterator<Item = &Entry>;

    /// All wanted routes of a family.
    fn routes(&self, family: Family) -> impl Iterator<Item = &Entry>;

    /// Whether any entry is on this device, or a device of ours has it as its parent.
    fn refers_to(&self, name: IfName) -> bool;

    /// Devices that packets of this family are routed to, or come in by.
    fn carriers(&self, family: Family) -> impl Iterator<Item = IfName>;
}

impl<S: Ord + Clone> WantedOfKernel for Wanted<S, Entry> {
    fn links(&self) -> impl Iterator<Item = &Link> {
        self.iter().map_while(|entry| match entry {
            Entry::Link(link) => Some(&**link),
            _ => None,
        })
    }

    fn rewrite_all_on(&mut self, name: IfName) {
        self.rewrite_where(|entry, good| match entry {
            Entry::Sysctl(_) => true,
            Entry::Link(link) => link.kind.parent() == Some(name) && !good,
            entry => entry.link() == Some(name),
        });
    }

    fn rewrite_routes_to(&mut self, dst: IpNet) {
        let keys: Vec<Key> = self.routes_to(dst).map(Entry::key).collect();
        keys.iter().for_each(|key| self.mark(key));
    }

    fn routes_to(&self, dst: IpNet) -> impl Iterator<Item = &Entry> {
        self.range(Key::Route(dst, 0)..=Key::Route(dst, u32::MAX))
    }

    fn routes(&self, family: Family) -> impl Iterator<Item = &Entry> {
        let ipv6 = Key::Route(Ipv6Net::default().into(), 0);
        let (from, to) = match family {
            Family::V4 => (Key::Route(Ipv4Net::default().into(), 0), Bound::Excluded(ipv6)),
            Family::V6 => (ipv6, Bound::Unbounded),
        };
        self.range((Bound::Included(from), to))
    }

    fn refers_to(&self, name: IfName) -> bool {
        self.devices().any(|(device, _)| *device == name)
    }

    fn carriers(&self, family: Family) -> impl Iterator<Item = IfName> {
        self.devices().filter(move |(_, carries)| *carries == Some(family)).map(|(name, _)| *name)
    }
}
