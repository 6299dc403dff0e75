//! What a node says of itself on its probe port, and how much of it is kept.

use flannel_state::{DaemonState, HistoryEvent, NetworkState, PeerCondition, PeerState};
use serde::Deserialize;

/// Of a text that a node writes, so much is kept.
const LONGEST: usize = 600;
/// Of a list.
const MOST: usize = 50;

/// A daemon's state as far as it concerns one network.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) hostname: String,
    pub(crate) version: String,
    pub(crate) started: String,
    pub(crate) now: String,
    pub(crate) network: NetworkState,
    pub(crate) probing: Probing,
}

/// What came of probing its peers.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Probing {
    /// So many peers do not get its packets.
    #[serde(default)]
    unreached: usize,
    /// Of some of them.
    #[serde(default)]
    findings: Vec<Finding>,
}

#[derive(Clone, Debug, Deserialize)]
struct Finding {
    #[serde(default)]
    subnet: String,
    #[serde(flatten)]
    probe: SeenProbe,
}

impl Probing {
    /// Of one network, in what a daemon says; nothing where it does not probe.
    pub(crate) fn read(state: &[u8], network: &str) -> Self {
        #[derive(Deserialize)]
        struct Daemon {
            networks: Vec<Network>,
        }
        #[derive(Deserialize)]
        struct Network {
            name: String,
            #[serde(default)]
            probing: Option<Probing>,
        }
        let daemon: Option<Daemon> = serde_json::from_slice(state).ok();
        let of = daemon.and_then(|of| of.networks.into_iter().find(|of| of.name == network));
        let mut probing = of.and_then(|of| of.probing).unwrap_or_default();
        probing.findings.truncate(MOST);
        probing
    }

    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        self.findings.iter().map(|Finding { subnet, probe }| {
            let why = probe.why.as_deref().unwrap_or(&probe.verdict);
            let fix = probe.fix.as_ref().map(|fix| format!("; {fix}")).unwrap_or_default();
            brief(format!("{subnet}: {why}{fix}"))
        })
    }
}

impl Said {
    /// `None` if the daemon has no such network.
    pub(crate) fn of(state: DaemonState, network: &str, probing: Probing) -> Option<Self> {
        let DaemonState { hostname, version, started, now, networks, .. } = state;
        let mut network = networks.into_iter().find(|of| of.name == network)?;
        network.why = network.why.map(brief);
        network.entries.problems.truncate(MOST);
        network.entries.hazards.truncate(MOST);
        for problem in &mut network.entries.problems {
            problem.entry = brief(std::mem::take(&mut problem.entry));
            problem.why = brief(std::mem::take(&mut problem.why));
        }
        for hazard in &mut network.entries.hazards {
            *hazard = brief(std::mem::take(hazard));
        }
        let [hostname, version, started, now] = [hostname, version, started, now].map(brief);
        Some(Self { hostname, version, started, now, network, probing })
    }
}

/// How one node sees another.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SeenPeer {
    #[serde(flatten)]
    pub(crate) peer: PeerState,
    #[serde(default)]
    pub(crate) probe: Option<SeenProbe>,
}

/// What came back when it was probed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenProbe {
    #[serde(default)]
    pub(crate) verdict: String,
    #[serde(default)]
    pub(crate) traffic: Option<bool>,
    #[serde(default)]
    pub(crate) why: Option<String>,
    #[serde(default)]
    pub(crate) fix: Option<String>,
    #[serde(default)]
    pub(crate) latency_micros: Option<u64>,
}

impl SeenPeer {
    pub(crate) fn brief(mut self) -> Self {
        self.peer.why = self.peer.why.map(brief);
        self.peer.backend = brief(self.peer.backend);
        if let Some(probe) = &mut self.probe {
            probe.verdict = brief(std::mem::take(&mut probe.verdict));
            probe.why = probe.why.take().map(brief);
            probe.fix = probe.fix.take().map(brief);
        }
        self
    }

    pub(crate) fn words(&self) -> &'static str {
        match self.peer.condition {
            _ if self.is_unreached() => "not reached",
            PeerCondition::Programmed => "programmed",
            PeerCondition::Incomplete => "incomplete",
            PeerCondition::Vanished => "vanished",
            PeerCondition::Unusable => "unusable",
        }
    }

    pub(crate) fn is_unreached(&self) -> bool {
        self.probe.as_ref().is_some_and(|probe| probe.traffic == Some(false))
    }
}

pub(crate) fn brief_event(mut event: HistoryEvent) -> HistoryEvent {
    event.what = brief(event.what);
    event.kind = brief(event.kind);
    event.at = brief(event.at);
    event
}

/// Not endless, and on one line.
pub(crate) fn brief(text: String) -> String {
    let plain = !text.chars().any(char::is_control);
    if plain && text.len() <= LONGEST {
        return text;
    }
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(LONGEST).map(shown).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

impl Said {
    pub(crate) fn health(&self) -> crate::health::Health {
        crate::health::Health::of(self.network.verdict, self.probing.unreached)
    }

    /// In a sentence.
    pub(crate) fn why(&self) -> Option<String> {
        let network = &self.network;
        let entry = network.entries.problems.first();
        let entry = || entry.map(|problem| format!("{}: {}", problem.entry, problem.why));
        let hazard = || network.entries.hazards.first().cloned();
        let finding = self.probing.findings().next().filter(|_| self.network.verdict.is_whole());
        finding.or(network.why.clone()).or_else(entry).or_else(hazard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_packets_do_not_arrive_says_where_and_why() {
        let probing = serde_json::json!({"unreached": 1, "findings": [{"subnet": "10.5.2.0/24",
            "verdict": "tunnel-blocked", "traffic": false, "why": "UDP port 8472 is blocked",
            "fix": "open it"}]});
        let said = serde_json::json!({"schema": 1, "version": "1", "hostname": "n", "started": "",
            "now": "", "networks": [{"name": "_", "verdict": "ready", "probing": probing}]});
        let bytes = said.to_string().into_bytes();
        let state: DaemonState = serde_json::from_slice(&bytes).expect("a state");
        let said = Said::of(state.clone(), "_", Probing::read(&bytes, "_")).expect("it is there");
        assert_eq!(said.health(), crate::health::Health::Unreached);
        let why = said.why().expect("it says why");
        assert_eq!(why, "10.5.2.0/24: UDP port 8472 is blocked; open it");
        let other = Said::of(state, "_", Probing::read(b"{}", "_")).expect("it is there");
        assert_eq!(other.health(), crate::health::Health::Whole, "it does not probe");
    }
}
