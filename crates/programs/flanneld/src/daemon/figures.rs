//! What is counted in one network, for whoever asks for metrics.

use flannel_backend::PeerProblem;
use flannel_lease::{Expiry, FreeMap, Net, Pool, SubnetSource};
use flannel_metrics::{Latency, Scrape, node};
use flannel_state::PeerCounts;
use flannel_wanted::Status;

use super::Daemon;
use super::issues::SharedAddresses;
use super::now::Now;
use crate::appliers::Appliers;

/// The state of a network in numbers, but for those that the appliers know.
pub struct Figures {
    pub scrape: Scrape,
    pub peers: PeerCounts,
    pub appliers: Appliers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PoolFigures {
    size: u128,
    free: u128,
}

impl Daemon {
    pub(super) fn figures(
        &self,
        appliers: Appliers,
        store_to_kernel: &Latency,
        status: &Status,
        now: &Now,
    ) -> Figures {
        let mut scrape = Scrape::default();
        let network = self.setup.report.network.as_str();
        let of = &[network];
        let unusable = self.peers.unusable.count_by_kind();
        // Also those that are nobody's reason now: what is not there cannot be told from what is zero.
        for reason in PeerProblem::KINDS {
            let count = unusable.get(reason).copied().unwrap_or(0);
            scrape.number(&node::PEERS_UNUSABLE, &[network, reason], count as f64);
        }
        // It is counted, not told.
        if let Some(probing) = self.probing_state(&SharedAddresses::default()) {
            for (result, count) in [
                ("reached", probing.reached),
                ("unreached", probing.unreached),
                ("impaired", probing.impaired),
                ("not-probed", probing.not_probed),
                ("waiting", probing.waiting),
            ] {
                scrape.number(&node::PEERS_PROBED, &[network, result], count as f64);
            }
        }
        scrape.number(&node::HAZARDS, of, status.hazards.len() as f64);
        self.add_store(&mut scrape, of, now);
        if let Expiry::At(end) = self.own.held.expiry {
            scrape.moment(&node::LEASE_END, of, end);
        }
        for (family, PoolFigures { size, free }) in self.pools() {
            let of = &[network, family];
            scrape.number(&node::POOL, of, size as f64);
            scrape.number(&node::POOL_USED, of, (size - free) as f64);
            scrape.number(&node::POOL_FREE, of, free as f64);
        }
        scrape.latency(&node::STORE_TO_KERNEL, of, store_to_kernel);
        let latencies = &appliers.kernel.latencies;
        scrape.latency(&node::RECONCILE, &[network, "change"], &latencies.change);
        scrape.latency(&node::RECONCILE, &[network, "everything"], &latencies.everything);
        Figures { scrape, peers: self.peers.counts(self.table.len()), appliers }
    }

    fn add_store(&self, scrape: &mut Scrape, of: &[&str], now: &Now) {
        let (contact, is_up) = (self.setup.store.contact(), self.store_contact.lost.is_none());
        scrape.is(&node::STORE_UP, of, is_up);
        scrape.count(&node::WATCH_RESTARTS, of, contact.as_ref().map_or(0, |it| it.restarts()));
        // A store that is a part of this process answers as long as we do.
        let last = contact.map_or(is_up.then_some(now.time), |contact| contact.last());
        if let Some(last) = last {
            scrape.moment(&node::STORE_CONTACT, of, last);
        }
    }

    fn pools(&self) -> Vec<(&'static str, PoolFigures)> {
        let config = self.network.config();
        let v4 = || self.subnets().filter_map(|subnet| subnet.v4());
        let v6 = || self.subnets().filter_map(|subnet| subnet.v6());
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
