//! Choice of a subnet as `flannel_lease::decide` makes it, from the lease state's own indices, so that its cost does not
//! grow with the number of leases. A test compares the two.

use flannel_store::Refusal;
use std::net::IpAddr;

use flannel_lease::{AcquireError, Choice, Decision, KnownBy, LeaseAttrs, Subnet, choose_free};

use super::network::Network;

impl Network {
    pub(super) fn known_by(&self) -> KnownBy {
        KnownBy::of(self.config())
    }

    /// The leases of the node that is known by this address.
    pub(super) fn leases_at(&self, node: IpAddr) -> Vec<Subnet> {
        let mut leases: Vec<Subnet> = self.at_address(node).collect();
        leases.sort_unstable();
        leases
    }

    /// Leases of a node with these attributes: at the address it is known by, and at its other one those that announce that
    /// alone, from a time when the network had no other family.
    pub(super) fn leases_of(&self, node: IpAddr, attrs: &LeaseAttrs) -> Vec<Subnet> {
        let v4 = attrs.public_ip.map(IpAddr::V4).filter(|ip| !ip.is_unspecified());
        let v6 = attrs.public_ipv6.map(IpAddr::V6).filter(|ip| !ip.is_unspecified());
        let others = v4.into_iter().chain(v6).filter(|ip| *ip != node);
        let lacks_the_first = |subnet: &Subnet| {
            self.lease(subnet).is_some_and(|entry| match node {
                IpAddr::V4(_) => entry.attrs.public_ip.is_none_or(|ip| ip.is_unspecified()),
                IpAddr::V6(_) => entry.attrs.public_ipv6.is_none_or(|ip| ip.is_unspecified()),
            })
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
        let v4 = self
            .free_v4
            .as_ref()
            .map(|free| choose_free("Network", free, &wished, Subnet::v4, rng));
        let v6 = self
            .free_v6
            .as_ref()
            .map(|free| choose_free("IPv6Network", free, &wished, Subnet::v6, rng));
        unusable.iter().for_each(|subnet| self.occupy(subnet));
        let subnet = Subnet::new(v4.transpose()?, v6.transpose()?).ok_or(AcquireError::NoFamily)?;
        Ok(Decision { discard: unusable, choice: Choice::Take(subnet) })
    }
}
