//! Who had a MAC address or a key first. Of two leases that announce the same one, the first keeps it and the other gets
//! nothing: else whoever copies what another node announces would get that node's packets.
//!
//! While the daemon runs, the order of the store's events tells. Of what it finds when it starts, it goes by what it
//! remembers of earlier runs, then by the store's own account of who came first, then by the lower subnet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flannel_backend::LinkIdentity;
use flannel_lease::Subnet;
use flannel_store::AnnouncedSince;

/// Most entries that are kept over restarts: two for each of sixteen thousand dual-stack peers.
pub(crate) const KEPT_HOLDERS: usize = 32_768;
/// Number of entries of departed leases beyond which they are looked for.
const STALE_ENTRIES: usize = 1_000;
/// Shortest time between two writes of what is kept.
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Additional pause for each entry: however many leases change, the disk gets some 60 kB a second.
const WRITE_PAUSE_PER_ENTRY: Duration = Duration::from_millis(1);

/// The lease that holds each identity, as it is kept over restarts.
pub(crate) type HolderMap = BTreeMap<LinkIdentity, Subnet>;

/// Whether a lease still announces an identity.
pub(super) type Announces<'a> = &'a dyn Fn(&Subnet, &LinkIdentity) -> bool;

#[derive(Debug, Default)]
pub(super) struct LinkHolders {
    /// Who had it first. It may have left since, which is looked at when another one claims it.
    holders: HolderMap,
    /// Whether `holders` says something that is not kept yet.
    is_changed: bool,
    /// Earliest time of the next write.
    write_due: Option<Instant>,
}

impl LinkHolders {
    /// Goes on from what an earlier run has kept.
    pub(super) fn new(holders: HolderMap) -> Self {
        Self { holders, ..Self::default() }
    }

    /// Takes note of a lease with these identities, or says which of them another lease had before, and which one.
    pub(super) fn claim(
        &mut self,
        subnet: Subnet,
        identities: &[LinkIdentity],
        announces: Announces<'_>,
    ) -> Option<(LinkIdentity, Subnet)> {
        let first = |identity: &LinkIdentity| {
            let holder = *self.holders.get(identity)?;
            let holds = holder != subnet && announces(&holder, identity);
            holds.then_some((*identity, holder))
        };
        let taken = identities.iter().find_map(first);
        if taken.is_none() {
            for identity in identities {
                self.is_changed |= self.holders.insert(*identity, subnet) != Some(subnet);
            }
        }
        taken
    }

    /// Forgets who has left, now and then: `known` leases there are.
    pub(super) fn tidy(&mut self, known: usize, announces: Announces<'_>) {
        if self.holders.len() > 2 * known + STALE_ENTRIES {
            self.holders.retain(|identity, holder| announces(holder, identity));
            self.is_changed = true;
        }
    }

    /// What is to be written now, if anything has changed and the last write was long enough ago.
    pub(super) fn take_changes(&mut self, now: Instant) -> Option<HolderMap> {
        if !self.is_changed || self.write_due.is_some_and(|due| now < due) {
            return None;
        }
        self.is_changed = false;
        let entries = u32::try_from(self.holders.len()).unwrap_or(u32::MAX);
        self.write_due = Some(now + WRITE_PAUSE.max(WRITE_PAUSE_PER_ENTRY.saturating_mul(entries)));
        Some(self.holders.clone())
    }

    /// When [`Self::take_changes`] has something that it does not have yet.
    pub(super) fn next_write(&self) -> Option<Instant> {
        self.write_due.filter(|_| self.is_changed)
    }
}

/// Whether the lease `one` was there before `other`, for all that is known at a start.
pub(super) fn was_first(
    remembered: &HolderMap,
    identity: &LinkIdentity,
    one: (Subnet, Option<AnnouncedSince>),
    other: (Subnet, Option<AnnouncedSince>),
) -> bool {
    match remembered.get(identity) {
        Some(holder) if *holder == one.0 => true,
        Some(holder) if *holder == other.0 => false,
        _ => order_of_arrival(one) < order_of_arrival(other),
    }
}

/// What sorts leases by who was first. Those of which the store does not say come last, the lower subnet first.
pub(super) fn order_of_arrival(
    (subnet, since): (Subnet, Option<AnnouncedSince>),
) -> (bool, Option<AnnouncedSince>, Subnet) {
    (since.is_none(), since, subnet)
}

