//! Who had a MAC address or a key first. Of two leases that announce the same one, the first keeps it and the other gets
//! nothing: else whoever copies what another node announces would get that node's packets.
//!
//! While the daemon runs, the order of the store's events tells. Of what it finds when it starts, it goes by what it
//! remembers of earlier runs, then by whose public address gives the MAC, then by the store's own account of who announced
//! it first. Where nothing tells, nobody gets it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flannel_backend::LinkIdentity;
use flannel_lease::Subnet;
use flannel_store::AnnouncedSince;

/// Most entries that are kept over restarts: two for each of sixteen thousand dual-stack peers.
pub(crate) const KEPT_HOLDERS: usize = 32_768;
/// Number of entries of departed leases beyond which they are looked for.
const STALE_ENTRIES: usize = 1_000;
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Additional pause for each entry: however many leases change, the disk gets some 60 kB a second.
const WRITE_PAUSE_PER_ENTRY: Duration = Duration::from_millis(1);

/// The lease that holds each identity, as it is kept over restarts.
pub(crate) type HolderMap = BTreeMap<LinkIdentity, Subnet>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdentityDispute {
    pub(super) identity: LinkIdentity,
    pub(super) rival: Subnet,
    /// The rival had it first; else nobody knows who did, and neither gets it.
    pub(super) is_rival_first: bool,
}

pub(super) type Announces<'a> = &'a dyn Fn(&Subnet, &LinkIdentity) -> bool;

#[derive(Debug, Default)]
pub(super) struct LinkHolders {
    /// Who had it first. It may have left since, which is looked at when another one claims it.
    holders: HolderMap,
    /// Those of which nobody knows who had them first, and the leases that announced them.
    undecided: BTreeMap<LinkIdentity, Vec<Subnet>>,
    /// Whether `holders` says something that is not kept yet.
    is_changed: bool,
    write_due: Option<Instant>,
}

impl LinkHolders {
    pub(super) fn new(holders: HolderMap) -> Self {
        Self { holders, ..Self::default() }
    }

    /// Takes note of a lease with these identities, or says what keeps it from one of them.
    pub(super) fn claim(
        &mut self,
        subnet: Subnet,
        identities: &[LinkIdentity],
        announces: Announces<'_>,
    ) -> Option<IdentityDispute> {
        let dispute = |identity: &LinkIdentity| {
            let is_rival = |it: &&Subnet| **it != subnet && announces(it, identity);
            let undecided = self.undecided.get(identity);
            let rival = undecided.map_or_else(
                || self.holders.get(identity).filter(is_rival),
                |all| all.iter().find(is_rival),
            );
            let is_rival_first = undecided.is_none();
            rival.map(|rival| IdentityDispute {
                identity: *identity,
                rival: *rival,
                is_rival_first,
            })
        };
        let taken = identities.iter().find_map(dispute);
        if taken.is_none() {
            for identity in identities {
                self.undecided.remove(identity);
                self.is_changed |= self.holders.insert(*identity, subnet) != Some(subnet);
            }
        }
        taken
    }

    /// Takes note of an identity that all of `claims` announce: the first of them holds it, unless another one is known to
    /// hold it, and nobody does while it is not known which one is the first.
    pub(super) fn settle(
        &mut self,
        identity: LinkIdentity,
        claims: &[IdentityClaim],
        announces: Announces<'_>,
    ) {
        if self.holders.get(&identity).is_some_and(|holder| announces(holder, &identity)) {
            return;
        }
        match first_claim(&identity, claims) {
            Some(first) => {
                self.undecided.remove(&identity);
                self.claim(first, &[identity], announces);
            }
            None => {
                self.is_changed |= self.holders.remove(&identity).is_some();
                let all = claims.iter().map(|claim| claim.subnet).collect();
                self.undecided.insert(identity, all);
            }
        }
    }

