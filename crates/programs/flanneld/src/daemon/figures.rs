//! What is counted in one network, for whoever asks for metrics.

use std::collections::BTreeMap;
use std::time::SystemTime;

use flannel_lease::{Expiry, FreeMap, Net, Pool, SubnetSource};
use flannel_metrics::Latency;
use flannel_state::{PeerCounts, ProbingState};
use flannel_wanted::Status;

use super::Daemon;
use super::event_loop::LoopParts;
use super::issues::SharedAddresses;
use super::now::Now;
use crate::appliers::Appliers;

/// The state of a network in numbers, but for those that the appliers know.
pub struct Figures {
    pub peers: PeerCounts,
    /// Numbers of peers that cannot be used, by why.
    pub unusable: BTreeMap<&'static str, usize>,
    /// What came of probing them, where that is not off.
    pub probing: Option<ProbingState>,
    pub hazards: usize,
    pub store_up: bool,
    pub store_contact: Option<SystemTime>,
    pub watch_restarts: u64,
    /// `None`: it does not end.
    pub lease_end: Option<SystemTime>,
    /// Size and free subnets of the pool of each family.
    pub pools: Vec<(&'static str, PoolFigures)>,
    pub store_to_kernel: Latency,
    pub appliers: Appliers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFigures {
    pub size: u128,
    pub free: u128,
}

impl Daemon {
    pub(super) fn figures(&self, parts: LoopParts, status: &Status, now: &Now) -> Figures {
        let contact = self.setup.store.contact();
        let store_up = self.store_contact.is_up();
        // A store that is a part of this process answers as long as we do.
        let store_contact = match &contact {
            Some(contact) => contact.last(),
            None => store_up.then_some(now.time),
        };
        Figures {
            peers: self.peers.counts(self.table.len()),
            unusable: self.peers.unusable_by_kind(),
            // It is counted, not told.
            probing: self.probing_state(&SharedAddresses::default()),
            hazards: status.hazards.len(),
            store_up,
            store_contact,
            watch_restarts: contact.map_or(0, |contact| contact.restarts()),
            lease_end: match self.own.expiry() {
                Expiry::Never => None,
                Expiry::At(end) => Some(end),
            },
            pools: self.pools(),
            store_to_kernel: parts.store_to_kernel,
            appliers: parts.appliers,
        }
    }

    fn pools(&self) -> Vec<(&'static str, PoolFigures)> {
        let config = self.network.config();
        let subnets = || self.table.iter().map(|(subnet, _)| *subnet).chain([self.own.subnet()]);
        let v4 = || subnets().filter_map(|subnet| subnet.v4());
        let v6 = || subnets().filter_map(|subnet| subnet.v6());
        let v4 = pool(config.v4.as_ref()).map(|pool| ("ipv4", figures_of(pool, v4)));
        let v6 = pool(config.v6.as_ref()).map(|pool| ("ipv6", figures_of(pool, v6)));
        v4.into_iter().chain(v6).collect()
    }
}

/// Where subnets are assigned, there is none.
fn pool<N: Net>(source: Option<&SubnetSource<N>>) -> Option<Pool<N>> {
    match source? {
        SubnetSource::Pool(pool) => Some(*pool),
        SubnetSource::Assigned { .. } => None,
    }
}

fn figures_of<N: Net, I: Iterator<Item = N>>(pool: Pool<N>, leases: impl Fn() -> I) -> PoolFigures {
    let size = pool.capacity();
    // As a rule each lease is one subnet of the pool, and no two are the same.
    if leases().all(|lease| pool.accepts(lease)) {
        let used = leases().count() as u128;
        return PoolFigures { size, free: size.saturating_sub(used) };
    }
    let mut free = FreeMap::new(pool);
    leases().for_each(|lease| free.occupy(lease));
    PoolFigures { size, free: free.free() }
}

#[cfg(test)]
mod tests {
    use flannel_lease::NetworkConfig;
    use ipnet::Ipv4Net;

    use super::*;

    #[test]
    fn leases_of_another_length_take_what_they_cover() {
        let config = r#"{"Network":"10.1.0.0/16","SubnetLen":24,"SubnetMin":"10.1.0.0"}"#;
        let config = NetworkConfig::parse(config).expect("a config");
        let pool = pool(config.v4.as_ref()).expect("a pool");
        let of = |leases: &[&str]| {
            let nets: Vec<Ipv4Net> = leases.iter().map(|net| net.parse().expect("a net")).collect();
            figures_of(pool, || nets.iter().copied())
        };
        let size = pool.capacity();
        assert_eq!(of(&["10.1.3.0/24", "10.1.4.0/24"]), PoolFigures { size, free: size - 2 });
        assert_eq!(of(&["10.1.4.0/23", "10.1.9.0/25"]), PoolFigures { size, free: size - 3 });
        assert_eq!(of(&["10.9.0.0/24"]), PoolFigures { size, free: size }, "it is elsewhere");
    }
}
