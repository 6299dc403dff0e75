//! What this node says of itself in one network, when it is asked.

use std::time::SystemTime;

use flannel_lease::{Expiry, LeaseAttrs, LeaseTable, Subnet};
use flannel_metrics::Latency;
use flannel_state::{
    EntriesState, LeaseState, Moment, NetworkState, PeerCondition, PeerState, ProblemState,
    StoreState, UnderlayState,
};
use flannel_wanted::Status;

use super::Daemon;
use super::issues::SharedAddresses;
use super::now::Now;
use crate::appliers::Appliers;
use crate::door::{PeerPlace, PeersPage, Question};

/// Peers told of at once: the daemon has other things to do in between.
const PEERS_PER_PAGE: usize = 500;

/// Whether the store answers, and since when it does or does not.
pub(super) struct StoreContact {
    pub(super) since: SystemTime,
    pub(super) lost: Option<String>,
}

impl Daemon {
    pub(super) fn answer(
        &self,
        question: Question,
        appliers: Appliers,
        store_to_kernel: &Latency,
        status: &Status,
        now: &Now,
    ) {
        // Who has asked may have gone.
        match question {
            Question::State(answer) => drop(answer.send(self.state(status, now))),
            Question::Peers(after, answer) => {
                let is_wrong = status.bad > 0 || status.contested > 0;
                let appliers = is_wrong.then_some(appliers);
                drop(answer.send(PeersPage { peers: self.peer_states(after), appliers }));
            }
            Question::Figures(answer) => {
                drop(answer.send(self.figures(appliers, store_to_kernel, status, now).into()));
            }
            Question::LeaseNets(answer) => {
                drop(answer.send(self.subnets().flat_map(|it| it.nets()).collect()));
            }
            Question::Appliers(answer) => drop(answer.send(appliers)),
        }
    }

    /// Subnets of all leases, this node's own last.
    pub(super) fn subnets(&self) -> impl Iterator<Item = Subnet> {
        self.table.iter().map(|(subnet, _)| *subnet).chain([self.own.subnet()])
    }

    fn state(&self, status: &Status, now: &Now) -> NetworkState {
        let readiness = self.setup.report.watch_readiness().borrow().clone();
        let network = &self.network;
        let shared = self.shared_addresses();
        NetworkState {
            name: self.setup.report.network.to_string(),
            verdict: readiness.verdict,
            why: readiness.remark(),
            networks: network.networks().iter().map(ToString::to_string).collect(),
            backend: Some(network.config().backend.kind.clone()),
            config: Some(network.config().shown()),
            lease: Some(self.lease_state(now)),
            underlay: Some(self.underlay_state()),
            mtu: Some(network.mtu()),
            mtu_why: Some(network.backend.mtu_why(&network.node)),
            store: Some(StoreState {
                name: self.setup.store.description(),
                up: self.store_contact.lost.is_none(),
                since: moment(self.store_contact.since),
                why: self.store_contact.lost.clone(),
            }),
            peers: self.peers.counts(self.table.len()),
            probing: self.probing_state(&shared),
            entries: entries_state(status),
            issues: self.issues(status, &shared, now),
        }
    }

    fn lease_state(&self, now: &Now) -> LeaseState {
        let (subnet, expiry) = (self.own.subnet(), self.own.held.expiry);
        let ends = match expiry {
            Expiry::Never => None,
            Expiry::At(end) => Some(moment(end)),
        };
        LeaseState {
            subnet: subnet.v4().map(|net| net.to_string()),
            ipv6_subnet: subnet.v6().map(|net| net.to_string()),
            ends,
            remaining_seconds: expiry.remaining(now.time).map(|left| left.as_secs()),
        }
    }

    fn underlay_state(&self) -> UnderlayState {
        let underlay = self.network.underlay();
        UnderlayState {
            interface: underlay.link.to_string(),
            why: underlay.why.clone(),
            mtu: underlay.mtu,
            addresses: underlay.addresses(),
            public_ip: underlay.public_v4,
            public_ipv6: underlay.public_v6,
        }
    }

    /// The next peers in order, those missing from the store's list last.
    fn peer_states(&self, after: Option<PeerPlace>) -> Vec<(Subnet, PeerState)> {
        let shared = self.shared_addresses();
        next_peers(&self.table, self.peers.vanished.keys(), after)
            .take(PEERS_PER_PAGE)
            .map(|(subnet, attrs)| (*subnet, self.peer_state(subnet, attrs, &shared)))
            .collect()
    }

