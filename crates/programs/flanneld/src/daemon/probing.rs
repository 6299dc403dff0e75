//! Which peers are probed, and what is told of them. Readiness ignores an unreachable peer: it is not this node's fault.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use flannel_backend::{Encapsulation, WantedBy};
use flannel_common::Family;
use flannel_lease::{LeaseAttrs, Subnet};
use flannel_probe::finding::finding;
use flannel_probe::{
    ByFamily, IncompletePeers, PeerReachability, ProbeVerdict, Prober, ProbingNode, Standing,
    Target,
};
use flannel_state::{Finding, Layer, ProbeState, ProbedPeer, ProbingState};
use flannel_wanted::Status;
use ipnet::IpNet;

use super::Daemon;
use super::event::Action;
use super::issues::SharedAddresses;
use super::now::Now;
use super::state_report::moment;

const LISTED_FINDINGS: usize = 20;
/// What is not written by then is not about to be: peers that ask are told so.
const INCOMPLETE_PEER_GRACE: Duration = Duration::from_secs(1);
/// Between two looks at who of the peers lacks something, as long as anything is missing.
const INCOMPLETE_PEER_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// What was missing and has been there for so long is there to stay: whoever undoes entries again and again does it sooner.
const COMPLETE_PEER_GRACE: Duration = Duration::from_secs(3);

pub(super) enum ProbeChange {
    /// This end, and all peers that take part.
    All(Box<ProbingNode>, Vec<(IpNet, Target)>),
    /// Peers about which something has changed; `None` for one that does not take part any more.
    Peers(Vec<(IpNet, Option<Target>)>),
    Incomplete(IncompletePeers),
}

impl ProbeChange {
    pub(super) fn tell(self, prober: &Prober) {
        match self {
            Self::All(own, targets) => prober.replace(*own, targets),
            Self::Peers(changes) => prober.change(changes),
            Self::Incomplete(incomplete) => prober.set_incomplete(incomplete),
        }
    }
}

/// Whether all that leads to peers is there, for peers that ask. Who lacks something is looked up if that does not pass soon.
pub(super) struct PeerCompleteness {
    is_complete: bool,
    incomplete: IncompletePeers,
    /// When it is next to be looked who lacks something.
    pub(super) due: Option<Instant>,
}

impl Default for PeerCompleteness {
    fn default() -> Self {
        Self { is_complete: true, incomplete: IncompletePeers::Nobody, due: None }
    }
}

impl PeerCompleteness {
    pub(super) fn note(&mut self, status: &Status, now: Instant) {
        let is_complete = status.is_settled() && status.contested == 0;
        let was_complete = std::mem::replace(&mut self.is_complete, is_complete);
        if is_complete && !was_complete {
            let is_told = self.incomplete != IncompletePeers::Nobody;
            self.due = is_told.then(|| now + COMPLETE_PEER_GRACE);
        } else if was_complete && !is_complete {
            self.due = Some(now + INCOMPLETE_PEER_GRACE);
        }
    }

    /// Takes who lacks something, as far as anything is missing.
    fn looked(&mut self, incomplete: &BTreeSet<WantedBy>, now: Instant) -> &IncompletePeers {
        let peers = incomplete.iter().filter_map(|who| match who {
            WantedBy::Node | WantedBy::Trial => None,
            WantedBy::Peer(subnet) => known_by(subnet),
        });
        (self.incomplete, self.due) = match self.is_complete {
            true => (IncompletePeers::Nobody, None),
            false => {
                let who = match incomplete.contains(&WantedBy::Node) {
                    true => IncompletePeers::All,
                    false => IncompletePeers::These(peers.collect()),
                };
                (who, Some(now + INCOMPLETE_PEER_CHECK_INTERVAL))
            }
        };
        &self.incomplete
    }
}

impl Daemon {
    pub(super) fn probe_all(&mut self) {
        self.show_node();
        let Some(own) = self.own_end() else { return };
        let targets = self.table.iter().filter_map(|(subnet, attrs)| {
            Some((
                known_by(subnet)?,
                self.target(subnet, attrs, own.encapsulation.tunnel().is_some())?,
            ))
        });
        let targets = targets.collect();
        self.act(Action::Probe(ProbeChange::All(own.into(), targets)));
    }

    pub(super) fn probe_changed(&mut self, subnets: &[Subnet]) {
        let Some(own) = self.own_end() else { return };
        let has_tunnel = own.encapsulation.tunnel().is_some();
        let changes = subnets.iter().filter_map(|subnet| {
            let attrs = self.table.get(subnet);
            let target = attrs.and_then(|attrs| self.target(subnet, attrs, has_tunnel));
            Some((known_by(subnet)?, target))
        });
        let changes = changes.collect();
        self.act(Action::Probe(ProbeChange::Peers(changes)));
    }

