//! The desired state of the kernel: entries need devices, and routes need each other.

use std::ops::Bound;
use std::time::Duration;

use flannel_common::{Backoff, Family, IfName, RepairPolicy};
use flannel_entries::kernel::{Entry, Key, Link};
use flannel_wanted::Wanted;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub(crate) const REPAIRS: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    // The first pause is short: `ip route flush` goes on for as long as it finds something to remove,
    // so it undoes every repair that is quick enough, and ends at the first pause.
    undone: Backoff::new(Duration::from_millis(50), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(50), Duration::from_secs(30)),
};

pub(crate) fn links<S: Ord + Clone>(wanted: &Wanted<S, Entry>) -> impl Iterator<Item = &Link> {
    wanted.iter().map_while(|entry| match entry {
        Entry::Link(link) => Some(&**link),
        _ => None,
    })
}

/// Marks all entries on a device to be written again, because the device was made again.
pub(crate) fn rewrite_all_on<S: Ord + Clone>(wanted: &mut Wanted<S, Entry>, name: IfName) {
    wanted.rewrite_where(|entry, good| match entry {
        Entry::Sysctl(_) => true,
        Entry::Link(link) => link.kind.parent() == Some(name) && !good,
        entry => entry.link() == Some(name),
    });
}

/// Marks the routes to a destination to be written again, because a removal may have hit them.
pub(crate) fn rewrite_routes_to<S: Ord + Clone>(wanted: &mut Wanted<S, Entry>, dst: IpNet) {
    let keys: Vec<Key> = routes_to(wanted, dst).map(Entry::key).collect();
    keys.iter().for_each(|key| wanted.mark(key));
}

/// Wanted routes of exactly this destination, best metric first.
pub(crate) fn routes_to<S: Ord + Clone>(
    wanted: &Wanted<S, Entry>,
    dst: IpNet,
) -> impl Iterator<Item = &Entry> {
    wanted.range(Key::Route(dst, 0)..=Key::Route(dst, u32::MAX))
}

pub(crate) fn routes<S: Ord + Clone>(
    wanted: &Wanted<S, Entry>,
    family: Family,
) -> impl Iterator<Item = &Entry> {
    let ipv6 = Key::Route(Ipv6Net::default().into(), 0);
    let (from, to) = match family {
        Family::V4 => (Key::Route(Ipv4Net::default().into(), 0), Bound::Excluded(ipv6)),
        Family::V6 => (ipv6, Bound::Unbounded),
    };
    wanted.range((Bound::Included(from), to))
}

/// Whether any entry is on this device, or a device of ours has it as its parent.
pub(crate) fn refers_to<S: Ord + Clone>(wanted: &Wanted<S, Entry>, name: IfName) -> bool {
    wanted.devices().any(|(device, _)| *device == name)
}

/// Devices that packets of this family are routed to, or come in by.
pub(crate) fn carriers<S: Ord + Clone>(
    wanted: &Wanted<S, Entry>,
    family: Family,
) -> impl Iterator<Item = IfName> {
    wanted.devices().filter(move |(_, carries)| *carries == Some(family)).map(|(name, _)| *name)
}
