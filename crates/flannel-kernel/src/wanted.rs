//! The desired state of the kernel: its entries stand on devices, and its routes on each other.

use std::cmp::Ordering;
use std::ops::Bound;
use std::time::Duration;

use flannel_common::{Backoff, Family, RepairPolicy};
use flannel_wanted::{KeyedEntry, Wanted};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

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
    /// A device, and the family whose packets an entry leads there or lets in; `None`: it only stands on it.
    type Device = (IfName, Option<Family>);

    fn key(&self) -> Key {
        self.key()
    }

    /// Of the many without making one.
    fn compare_key(&self, key: &Key) -> Ordering {
        match (self, key) {
            (Self::Neighbour(e), Key::Neighbour(link, ip)) => (&e.link, &e.ip).cmp(&(link, ip)),
            (Self::Fdb(e), Key::Fdb(link, mac)) => (&e.link, &e.mac).cmp(&(link, mac)),
            (Self::Route(e), Key::Route(dst, metric)) => (&e.dst, &e.metric).cmp(&(dst, metric)),
            _ => self.key().cmp(key),
        }
    }

    fn devices(&self) -> impl Iterator<Item = Self::Device> {
        let (carries, parent) = match self {
            Self::Address(address) => (Some(Family::of(address.addr.addr())), None),
            Self::Route(route) => (Some(Family::of(route.dst.addr())), None),
            Self::Link(link) => (None, link.kind.parent()),
            _ => (None, None),
        };
        self.link().map(|link| (link, carries)).into_iter().chain(parent.map(|link| (link, None)))
    }

    /// Secrets hide themselves.
    fn describe(&self) -> String {
        self.to_string()
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Link(_) => "device",
            Self::Address(_) => "address",
            Self::Route(_) | Self::Blackhole(_) => "route",
            Self::Neighbour(_) => "neighbour",
            Self::Fdb(_) => "fdb",
            Self::Sysctl(_) => "sysctl",
            Self::Offload(_) => "offload",
            Self::WireguardIdentity(_) => "wireguard-key",
            Self::WireguardPeer(_) => "wireguard-peer",
            Self::Policy(_) => "xfrm-policy",
        }
    }

    fn is_foundation(&self) -> bool {
        matches!(self, Self::Link(_) | Self::WireguardIdentity(_) | Self::Address(_))
    }
}

/// What is asked of the desired state because it is the kernel's.
pub(crate) trait WantedOfKernel {
    fn links(&self) -> impl Iterator<Item = &Link>;

    /// To be written (again): the device it stands on was made anew.
    fn rewrite_all_on(&mut self, name: IfName);

    /// To be written (again): a removal may have hit them.
    fn rewrite_routes_to(&mut self, dst: IpNet);

    /// The wanted routes of exactly this destination, best metric first.
    fn routes_to(&self, dst: IpNet) -> impl Iterator<Item = &Entry>;

    /// All wanted routes of a family.
    fn routes(&self, family: Family) -> impl Iterator<Item = &Entry>;

    /// Whether any entry stands on this device, or a device of ours has it as its parent.
    fn refers_to(&self, name: IfName) -> bool;

    /// The devices that packets of this family are led to, or come in by.
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