    fn peer_state(
        &self,
        subnet: &Subnet,
        attrs: Option<&LeaseAttrs>,
        shared: &SharedAddresses,
    ) -> PeerState {
        let why = self.peers.unusable.problems.get(subnet).map(ToString::to_string);
        let condition = match (attrs, &why) {
            (None, _) => PeerCondition::Vanished,
            (Some(_), Some(_)) => PeerCondition::Unusable,
            (Some(_), None) => PeerCondition::Programmed,
        };
        PeerState {
            network: self.setup.report.network.to_string(),
            name: attrs.and_then(|attrs| attrs.owner_name()).map(str::to_owned),
            subnet: subnet.v4().map(|net| net.to_string()),
            ipv6_subnet: subnet.v6().map(|net| net.to_string()),
            public_ip: attrs.and_then(|attrs| attrs.public_ip),
            public_ipv6: attrs.and_then(|attrs| attrs.public_ipv6),
            backend: attrs.map(|attrs| attrs.backend_type.to_string()).unwrap_or_default(),
            condition,
            why,
            probe: self.probe_state(subnet, attrs, shared),
        }
    }
}

/// Those after a place, whose peer may have left meanwhile.
fn next_peers<'a>(
    table: &'a LeaseTable,
    vanished: impl Iterator<Item = &'a Subnet>,
    after: Option<PeerPlace>,
) -> impl Iterator<Item = (&'a Subnet, Option<&'a LeaseAttrs>)> {
    let (listed_after, vanished_after) = match after {
        Some(PeerPlace { subnet, is_vanished: true }) => (None, Some(subnet)),
        listed => (Some(listed.map(|place| place.subnet)), None),
    };
    let listed = listed_after.into_iter().flat_map(|after| table.iter_after(after));
    let vanished =
        vanished.filter(move |subnet| vanished_after.is_none_or(|after| **subnet > after));
    listed.map(|(subnet, attrs)| (subnet, Some(attrs))).chain(vanished.map(|subnet| (subnet, None)))
}

fn entries_state(status: &Status) -> EntriesState {
    let problem = |problem: &flannel_wanted::Problem| ProblemState {
        entry: problem.entry.clone(),
        why: problem.reason.clone(),
    };
    EntriesState {
        wanted: status.wanted,
        missing: status.bad,
        contested: status.contested,
        problems: status.problems.iter().map(problem).collect(),
        hazards: status.hazards.iter().map(ToString::to_string).collect(),
    }
}

pub(crate) fn moment(at: SystemTime) -> Moment {
    jiff::Timestamp::try_from(at).map(|at| at.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use flannel_lease::Lease;

    use super::*;

    fn subnet(number: u8) -> Subnet {
        format!("10.5.{number}.0-24").parse().expect("a key")
    }

    #[test]
    fn pages_of_peers_go_on_where_they_ended_though_peers_leave_meanwhile() {
        let mut table = LeaseTable::new();
        let lease = |number| Lease { subnet: subnet(number), attrs: LeaseAttrs::default() };
        table.snapshot((1..=5).map(lease));
        let vanished = [subnet(2), subnet(8), subnet(9)];
        let next = |table: &LeaseTable, after| -> Vec<(Subnet, bool)> {
            let peers = next_peers(table, vanished.iter(), after);
            peers.take(3).map(|(subnet, attrs)| (*subnet, attrs.is_none())).collect()
        };
        let of = |numbers: [(u8, bool); 3]| numbers.map(|(n, gone)| (subnet(n), gone)).to_vec();
        let place = |(subnet, is_vanished)| Some(PeerPlace { subnet, is_vanished });

        let first = next(&table, None);
        assert_eq!(first, of([(1, false), (2, false), (3, false)]));
        // The last one of the page leaves.
        table.snapshot([1, 2, 4, 5].map(lease));
        let second = next(&table, place(first[2]));
        assert_eq!(second, of([(4, false), (5, false), (2, true)]));
        let third = next(&table, place(second[2]));
        assert_eq!(third, [(subnet(8), true), (subnet(9), true)]);
        assert_eq!(next(&table, place(third[1])), []);
    }
}
