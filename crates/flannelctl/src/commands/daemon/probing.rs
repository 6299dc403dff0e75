//! What a node has found when it probed its peers, for people.

use flannel_state::{FindingState, NetworkState, PeerState, ProbingState};

use super::plain;

/// What is wrong, with what mends it: two lines each.
pub(super) fn findings(network: &NetworkState, most: usize) -> Vec<String> {
    let Some(probing) = &network.probing else { return Vec::new() };
    let mut lines: Vec<String> = probing.findings.iter().take(most).flat_map(finding).collect();
    let all = probing.unreached + probing.impaired;
    if all > most {
        lines.push(format!("and {} more: `flannelctl peers`", all - most));
    }
    lines
}

fn finding(found: &FindingState) -> Vec<String> {
    let node = found.node.map(|node| format!(" at {node}")).unwrap_or_default();
    let layer = found.probe.layer.as_deref().unwrap_or("unknown");
    let why = found.probe.why.as_deref().unwrap_or(&found.probe.verdict);
    let peer = plain(&found.subnet);
    let mut lines = vec![format!("peer {peer}{node} ({}): {}", plain(layer), plain(why))];
    lines.extend(found.probe.fix.as_ref().map(|fix| format!("  mend it: {}", plain(fix))));
    lines
}

/// How many peers are reached.
pub(super) fn summary(probing: &ProbingState) -> String {
    let parts = [
        (probing.unreached, "NOT REACHED"),
        (probing.impaired, "reached with a remark"),
        (probing.not_probed, "not probed"),
        (probing.waiting, "to be probed"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts = parts.map(|(count, what)| format!(", {count} {what}")).collect::<String>();
    let mut summary = format!("{} reached{parts}", probing.reached);
    if let (Some(usual), Some(longest)) = (probing.latency_micros, probing.longest_latency_micros) {
        summary += &match usual == longest {
            true => format!("; round trip {}", span(usual)),
            false => format!("; round trip {}, at most {}", span(usual), span(longest)),
        };
    }
    if probing.lost > 0 {
        summary += &format!(", {} of {} probes lost", probing.lost, probing.asked);
    }
    summary
}

/// In a table of peers.
pub(super) fn cell(peer: &PeerState) -> String {
    let Some(probe) = &peer.probe else { return "-".to_owned() };
    let latency = probe.latency_micros.map(|micros| format!(" {}", span(micros)));
    match probe.verdict.as_str() {
        "reached" => format!("reached{}", latency.unwrap_or_default()),
        "not-probed" | "waiting" => plain(&probe.verdict),
        bad if probe.traffic == Some(true) => plain(bad),
        bad => plain(bad).to_uppercase(),
    }
}

/// Without what differs each time that a peer is probed, and without what it finds out step by step.
pub(super) fn lasting(peer: &PeerState) -> PeerState {
    let mut peer = peer.clone();
    if let Some(probe) = &mut peer.probe {
        (probe.at, probe.latency_micros, probe.mtu) = (None, None, None);
        (probe.asked, probe.lost) = (None, None);
    }
    peer
}

fn span(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros}us"),
        _ => format!("{}.{}ms", micros / 1_000, micros % 1_000 / 100),
    }
}

#[cfg(test)]
mod tests {
    use flannel_state::ProbeState;

    use super::*;

    fn probe(verdict: &str, traffic: Option<bool>) -> ProbeState {
        ProbeState { verdict: verdict.to_owned(), traffic, ..ProbeState::default() }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_layer_and_what_mends_it() {
        let found = FindingState {
            subnet: "10.244.2.0/24".to_owned(),
            node: "192.0.2.2".parse().ok(),
            probe: ProbeState {
                layer: Some("tunnel".to_owned()),
                why: Some("UDP port 8472 \u{1b}[31mdoes not arrive".to_owned()),
                fix: Some("open it".to_owned()),
                ..probe("tunnel-blocked", Some(false))
            },
        };
        let probing = ProbingState {
            reached: 1,
            unreached: 3,
            not_probed: 2,
            findings: vec![found],
            ..ProbingState::default()
        };
        assert_eq!(summary(&probing), "1 reached, 3 NOT REACHED, 2 not probed");
        let slow = ProbingState {
            latency_micros: Some(310),
            longest_latency_micros: Some(84_200),
            asked: 80,
            lost: 6,
            ..probing.clone()
        };
        assert!(
            summary(&slow).ends_with("; round trip 310us, at most 84.2ms, 6 of 80 probes lost")
        );
        let network = NetworkState { probing: Some(probing), ..NetworkState::starting("_") };
        assert_eq!(
            findings(&network, 1),
            [
                "peer 10.244.2.0/24 at 192.0.2.2 (tunnel): UDP port 8472 \u{fffd}[31mdoes not arrive",
                "  mend it: open it",
                "and 2 more: `flannelctl peers`",
            ]
        );
    }

    #[test]
    fn a_cell_is_loud_only_where_packets_do_not_pass() {
        let cell_of = |probe: Option<ProbeState>| {
            cell(&PeerState {
                network: "_".to_owned(),
                name: None,
                subnet: None,
                ipv6_subnet: None,
                public_ip: None,
                public_ipv6: None,
                backend: String::new(),
                condition: flannel_state::PeerCondition::Programmed,
                why: None,
                probe,
            })
        };
        let reached = ProbeState { latency_micros: Some(1_250), ..probe("reached", Some(true)) };
        assert_eq!(cell_of(Some(reached)), "reached 1.2ms");
        assert_eq!(cell_of(Some(probe("daemon-down", Some(true)))), "daemon-down");
        assert_eq!(cell_of(Some(probe("underlay-cut", Some(false)))), "UNDERLAY-CUT");
        assert_eq!(cell_of(Some(probe("not-probed", None))), "not-probed");
        assert_eq!(cell_of(None), "-");
    }
}