    /// Forgets who has left, now and then: `known` leases there are.
    pub(super) fn tidy(&mut self, known: usize, announces: Announces<'_>) {
        if self.holders.len() > 2 * known + STALE_ENTRIES {
            self.holders.retain(|identity, holder| announces(holder, identity));
            self.undecided
                .retain(|identity, all| all.iter().any(|subnet| announces(subnet, identity)));
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

/// A lease that announces an identity, and what tells since when, to a daemon that did not see it happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdentityClaim {
    pub(super) subnet: Subnet,
    /// It has the identity by its own public address.
    pub(super) is_derived: bool,
    pub(super) since: Option<AnnouncedSince>,
}

/// The claim that was first, if there is proof. A key needs none: nobody else can read packets sent to the wrong node.
pub(super) fn first_claim(identity: &LinkIdentity, claims: &[IdentityClaim]) -> Option<Subnet> {
    let is_derived = claims.iter().any(|claim| claim.is_derived);
    let rivals = || claims.iter().filter(|claim| claim.is_derived == is_derived);
    // Leases of which the store does not say when come last, the lower subnet first.
    let first = rivals().min_by_key(|it| (it.since.is_none(), it.since, it.subnet))?;
    let came_later = |claim: &IdentityClaim| {
        claim.subnet == first.subnet
            || claim.since.is_some_and(AnnouncedSince::is_exact) && claim.since > first.since
    };
    (identity.guards_packets() || rivals().all(came_later)).then_some(first.subnet)
}

/// Whether the lease `one` had an identity before `other`, for all that is known at a start.
pub(super) fn was_first(
    remembered: &HolderMap,
    identity: &LinkIdentity,
    one: IdentityClaim,
    other: IdentityClaim,
) -> bool {
    match remembered.get(identity) {
        Some(holder) if *holder == one.subnet => true,
        Some(holder) if *holder == other.subnet => false,
        _ => first_claim(identity, &[one, other]) == Some(one.subnet),
    }
}

#[cfg(test)]
mod tests {
    use flannel_common::{Family, Mac, PublicKey};

    use super::*;

    fn subnet(number: u8) -> Subnet {
        format!("10.5.{number}.0-24").parse().expect("a key")
    }

    fn identity(number: u8) -> LinkIdentity {
        LinkIdentity::VtepMac(Family::V4, Mac([2, 0, 0, 0, 0, number]))
    }

    fn by_store(number: u8, since: Option<AnnouncedSince>) -> IdentityClaim {
        IdentityClaim { subnet: subnet(number), is_derived: false, since }
    }

    /// The lease with this number had it first.
    fn decided(number: u8) -> Option<IdentityDispute> {
        let (identity, rival) = (identity(1), subnet(number));
        Some(IdentityDispute { identity, rival, is_rival_first: true })
    }

    #[test]
    fn the_first_keeps_it_whatever_its_subnet_until_it_leaves() {
        let mut holders = LinkHolders::default();
        let both = |_: &Subnet, _: &LinkIdentity| true;
        assert_eq!(holders.claim(subnet(9), &[identity(1)], &both), None);
        let taken = decided(9);
        assert_eq!(holders.claim(subnet(2), &[identity(7), identity(1)], &both), taken);
        assert_eq!(holders.claim(subnet(9), &[identity(1)], &both), None, "it renews");
        assert_eq!(
            holders.claim(subnet(3), &[identity(7)], &both),
            None,
            "nothing is held by one who has nothing"
        );
        let gone = |holder: &Subnet, _: &LinkIdentity| *holder != subnet(9);
        assert_eq!(holders.claim(subnet(2), &[identity(1)], &gone), None);
        assert_eq!(holders.claim(subnet(9), &[identity(1)], &both), decided(2));
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
            decided(9),
            "though it comes first this time"
        );
        let (older, newer) = (AnnouncedSince::exact(3), AnnouncedSince::exact(7));
        assert!(was_first(&kept, &identity(1), by_store(9, newer), by_store(2, older)));
        assert!(!was_first(&kept, &identity(1), by_store(2, older), by_store(9, newer)));
    }

    #[test]
    fn without_memory_an_address_or_an_exact_record_of_the_store_tells_who_was_first() {
        let first = |claims: &[IdentityClaim]| first_claim(&identity(5), claims);
        let (exact, about) = (AnnouncedSince::exact, AnnouncedSince::about);
        assert_eq!(first(&[by_store(2, exact(7)), by_store(9, exact(3))]), Some(subnet(9)));
        // At 3 it announced it already, and etcd has forgotten the time before.
        assert_eq!(first(&[by_store(2, exact(7)), by_store(9, about(3))]), Some(subnet(9)));
        assert_eq!(first(&[by_store(2, exact(3)), by_store(9, about(7))]), None);
        assert_eq!(first(&[by_store(2, about(3)), by_store(9, about(7))]), None);
        assert_eq!(first(&[by_store(2, exact(3)), by_store(9, None)]), None);
        assert_eq!(first(&[by_store(1, None), by_store(2, None)]), None);
        // The older Node has copied what the younger one has by its address.
        let derived = IdentityClaim { is_derived: true, ..by_store(9, about(7)) };
        assert_eq!(first(&[by_store(2, about(3)), derived]), Some(subnet(9)));
        assert_eq!(first(&[by_store(2, exact(3)), derived]), Some(subnet(9)));
        let key = LinkIdentity::WireguardKey(PublicKey([7; 32]));
        let claims = [by_store(2, about(7)), by_store(9, about(3))];
        assert_eq!(first_claim(&key, &claims), Some(subnet(9)), "nobody else can read its packets");
    }

    #[test]
    fn nobody_gets_an_identity_of_which_nothing_tells_who_had_it_first_until_one_is_left() {
        let mut holders = LinkHolders::default();
        let both = |_: &Subnet, _: &LinkIdentity| true;
        let unknown = |rival| {
            Some(IdentityDispute {
                identity: identity(1),
                rival: subnet(rival),
                is_rival_first: false,
            })
        };
        let claims = [by_store(2, AnnouncedSince::about(3)), by_store(9, None)];
        holders.settle(identity(1), &claims, &both);
        assert_eq!(holders.claim(subnet(2), &[identity(1)], &both), unknown(9));
        assert_eq!(holders.claim(subnet(9), &[identity(1)], &both), unknown(2));
        assert_eq!(holders.claim(subnet(4), &[identity(1)], &both), unknown(2), "nor does a third");
        assert_eq!(
            holders.take_changes(Instant::now()),
            None,
            "nothing is known that could be kept"
        );
        let second = |holder: &Subnet, _: &LinkIdentity| *holder == subnet(9);
        assert_eq!(
            holders.claim(subnet(9), &[identity(1)], &second),
            None,
            "the other one is gone"
        );
        assert_eq!(holders.claim(subnet(2), &[identity(1)], &both), decided(9));
        // Whoever was seen first keeps it, whatever others have to show later.
        holders.settle(identity(1), &claims, &both);
        assert_eq!(holders.claim(subnet(2), &[identity(1)], &both), decided(9));
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
