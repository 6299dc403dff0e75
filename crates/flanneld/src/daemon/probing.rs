//! Looking whether peers are reached: who is to be probed, and what is told of it. Readiness does not depend on
//! it: an unreachable peer is not this node's fault.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use flannel_backend::{Carriage, WantedBy};
use flannel_lease::{LeaseAttrs, Subnet};
use flannel_probe::words::words;
use flannel_probe::{
    ByFamily, IncompletePeers, Known, Own, Prober, Standing, Target, Tunnel, Verdict,
};
use flannel_state::{FindingState, ProbeState, ProbingState};
use flannel_wanted::Status;
use ipnet::IpNet;

use super::Daemon;
use super::issues::SharedAddresses;
use super::telling_state::moment;
use super::timing::{ABOUT_TO_BE_WRITTEN, LOOK_FOR_INCOMPLETE_PEERS, THERE_TO_STAY};

/// Of those of whom something is wrong, so many are listed.
const LISTED: usize = 20;

/// Never ends.
pub(super) async fn keep_probing(prober: Option<Prober>) -> std::convert::Infallible {
    match prober {
        Some(prober) => prober.run().await,
        None => std::future::pending().await,
    }
}

impl Daemon {
    /// All peers that take part, after something about this node has changed.
    pub(super) fn probe_all(&self) {
        self.tell_node();
        let (Some(prober), Some(own)) = (&self.setup.prober, self.own_end()) else { return };
        let targets = self.table.iter().filter_map(|(subnet, attrs)| {
            Some((known_by(subnet)?, self.target(subnet, attrs, own.tunnel.is_some())?))
        });
        prober.replace(own.clone(), targets.collect::<Vec<_>>());
    }

    /// Those about which something has changed.
    pub(super) fn probe_changed(&self, subnets: &[Subnet]) {
        let (Some(prober), Some(own)) = (&self.setup.prober, self.own_end()) else { return };
        let has_tunnel = own.tunnel.is_some();
        let changes = subnets.iter().filter_map(|subnet| {
            let attrs = self.table.get(subnet);
            let target = attrs.and_then(|attrs| self.target(subnet, attrs, has_tunnel));
            Some((known_by(subnet)?, target))
        });
        prober.change(changes.collect::<Vec<_>>());
    }

    /// The probes have shown that checksums which the card or its driver makes are wrong.
    pub(super) async fn on_broken_checksum(&mut self) -> anyhow::Result<()> {
        self.network.set_checksums_broken();
        self.answers.set_checksum_is_broken();
        tracing::warn!(
            event = "offload-switched-off",
            "Packets leave this node with wrong checksums: the checksum offload of {} is switched off",
            self.network.devices().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        );
        self.program().await
    }

    /// Peers that ask are told whether all that leads to them is there. Who lacks something is looked for only if
    /// it does not come soon, and is told so until it is there to stay.
    pub(super) fn note_incomplete(&mut self, status: &Status) {
        if self.setup.prober.is_none() {
            return;
        }
        let now = Instant::now();
        let is_complete = status.is_settled() && status.contested == 0;
        let was_complete = std::mem::replace(&mut self.is_complete, is_complete);
        if is_complete && !was_complete {
            let is_told = self.incomplete != IncompletePeers::Nobody;
            self.incomplete_due = is_told.then(|| now + THERE_TO_STAY);
        } else if was_complete && !is_complete {
            self.incomplete_due = Some(now + ABOUT_TO_BE_WRITTEN);
        }
    }

    pub(super) async fn look_for_incomplete_peers(&mut self) {
        let Some(prober) = &self.setup.prober else { return };
        if self.is_complete {
            self.incomplete_due = None;
            self.incomplete = IncompletePeers::Nobody;
            prober.set_incomplete(IncompletePeers::Nobody);
            return;
        }
        let mut incomplete = BTreeSet::new();
        for (_, applier) in self.setup.appliers.each() {
            incomplete.extend(applier.tally().await.unwrap_or_default().incomplete);
        }
        let peers = incomplete.iter().filter_map(|who| match who {
            WantedBy::Node | WantedBy::Trial => None,
            WantedBy::Peer(subnet) => known_by(subnet),
        });
        self.incomplete = if incomplete.contains(&WantedBy::Node) {
            IncompletePeers::All
        } else {
            IncompletePeers::These(peers.collect())
        };
        prober.set_incomplete(self.incomplete.clone());
        self.incomplete_due = Some(Instant::now() + LOOK_FOR_INCOMPLETE_PEERS);
    }

