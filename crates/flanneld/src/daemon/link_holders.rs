//! Who had a MAC address or a key first. Of two leases that announce the same one, the first keeps it and the other gets
//! nothing: else whoever copies what another node announces would get that node's packets.
//!
//! While the daemon runs, the order of the store's events tells. Of what it finds when it starts, it goes by what it
//! kept of disputes that it has seen, then by which lease the store had first, then by the lower subnet.

use std::collections::BTreeMap;

use flannel_backend::LinkIdentity;
use flannel_lease::{Subnet, Version};

/// Disputes beyond so many are decided again after a restart.
pub(crate) const KEPT_DISPUTES: usize = 256;
/// Beyond so many entries of leases that are gone, they are looked for.
const STALE_ENTRIES: usize = 1_000;

/// Who holds what is disputed, as it is kept over restarts.
pub(crate) type Disputes = BTreeMap<LinkIdentity, Subnet>;

/// Whether a lease still announces an identity.
pub(super) type Announces<'a> = &'a dyn Fn(&Subnet, &LinkIdentity) -> bool;

#[derive(Debug, Default)]
pub(super) struct LinkHolders {
    /// Who had it first. It may have left since, which is looked at when another one claims it.
    holders: BTreeMap<LinkIdentity, Subnet>,
    /// Those that more than one lease announces.
    disputes: Disputes,
}

impl LinkHolders {
    pub(super) fn new(disputes: Disputes) -> Self {
        Self { holders: disputes.clone(), disputes }
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
        match taken {
            Some((identity, holder)) => {
                if self.disputes.len() < KEPT_DISPUTES {
                    self.disputes.insert(identity, holder);
                }
            }
            None => self.holders.extend(identities.iter().map(|identity| (*identity, subnet))),
        }
        taken
    }

    /// Forgets who has left, now and then: `known` leases there are.
    pub(super) fn tidy(&mut self, known: usize, announces: Announces<'_>) {
        if self.holders.len() > 2 * known + STALE_ENTRIES {
            self.holders.retain(|identity, holder| announces(holder, identity));
        }
    }

    /// What is to be kept over restarts: who holds what others announce too. `is_disputed`: they still do.
    pub(super) fn disputes(&mut self, is_disputed: impl Fn(&LinkIdentity) -> bool) -> &Disputes {
        self.disputes.retain(|identity, _| is_disputed(identity));
        &self.disputes
    }
}

/// Whether the lease `one` was there before `other`, for all that is known at a start.
pub(super) fn was_first(
    disputes: &Disputes,
    identity: &LinkIdentity,
    one: (Subnet, Version),
    other: (Subnet, Version),
) -> bool {
    match disputes.get(identity) {
        Some(holder) if *holder == one.0 => true,
        Some(holder) if *holder == other.0 => false,
        _ => order_of_arrival(one) < order_of_arrival(other),
    }
}

/// What sorts leases by when the store first had them. Those of which it does not say come last, the lower subnet first.
pub(super) fn order_of_arrival((subnet, created): (Subnet, Version)) -> (bool, u64, Subnet) {
    (created == Version::UNKNOWN, created.number(), subnet)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
    fn a_dispute_outlives_a_restart_and_is_forgotten_when_it_is_over() {
        let announces = |_: &Subnet, _: &LinkIdentity| true;
        let mut holders = LinkHolders::default();
        holders.claim(subnet(9), &[identity(1)], &announces);
        holders.claim(subnet(2), &[identity(1)], &announces);
        let kept = holders.disputes(|_| true).clone();
        let mut again = LinkHolders::new(kept.clone());
        assert_eq!(
            again.claim(subnet(2), &[identity(1)], &announces),
            Some((identity(1), subnet(9))),
            "though it comes first this time"
        );
        let (older, newer) = (Version::new(3), Version::new(7));
        assert!(was_first(&kept, &identity(1), (subnet(9), newer), (subnet(2), older)));
        assert!(!was_first(&kept, &identity(1), (subnet(2), older), (subnet(9), newer)));
        assert!(was_first(&kept, &identity(5), (subnet(9), older), (subnet(2), newer)));
        assert!(was_first(&kept, &identity(5), (subnet(2), older), (subnet(1), Version::UNKNOWN)));
        let unknown = Version::UNKNOWN;
        assert!(was_first(&kept, &identity(5), (subnet(1), unknown), (subnet(2), unknown)));
        assert!(again.disputes(|_| false).is_empty());
    }

    #[test]
    fn what_is_kept_has_a_size() {
        let mut holders = LinkHolders::default();
        let mut announced = BTreeSet::new();
        for round in 0..100u8 {
            for number in 0..100u8 {
                let mac = LinkIdentity::VtepMac(Family::V4, Mac([2, 0, 0, 0, round, number]));
                announced.insert(mac);
                let announces = |holder: &Subnet, _: &LinkIdentity| *holder == subnet(number);
                holders.claim(subnet(number), &[mac], &announces);
                holders.claim(subnet(200), &[mac], &announces);
                holders.tidy(100, &|_, identity| *identity == mac);
            }
        }
        assert!(holders.holders.len() <= 200 + STALE_ENTRIES, "{}", holders.holders.len());
        assert_eq!(holders.disputes(|_| true).len(), KEPT_DISPUTES);
    }
}