    /// The probes have shown that checksums which the card or its driver makes are wrong.
    pub(super) fn on_broken_checksum(&mut self, now: &Now) {
        self.network.node.answers.checksum_is_broken = true;
        self.config.answers.checksum_is_broken = true;
        tracing::warn!(
            event = "offload-switched-off",
            "Packets leave this node with wrong checksums: the checksum offload of {} is switched off",
            self.network.devices().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        );
        self.program(now);
    }

    /// Has it looked for who lacks something, if it is time and anything is missing.
    pub(super) fn look_for_incomplete_peers(&mut self, now: &Now) {
        if self.completeness.due.is_none_or(|due| due > now.instant) {
            return;
        }
        match self.completeness.is_complete {
            true => self.on_incomplete_peers(&BTreeSet::new(), now),
            false => self.act(Action::FindIncompletePeers),
        }
    }

    pub(super) fn on_incomplete_peers(&mut self, incomplete: &BTreeSet<WantedBy>, now: &Now) {
        let incomplete = self.completeness.looked(incomplete, now.instant).clone();
        self.act(Action::Probe(ProbeChange::Incomplete(incomplete)));
    }

    /// `None` where nobody probes, or knows what pods' packets travel in.
    fn own_end(&self) -> Option<ProbingNode> {
        self.setup.prober.as_ref()?;
        let underlay = self.network.underlay();
        let subnet = self.own.subnet();
        let encapsulation = self.network.encapsulation();
        let (overlay, overhead) = match &encapsulation {
            Encapsulation::Unknown => return None,
            Encapsulation::Underlay { .. } => ([None, None], 0),
            Encapsulation::Tunnel(_) => {
                (tunnel_end(&subnet), self.network.backend.overhead(&self.network.node))
            }
        };
        Some(ProbingNode {
            subnet: known_by(&subnet)?,
            underlay: [underlay.v4.map(IpAddr::V4), underlay.v6.map(IpAddr::V6)],
            announced: [underlay.public_v4.map(IpAddr::V4), underlay.public_v6.map(IpAddr::V6)],
            overlay,
            encapsulation,
            devices: self.network.devices().iter().map(ToString::to_string).collect(),
            overhead,
            mtu: self.network.mtu(),
            link: underlay.link.to_string(),
            link_index: self.host.facts.interface(underlay.link).map_or(0, |it| it.index),
            link_mtu: underlay.mtu,
            commands: self.setup.store.operator_commands(),
            machine: self.setup.machine_hash,
        })
    }

    /// `None` for a peer that does not take part.
    fn target(&self, subnet: &Subnet, attrs: &LeaseAttrs, has_tunnel: bool) -> Option<Target> {
        let port = attrs.probe_port?;
        if self.peers.unusable.problems.contains_key(subnet) {
            let (public, overlay) = ([None, None], [None, None]);
            let standing = Standing::Unusable;
            return Some(Target { port, public, overlay, standing, machine: None });
        }
        Some(Target {
            port,
            public: [attrs.public_ip.map(IpAddr::V4), attrs.public_ipv6.map(IpAddr::V6)],
            overlay: if has_tunnel { tunnel_end(subnet) } else { [None, None] },
            standing: Standing::Programmed,
            machine: attrs.machine,
        })
    }

    pub(super) fn probe_state(
        &self,
        subnet: &Subnet,
        attrs: Option<&LeaseAttrs>,
        shared: &SharedAddresses,
    ) -> Option<ProbeState> {
        let prober = self.setup.prober.as_ref()?;
        let (attrs, key) = (attrs?, known_by(subnet)?);
        let peers = prober.peers();
        let own = peers.own()?;
        if attrs.probe_port.is_none() {
            let why =
                "its lease names no probe port: it runs the Go flannel, or probing is off there";
            return Some(ProbeState {
                verdict: "not-probed".to_owned(),
                why: Some(why.to_owned()),
                ..ProbeState::default()
            });
        }
        let target = peers.target(&key)?;
        Some(match peers.known(&key) {
            Some(known) => self.told_with(&known, own, &key, target, shared),
            None => ProbeState { verdict: "waiting".to_owned(), ..ProbeState::default() },
        })
    }

    /// Whether packets were seen to pass to peers since then, and to none of those looked at not to.
    pub(super) fn has_reached_peers_since(&self, since: SystemTime) -> bool {
        let Some(prober) = &self.setup.prober else { return false };
        let peers = prober.peers();
        let mut seen =
            peers.all().filter_map(|(.., known)| known).filter(|it| it.at >= since).peekable();
        seen.peek().is_some()
            && seen.all(|known| known.verdict.traffic_flows() && !known.is_doubted)
    }

