//! A node's report on its probe port, and how much of it is kept.

use flannel_state::{
    DaemonState, Finding, HistoryEvent, NetworkState, PeerCondition, PeerState, ProbeState,
};

const MAX_TEXT_CHARS: usize = 600;
const MAX_ITEMS: usize = 50;

#[derive(Clone, Debug)]
pub(crate) struct NodeReport {
    pub(crate) hostname: String,
    pub(crate) version: String,
    pub(crate) started: String,
    pub(crate) now: String,
    pub(crate) network: NetworkState,
}

impl NodeReport {
    /// Report on one network; `None` if the daemon has no such network.
    pub(crate) fn of(state: DaemonState, network: &str) -> Option<Self> {
        let DaemonState { hostname, version, started, now, networks, .. } = state;
        let mut network = networks.into_iter().find(|of| of.name == network)?;
        network.why = network.why.map(brief);
        network.mtu_why = network.mtu_why.map(brief);
        network.entries.problems.truncate(MAX_ITEMS);
        network.issues.truncate(MAX_ITEMS);
        for problem in &mut network.entries.problems {
            problem.entry = brief(std::mem::take(&mut problem.entry));
            problem.why = brief(std::mem::take(&mut problem.why));
        }
        for Finding { about, cause, fix, .. } in &mut network.issues {
            for text in [about, cause, fix] {
                *text = brief(std::mem::take(text));
            }
        }
        if let Some(probing) = &mut network.probing {
            probing.findings.truncate(MAX_ITEMS);
            for finding in &mut probing.findings {
                finding.subnet = brief(std::mem::take(&mut finding.subnet));
                brief_probe(&mut finding.probe);
            }
        }
        let [hostname, version, started, now] = [hostname, version, started, now].map(brief);
        Some(Self { hostname, version, started, now, network })
    }

    /// All findings, the worst first, as sentences.
    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        self.network.findings().into_iter().map(|Finding { about, cause, fix, .. }| {
            let fix = if fix.is_empty() { String::new() } else { format!("; fix: {fix}") };
            brief(format!("{about}: {cause}{fix}"))
        })
    }
}

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
        _ if is_unreached(peer) => "unreachable",
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

/// Shortens a text, and makes it one line.
pub(crate) fn brief(text: String) -> String {
    let plain = !text.chars().any(char::is_control);
    if plain && text.len() <= MAX_TEXT_CHARS {
        return text;
    }
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(MAX_TEXT_CHARS).map(shown).collect();
    if text.chars().nth(MAX_TEXT_CHARS).is_some() {
        short.push('…');
    }
    short
}

impl NodeReport {
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

    pub(crate) fn why(&self) -> Option<String> {
        self.findings().next()
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
        let mut report = serde_json::json!({"schema": 1, "version": "1", "hostname": "n", "started": "",
            "now": "", "networks": [{"name": "_", "verdict": "ready", "probing": probing}]});
        let read = |report: &serde_json::Value| {
            let state: DaemonState = serde_json::from_value(report.clone()).expect("a state");
            NodeReport::of(state, "_").expect("it is there")
        };
        assert_eq!(read(&report).health(), crate::health::Health::Unreached);
        let why = read(&report).why().expect("it says why");
        assert_eq!(why, "peer 10.5.2.0/24: UDP port 8472 is blocked; fix: open it");
        // As `flannelctl status` calls it.
        let probing = &mut report["networks"][0]["probing"];
        (probing["unreached"], probing["impaired"]) = (0.into(), 1.into());
        assert_eq!(read(&report).health(), crate::health::Health::Warnings);
        report["networks"][0]["probing"] = serde_json::Value::Null;
        let other = read(&report);
        assert_eq!(other.health(), crate::health::Health::Healthy, "it does not probe");
    }
}
