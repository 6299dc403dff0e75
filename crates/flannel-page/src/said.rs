//! What a node says of itself on its probe port, and how much of it is kept.

use flannel_state::{
    DaemonState, FindingState, HistoryEvent, NetworkState, PeerCondition, PeerState, ProbeState,
};

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
}

impl Said {
    /// `None` if the daemon has no such network.
    pub(crate) fn of(state: DaemonState, network: &str) -> Option<Self> {
        let DaemonState { hostname, version, started, now, networks, .. } = state;
        let mut network = networks.into_iter().find(|of| of.name == network)?;
        network.why = network.why.map(brief);
        network.mtu_why = network.mtu_why.map(brief);
        network.entries.problems.truncate(MOST);
        network.entries.hazards.truncate(MOST);
        for problem in &mut network.entries.problems {
            problem.entry = brief(std::mem::take(&mut problem.entry));
            problem.why = brief(std::mem::take(&mut problem.why));
        }
        for hazard in &mut network.entries.hazards {
            *hazard = brief(std::mem::take(hazard));
        }
        if let Some(probing) = &mut network.probing {
            probing.findings.truncate(MOST);
            for finding in &mut probing.findings {
                finding.subnet = brief(std::mem::take(&mut finding.subnet));
                brief_probe(&mut finding.probe);
            }
        }
        let [hostname, version, started, now] = [hostname, version, started, now].map(brief);
        Some(Self { hostname, version, started, now, network })
    }

    /// What came of probing its peers, in sentences.
    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        let findings = self.network.probing.iter().flat_map(|probing| &probing.findings);
        findings.map(|FindingState { subnet, probe, .. }| {
            let why = probe.why.as_deref().unwrap_or(&probe.verdict);
            let fix =
                probe.fix.as_ref().map(|fix| format!("; it advises: {fix}")).unwrap_or_default();
            brief(format!("{subnet}: {why}{fix}"))
        })
    }
}

/// How one node sees another.
pub(crate) fn brief_peer(mut peer: PeerState) -> PeerState {
    peer.why = peer.why.map(brief);
    peer.backend = brief(peer.backend);
    peer.name = peer.name.map(brief);
    peer.probe.iter_mut().for_each(brief_probe);
    peer
}

fn brief_probe(probe: &mut ProbeState) {
    probe.verdict = brief(std::mem::take(&mut probe.verdict));
    probe.why = probe.why.take().map(brief);
    probe.fix = probe.fix.take().map(brief);
}

pub(crate) fn words(peer: &PeerState) -> &'static str {
    match peer.condition {
        _ if is_unreached(peer) => "not reached",
        PeerCondition::Programmed => "programmed",
        PeerCondition::Incomplete => "incomplete",
        PeerCondition::Vanished => "vanished",
        PeerCondition::Unusable => "unusable",
    }
}

pub(crate) fn is_unreached(peer: &PeerState) -> bool {
    peer.probe.as_ref().is_some_and(|probe| probe.traffic == Some(false))
}

pub(crate) fn brief_event(mut event: HistoryEvent) -> HistoryEvent {
    event.what = brief(event.what);
    event.kind = brief(event.kind);
    event.at = brief(event.at);
    event.undone_by = event.undone_by.map(brief);
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
    /// The subnets of peers that its packets do not reach.
    pub(crate) fn unreached(&self) -> impl Iterator<Item = &str> {
        let findings = self.network.probing.iter().flat_map(|probing| &probing.findings);
        let lost = findings.filter(|finding| finding.probe.traffic == Some(false));
        lost.map(|finding| finding.subnet.as_str())
    }

    pub(crate) fn health(&self) -> crate::health::Health {
        let probing = self.network.probing.as_ref();
        let (unreached, impaired) =
            probing.map_or((0, 0), |probing| (probing.unreached, probing.impaired));
        crate::health::Health::of(self.network.verdict, unreached, impaired)
    }

    /// In a sentence.
    pub(crate) fn why(&self) -> Option<String> {
        let network = &self.network;
        let entry = network.entries.problems.first();
        let entry = || entry.map(|problem| format!("{}: {}", problem.entry, problem.why));
        let hazard = || network.entries.hazards.first().cloned();
        let finding = self.findings().next().filter(|_| network.verdict.is_whole());
        finding.or(network.why.clone()).or_else(entry).or_else(hazard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_packets_do_not_arrive_says_where_and_why() {
        let probing = serde_json::json!({"port": 8475, "reached": 0, "unreached": 1, "impaired": 0,
            "notProbed": 0, "waiting": 0, "findings": [{"subnet": "10.5.2.0/24",
            "verdict": "tunnel-blocked", "traffic": false, "why": "UDP port 8472 is blocked",
            "fix": "open it"}]});
        let mut said = serde_json::json!({"schema": 1, "version": "1", "hostname": "n", "started": "",
            "now": "", "networks": [{"name": "_", "verdict": "ready", "probing": probing}]});
        let read = |said: &serde_json::Value| {
            let state: DaemonState = serde_json::from_value(said.clone()).expect("a state");
            Said::of(state, "_").expect("it is there")
        };
        assert_eq!(read(&said).health(), crate::health::Health::Unreached);
        let why = read(&said).why().expect("it says why");
        assert_eq!(why, "10.5.2.0/24: UDP port 8472 is blocked; it advises: open it");
        // As `flannelctl status` calls it.
        let probing = &mut said["networks"][0]["probing"];
        (probing["unreached"], probing["impaired"]) = (0.into(), 1.into());
        assert_eq!(read(&said).health(), crate::health::Health::ReadyBut);
        said["networks"][0]["probing"] = serde_json::Value::Null;
        let other = read(&said);
        assert_eq!(other.health(), crate::health::Health::Whole, "it does not probe");
    }
}
