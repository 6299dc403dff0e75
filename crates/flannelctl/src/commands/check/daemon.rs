//! What the daemon that runs here says itself.

use flannel_state::{DaemonState, FindingState, PeerCondition, Verdict};

use super::finding::Finding;
use super::surroundings::Surroundings;

const SUBJECT: &str = "daemon";
const PROBES: &str = "probes";
/// So many peers are named.
const NAMED: usize = 5;

/// `found`: what is known without it, which is not said twice.
pub(super) fn look(around: &Surroundings, found: &[Finding]) -> Vec<Finding> {
    let Some(state) = &around.state else {
        return match around.is_running {
            true => vec![Finding::note(
                SUBJECT,
                "a flanneld runs here that cannot be asked",
                "it is another flannel, or keeps its socket elsewhere (--socket)",
            )],
            false => vec![Finding::note(
                SUBJECT,
                "no flanneld runs here",
                "the node alone was looked at",
            )],
        };
    };
    let known = |text: &str| found.iter().any(|one| !one.fix.is_empty() && text.contains(&one.fix));
    let mut findings = Vec::new();
    for network in &state.networks {
        let hazards = network.entries.hazards.iter().filter(|hazard| !known(hazard));
        findings.extend(hazards.map(|hazard| {
            Finding::broken(
                SUBJECT,
                hazard.clone(),
                "all that is flannel's to do is done, and pods are cut off",
                "",
            )
        }));
        // What leads to a peer is said of the peer.
        let of_peer = |entry: &str| {
            let mut peers = around.peer_states.iter();
            peers.any(|peer| peer.why.as_ref().is_some_and(|why| why.contains(entry)))
        };
        let problems = network.entries.problems.iter().filter(|one| !of_peer(&one.entry));
        for problem in problems {
            findings.push(Finding::broken(
                SUBJECT,
                format!("{} is not there: {}", problem.entry, problem.why),
                "it is tried again and again; what it leads to is not reached until then",
                "flannelctl events says who undoes it, if somebody does; flannelctl repair",
            ));
        }
        let said = network.why.as_deref().unwrap_or_default();
        let repeated = known(said) || findings.iter().any(|one| said.contains(&one.what));
        if !said.is_empty() && !repeated {
            let finding = match network.verdict {
                Verdict::Ready | Verdict::ReadyBut => {
                    Finding::warning(SUBJECT, said, "the network is whole", "")
                }
                Verdict::CutOff => {
                    Finding::broken(SUBJECT, said, "pods of this node are cut off", "")
                }
                Verdict::NotReady => {
                    Finding::broken(SUBJECT, said, "the network of this node is not ready", "")
                }
            };
            findings.push(finding);
        }
    }
    let bad = around.peer_states.iter().filter(|peer| {
        matches!(peer.condition, PeerCondition::Incomplete | PeerCondition::Unusable)
    });
    for peer in bad.take(NAMED) {
        let subnet =
            peer.subnet.as_ref().or(peer.ipv6_subnet.as_ref()).cloned().unwrap_or_default();
        let why = peer.why.as_deref().unwrap_or("something that leads to it is missing");
        findings.push(Finding::broken(
            SUBJECT,
            format!("the peer {subnet} is not reached: {why}"),
            "pods of this node and of that one do not reach each other",
            match peer.condition {
                PeerCondition::Unusable => {
                    format!("look at its lease (flannelctl leases); if its node is gone: flannelctl release {subnet}")
                }
                _ => "flannelctl events says who undoes it, if somebody does; flannelctl repair".to_owned(),
            },
        ));
    }
    findings.extend(probed(state));
    findings
}

/// What came of asking the peers themselves.
fn probed(state: &DaemonState) -> Vec<Finding> {
    let probing = state.networks.iter().filter_map(|network| network.probing.as_ref());
    let finding = |found: &FindingState| {
        let probe = &found.probe;
        let node = found.node.map(|node| format!(" at {node}")).unwrap_or_default();
        let layer = probe.layer.as_deref().unwrap_or("unknown layer");
        let why = probe.why.as_deref().unwrap_or(&probe.verdict);
        let what = format!("the peer {}{node} ({layer}): {why}", found.subnet);
        let fix = probe.fix.clone().unwrap_or_default();
        match probe.traffic {
            Some(true) => Finding::warning(PROBES, what, "pods' packets pass all the same", fix),
            _ => Finding::broken(PROBES, what, "pods' packets to that node do not arrive", fix),
        }
    };
    probing.flat_map(|probing| probing.findings.iter().take(NAMED)).map(finding).collect()
}