    /// `None` where nobody knows what pods' packets travel in.
    fn own_end(&self) -> Option<Own> {
        let underlay = self.network.underlay();
        let subnet = self.own.subnet();
        let tunnel = match self.network.carriage() {
            Carriage::Unknown => return None,
            Carriage::Underlay => None,
            Carriage::Tunnel { name, allow, overhead, .. } => {
                let devices = self.network.devices().iter().map(ToString::to_string).collect();
                Some(Tunnel { name, allow, devices, overhead })
            }
        };
        Some(Own {
            subnet: known_by(&subnet)?,
            underlay: [underlay.v4.map(IpAddr::V4), underlay.v6.map(IpAddr::V6)],
            announced: [underlay.public_v4.map(IpAddr::V4), underlay.public_v6.map(IpAddr::V6)],
            overlay: if tunnel.is_some() { tunnel_end(&subnet) } else { [None, None] },
            tunnel,
            mtu: self.network.mtu(),
            link: underlay.link.to_string(),
            link_index: self.link_index(),
            link_mtu: underlay.mtu,
            commands: self.setup.store.operator_commands(),
            machine: self.setup.machine.hash,
        })
    }

    /// Of the interface towards the peers; 0 while there is none.
    fn link_index(&self) -> u32 {
        let facts = self.facts.borrow();
        let link = &self.network.underlay().link;
        facts.interfaces.iter().find(|it| it.name == *link).map_or(0, |it| it.index)
    }

    /// `None` for a peer that does not take part.
    fn target(&self, subnet: &Subnet, attrs: &LeaseAttrs, has_tunnel: bool) -> Option<Target> {
        let port = attrs.probe_port?;
        if self.peers.why_unusable(subnet).is_some() {
            let nowhere = [None, None];
            let standing = Standing::Unusable;
            return Some(Target {
                port,
                public: nowhere,
                overlay: nowhere,
                standing,
                machine: None,
            });
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
                    Verdict::Reached => state.reached += 1,
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
        let finding = |(_, subnet, target, known): (bool, IpNet, &Target, Known)| FindingState {
            subnet: subnet.to_string(),
            node: target.public.iter().flatten().next().copied(),
            probe: self.told_with(&known, own, &subnet, target, shared),
        };
        // What is wrong with all of them is most likely wrong here.
        let is_of_all = state.reached + state.impaired == 0 && state.unreached > 1;
        state.findings = wrong.into_iter().take(LISTED).map(finding).collect();
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
        known: &Known,
        own: &Own,
        subnet: &IpNet,
        target: &Target,
        shared: &SharedAddresses,
    ) -> ProbeState {
        let probe = told(known, own, subnet, target);
        if known.verdict.traffic_flows() {
            return probe;
        }
        // What is for one node goes to another, and whatever the probes have seen follows from that.
        let announced = target.public.iter().chain(&own.announced).flatten();
        if let Some((ip, subnets)) = announced.filter_map(|ip| Some((*ip, shared.get(ip)?))).next()
        {
            let (why, fix) = self.why_shared(ip, subnets);
            return ProbeState {
                verdict: "address-shared".to_owned(),
                layer: Some("lease".to_owned()),
                why: Some(why),
                fix: Some(fix),
                ..probe
            };
        }
        // What does not find its way here cannot have been dropped elsewhere.
        if self.incomplete.concerns(subnet) && probe.layer.as_deref() == Some("tunnel") {
            return ProbeState {
                verdict: "entries-missing-here".to_owned(),
                layer: Some("entries".to_owned()),
                why: Some("this node lacks entries that lead to it".to_owned()),
                fix: Some(format!("`flannelctl peers {subnet}` says which, and why")),
                ..probe
            };
        }
        probe
    }
}

pub(super) fn told(known: &Known, own: &Own, subnet: &IpNet, target: &Target) -> ProbeState {
    let is_well = known.verdict == Verdict::Reached;
    let said = words(known, own, subnet, target);
    ProbeState {
        verdict: known.verdict.name().to_owned(),
        traffic: Some(known.verdict.traffic_flows()),
        layer: known.verdict.layer().map(str::to_owned),
        why: Some(said.why).filter(|_| !is_well),
        fix: said.fix,
        latency_micros: known.latency.and_then(|latency| latency.as_micros().try_into().ok()),
        mtu: known.mtu,
        asked: Some(known.asks.asked),
        lost: Some(known.asks.lost),
        at: Some(moment(known.at)),
    }
}

/// How nodes name each other's leases: by the subnet of the first family.
pub(super) fn known_by(subnet: &Subnet) -> Option<IpNet> {
    subnet.v4().map(IpNet::V4).or_else(|| subnet.v6().map(IpNet::V6))
}

/// Where a node's tunnel ends: the first address of its subnet.
fn tunnel_end(subnet: &Subnet) -> ByFamily<IpAddr> {
    [
        subnet.v4().map(|net| IpAddr::V4(net.network())),
        subnet.v6().map(|net| IpAddr::V6(net.network())),
    ]
}