#[cfg(test)]
mod tests {
    use flannel_common::Family;
    use flannel_kernel::Mac;

    use super::*;

    fn subnet(number: u8) -> Subnet {
        format!("10.5.{number}.0-24").parse().expect("a key")
    }

    fn identity(number: u8) -> LinkIdentity {
        LinkIdentity::VtepMac(Family::V4, Mac([2, 0, 0, 0, 0, number]))
    }

    #[test]
    fn the_first_keeps_it_whatever_its_subnet_until_it_leaves() {
        let mut holders = LinkHolders::default();
        let both = |_: &Subnet, _: &LinkIdentity| true;
        assert_eq!(holders.claim(subnet(9), &[identity(1)], &both), None);
        let taken = Some((identity(1), subnet(9)));
        assert_eq!(holders.claim(subnet(2), &[identity(7), identity(1)], &both), taken);
        assert_eq!(holders.claim(subnet(9), &[identity(1)], &both), None, "it renews");
        assert_eq!(
            holders.claim(subnet(3), &[identity(7)], &both),
            None,
            "nothing is held by one who has nothing"
        );
        let gone = |holder: &Subnet, _: &LinkIdentity| *holder != subnet(9);
        assert_eq!(holders.claim(subnet(2), &[identity(1)], &gone), None);
        assert_eq!(holders.claim(subnet(9), &[identity(1)], &both), Some((identity(1), subnet(2))));
    }

    #[test]
    fn a_holder_keeps_its_mac_when_it_is_copied_while_the_daemon_is_down() {
        let announces = |_: &Subnet, _: &LinkIdentity| true;
        let mut holders = LinkHolders::default();
        holders.claim(subnet(9), &[identity(1)], &announces);
        // Nobody disputes it yet.
        let kept = holders.take_changes(Instant::now()).expect("what is known");
        let mut again = LinkHolders::new(kept.clone());
        assert_eq!(
            again.claim(subnet(2), &[identity(1)], &announces),
            Some((identity(1), subnet(9))),
            "though it comes first this time"
        );
        let (older, newer) = (AnnouncedSince::new(3), AnnouncedSince::new(7));
        assert!(was_first(&kept, &identity(1), (subnet(9), newer), (subnet(2), older)));
        assert!(!was_first(&kept, &identity(1), (subnet(2), older), (subnet(9), newer)));
    }

    #[test]
    fn without_memory_the_store_tells_who_was_first_and_else_the_lower_subnet() {
        let (none, identity) = (HolderMap::new(), identity(5));
        let (older, newer) = (AnnouncedSince::new(3), AnnouncedSince::new(7));
        assert!(was_first(&none, &identity, (subnet(9), older), (subnet(2), newer)));
        assert!(!was_first(&none, &identity, (subnet(2), newer), (subnet(9), older)));
        assert!(was_first(&none, &identity, (subnet(2), older), (subnet(1), None)));
        assert!(was_first(&none, &identity, (subnet(1), None), (subnet(2), None)));
    }

    #[test]
    fn what_is_kept_is_bounded_and_written_at_once_then_with_pauses() {
        let mut holders = LinkHolders::default();
        let begin = Instant::now();
        for round in 0..100u8 {
            for number in 0..100u8 {
                let mac = LinkIdentity::VtepMac(Family::V4, Mac([2, 0, 0, 0, round, number]));
                let announces = |holder: &Subnet, _: &LinkIdentity| *holder == subnet(number);
                holders.claim(subnet(number), &[mac], &announces);
                holders.claim(subnet(200), &[mac], &announces);
                holders.tidy(100, &|_, identity| *identity == mac);
            }
        }
        assert!(holders.holders.len() <= 200 + STALE_ENTRIES, "{}", holders.holders.len());
        assert_eq!(holders.next_write(), None, "nothing has to be waited for");
        assert!(holders.take_changes(begin).is_some());
        assert!(holders.take_changes(begin).is_none(), "nothing has changed");
        holders.claim(subnet(7), &[identity(1)], &|_, _| false);
        assert!(holders.take_changes(begin).is_none(), "it was written just now");
        let due = holders.next_write().expect("a time");
        assert!(due >= begin + WRITE_PAUSE);
        assert!(holders.take_changes(due).is_some_and(|kept| kept[&identity(1)] == subnet(7)));
    }
}
