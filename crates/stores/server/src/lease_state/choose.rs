//! Choice of a subnet as `flannel_lease::decide` makes it, from the lease state's own indices, so that its cost does not
//! grow with the number of leases. A test compares the two.

use std::net::IpAddr;

use flannel_common::Family;
use flannel_lease::{AcquireError, Choice, Decision, KnownBy, LeaseAttrs, Subnet, choose_free};
use flannel_store::{KeptLease, Refusal};

use super::network::Network;

impl Network {
    pub(super) fn known_by(&self) -> KnownBy {
        KnownBy::of(self.config())
    }

    pub(super) fn leases_at(&self, node: IpAddr) -> Vec<Subnet> {
        let mut leases: Vec<Subnet> = self.at_address(node).collect();
        leases.sort_unstable();
        leases
    }

    /// Leases of a node with these attributes: at the address it is known by, and at its other one those that announce that
    /// alone, from a time when the network had no other family.
    pub(super) fn leases_of(&self, node: IpAddr, attrs: &LeaseAttrs) -> Vec<Subnet> {
        let others = attrs.public_addresses().filter(|ip| !ip.is_unspecified() && *ip != node);
        let lacks_the_first = |subnet: &Subnet| {
            let first = |lease: &KeptLease| lease.attrs.public_address(Family::of(node));
            let lease = self.lease(subnet);
            lease.is_some_and(|lease| first(lease).is_none_or(|ip| ip.is_unspecified()))
        };
        let mut leases = self.leases_at(node);
        leases.extend(others.flat_map(|ip| self.at_address(ip)).filter(lacks_the_first));
        leases.sort_unstable();
        leases
    }

    pub(super) fn choose(
        &mut self,
        ours: &[Subnet],
        previous: Option<Subnet>,
        rng: &mut fastrand::Rng,
    ) -> Result<Decision, Refusal> {
        if let Some(fault) = self.config_fault() {
            let kept = previous.filter(|p| ours.contains(p)).or(ours.first().copied());
            let unusable = || Refusal::UnusableConfig(Box::new(fault.clone()));
            let choice = Choice::Keep(kept.ok_or_else(unusable)?);
            return Ok(Decision { discard: vec![], choice });
        }
        let config = self.config().ok_or(AcquireError::NoFamily)?;
        let (usable, unusable): (Vec<Subnet>, Vec<Subnet>) =
            ours.iter().partition(|subnet| config.accepts(subnet));
        let kept = previous.filter(|p| usable.contains(p)).or(usable.first().copied());
        if let Some(kept) = kept {
            return Ok(Decision { discard: unusable, choice: Choice::Keep(kept) });
        }
        let wished: Vec<Subnet> = previous.iter().chain(&unusable).copied().collect();
        // Our own leases do not stand in our way.
        unusable.iter().for_each(|subnet| self.vacate(subnet));
        let (v4, v6) = (self.free_v4.as_ref(), self.free_v6.as_ref());
        let v4 = v4.map(|free| choose_free("Network", free, &wished, Subnet::v4, rng));
        let v6 = v6.map(|free| choose_free("IPv6Network", free, &wished, Subnet::v6, rng));
        unusable.iter().for_each(|subnet| self.occupy(subnet));
        let subnet = Subnet::new(v4.transpose()?, v6.transpose()?).ok_or(AcquireError::NoFamily)?;
        Ok(Decision { discard: unusable, choice: Choice::Take(subnet) })
    }
}
