//! Choosing a subnet as `flannel_lease::decide` does, from the lease state's own indices: what it costs does
//! not grow with the number of leases. A test holds the two against each other.

use flannel_store::Refusal;
use std::net::IpAddr;

use flannel_lease::{AcquireError, Choice, Decision, KnownBy, Subnet, choose_free};

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
