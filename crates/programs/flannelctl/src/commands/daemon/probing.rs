//! Results of probing, as `status` and `peers` show them.

use flannel_state::{NetworkState, PeerState, ProbingState};

use super::plain;

/// How many peers something is wrong with that the daemon does not list one by one.
pub(super) fn unlisted(network: &NetworkState) -> usize {
    network.probing.as_ref().map_or(0, |probing| {
        (probing.unreached + probing.impaired).saturating_sub(probing.findings.len())
    })
}

pub(super) fn summary(probing: &ProbingState) -> String {
    let mut summary = probing.reached_and_others(|count| count.to_string());
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
    use flannel_state::{ProbeState, ProbedPeer};

    use super::*;

    fn probe(verdict: &str, traffic: Option<bool>) -> ProbeState {
        ProbeState { verdict: verdict.to_owned(), traffic, ..ProbeState::default() }
    }

    #[test]
    fn peers_are_counted_by_what_probing_found() {
        let probing = ProbingState {
            reached: 1,
            unreached: 3,
            not_probed: 2,
            findings: vec![ProbedPeer {
                subnet: "10.244.2.0/24".to_owned(),
                node: None,
                probe: probe("tunnel-blocked", Some(false)),
            }],
            ..ProbingState::default()
        };
        assert_eq!(summary(&probing), "1 reached, 3 UNREACHABLE, 2 not probed");
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
        assert_eq!(unlisted(&network), 2);
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