    pub(super) fn probing_state(&self, shared: &SharedAddresses) -> Option<ProbingState> {
        let prober = self.setup.prober.as_ref()?;
        let peers = prober.peers();
        let own = peers.own()?;
        let mut state = ProbingState { port: prober.port(), ..ProbingState::default() };
        let mut wrong = Vec::new();
        let mut probed = 0;
        let mut latencies: Vec<u64> = Vec::new();
        for (subnet, target, known) in peers.all() {
            probed += 1;
            if let Some(known) = &known {
                state.asked += known.asks.asked;
                state.lost += known.asks.lost;
                let latency = known.latency.filter(|_| known.verdict.traffic_flows());
                latencies.extend(latency.and_then(|time| u64::try_from(time.as_micros()).ok()));
            }
            match known {
                None => state.waiting += 1,
                Some(known) => match &known.verdict {
                    ProbeVerdict::Reached => state.reached += 1,
                    verdict => {
                        let flows = verdict.traffic_flows();
                        *(if flows { &mut state.impaired } else { &mut state.unreached }) += 1;
                        wrong.push((flows, *subnet, target, known));
                    }
                },
            }
        }
        latencies.sort_unstable();
        state.latency_micros = latencies.get(latencies.len() / 2).copied();
        state.longest_latency_micros = latencies.last().copied();
        state.not_probed = self.table.len().saturating_sub(probed);
        wrong.sort_by_key(|(flows, subnet, ..)| (*flows, *subnet));
        let probed =
            |(_, subnet, target, known): (bool, IpNet, &Target, PeerReachability)| ProbedPeer {
                subnet: subnet.to_string(),
                node: target.public.iter().flatten().next().copied(),
                probe: self.told_with(&known, own, &subnet, target, shared),
            };
        // What is wrong with all of them is most likely wrong here.
        let is_of_all = state.reached + state.impaired == 0 && state.unreached > 1;
        state.findings = wrong.into_iter().take(LISTED_FINDINGS).map(probed).collect();
        if is_of_all {
            for fix in state.findings.iter_mut().filter_map(|found| found.probe.fix.as_mut()) {
                fix.push_str(
                    "; no peer is reached, so look on this node first: `flannelctl check`",
                );
            }
        }
        Some(state)
    }

    /// What was found, or what is known to be the cause of it.
    fn told_with(
        &self,
        known: &PeerReachability,
        own: &ProbingNode,
        subnet: &IpNet,
        target: &Target,
        shared: &SharedAddresses,
    ) -> ProbeState {
        let probe = probe_state(known, finding(known, own, subnet, target));
        if known.verdict.traffic_flows() {
            return probe;
        }
        // What is for one node goes to another, and whatever the probes have seen follows from that.
        let announced = target.public.iter().chain(&own.announced).flatten();
        if let Some((ip, subnets)) = announced.filter_map(|ip| Some((*ip, shared.get(ip)?))).next()
        {
            let shared = self.shared_address(ip, subnets);
            return with_cause(probe, "address-shared", shared);
        }
        // What does not find its way here cannot have been dropped elsewhere.
        if self.completeness.incomplete.concerns(subnet) && probe.layer == Some(Layer::Tunnel) {
            let missing = Finding::broken(
                Layer::Entries,
                format!("peer {subnet}"),
                "this node lacks entries that lead to it",
                format!("`flannelctl peers {subnet}` says which, and why"),
            );
            return with_cause(probe, "entries-missing-here", missing);
        }
        probe
    }
}

fn probe_state(known: &PeerReachability, found: Option<Finding>) -> ProbeState {
    let probe = ProbeState {
        verdict: known.verdict.name().to_owned(),
        traffic: Some(known.verdict.traffic_flows()),
        latency_micros: known.latency.and_then(|latency| latency.as_micros().try_into().ok()),
        mtu: known.mtu,
        asked: Some(known.asks.asked),
        lost: Some(known.asks.lost),
        at: Some(moment(known.at)),
        ..ProbeState::default()
    };
    match found {
        Some(found) => with_cause(probe, known.verdict.name(), found),
        None => probe,
    }
}

fn with_cause(probe: ProbeState, verdict: &str, found: Finding) -> ProbeState {
    let Finding { layer, cause, fix, .. } = found;
    let (layer, why, fix) = (Some(layer), Some(cause), Some(fix));
    ProbeState { verdict: verdict.to_owned(), layer, why, fix, ..probe }
}

/// How nodes name each other's leases: by the subnet of the first family.
pub(super) fn known_by(subnet: &Subnet) -> Option<IpNet> {
    subnet.nets().next()
}

/// Where a node's tunnel ends: the first address of its subnet.
fn tunnel_end(subnet: &Subnet) -> ByFamily<IpAddr> {
    Family::BOTH.map(|family| subnet.net(family).map(|net| net.network()))
}
