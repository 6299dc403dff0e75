//! What the daemon that runs here says itself.

use std::path::Path;

use flannel_state::{DaemonState, FindingState, NetworkState, PeerCondition, Verdict};

use super::finding::Finding;
use super::surroundings::Surroundings;

const SUBJECT: &str = "daemon";
const PROBES: &str = "probes";
/// So many peers are named.
const NAMED: usize = 5;
/// Where the daemon itself does not say what to do.
const LOOK: &str =
    "flannelctl repair; if it stays: flannelctl events and journalctl -u flanneld say since when";

/// `found`: what is known without it, which is not said twice.
pub(super) fn look(around: &Surroundings, found: &[Finding]) -> Vec<Finding> {
    let Some(state) = &around.state else { return vec![unasked(around)] };
    let known = |text: &str| found.iter().any(|one| !one.fix.is_empty() && text.contains(&one.fix));
    let mut findings = Vec::new();
    for network in &state.networks {
        let hazards = network.entries.hazards.iter().filter(|hazard| !known(hazard));
        findings.extend(hazards.map(|hazard| {
            // What to do is said behind it.
            let (what, fix) = hazard.split_once("; ").unwrap_or((hazard, LOOK));
            let why = "all that is flannel's to do is done, and pods are cut off";
            Finding::broken(SUBJECT, what, why, fix)
        }));
        // What leads to a peer is said of the peer.
        let of_peer = |entry: &str| {
            let mut peers = around.peer_states.iter();
            peers.any(|peer| peer.why.as_ref().is_some_and(|why| why.contains(entry)))
        };
        let issues = network.issues.iter().filter(|one| !of_peer(&one.about));
        for issue in issues.filter(|one| {
            !["store", "host"].contains(&one.layer.as_str()) && !is_said(found, &one.about)
        }) {
            let what = format!("{}: {}", issue.about, issue.why);
            findings.push(match issue.traffic {
                true => {
                    Finding::warning(SUBJECT, what, "pods' packets pass all the same", &issue.fix)
                }
                false => Finding::broken(
                    SUBJECT,
                    what,
                    "pods of this node and of others do not reach each other until then",
                    &issue.fix,
                ),
            });
        }
        let said = network.why.as_deref().unwrap_or_default();
        let repeated = known(said) || findings.iter().any(|one| said.contains(&one.what));
        if !said.is_empty() && !repeated {
            let mut issues = network.issues.iter();
            let issue = issues.find(|one| said.contains(&one.about) || said.contains(&one.why));
            let fix = issue.map_or(LOOK, |issue| issue.fix.as_str());
            let finding = match network.verdict {
                Verdict::Ready | Verdict::ReadyBut => {
                    Finding::warning(SUBJECT, said, "the network is whole", fix)
                }
                Verdict::CutOff => {
                    Finding::broken(SUBJECT, said, "pods of this node are cut off", fix)
                }
                Verdict::NotReady => {
                    Finding::broken(SUBJECT, said, "the network of this node is not ready", fix)
                }
            };
            findings.push(finding);
        }
    }
    let bad = around.peer_states.iter().filter(|peer| {
        let address =
            [peer.public_ip.map(|ip| ip.to_string()), peer.public_ipv6.map(|ip| ip.to_string())];
        let is_twin = address.iter().flatten().any(|ip| is_said(found, ip));
        match peer.condition {
            PeerCondition::Incomplete => !state.networks.iter().any(is_groundless),
            PeerCondition::Unusable => !is_twin,
            PeerCondition::Programmed | PeerCondition::Vanished => false,
        }
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
                    let release = around.commands.release(&subnet, peer.name.as_deref());
                    format!("look at its lease (flannelctl leases); if its node is gone: {release}")
                }
                _ => "flannelctl events says who undoes it, if somebody does; flannelctl repair"
                    .to_owned(),
            },
        ));
    }
    findings.extend(probed(state, found));
    findings
}

/// A daemon that does not say how it is.
fn unasked(around: &Surroundings) -> Finding {
    if around.hangs {
        return Finding::broken(
            SUBJECT,
            "flanneld listens here and does not answer: it hangs, or was stopped (SIGSTOP)",
            "traffic goes on; what changes, here or elsewhere, is not followed",
            around.commands.restart_here(),
        );
    }
    if around.is_running {
        return Finding::note(
            SUBJECT,
            "a flanneld runs here that cannot be asked",
            "it is another flannel, or keeps its socket elsewhere (--socket)",
        );
    }
    // Below /run, so it was written since the machine was started.
    let left = Path::new("/run/flannel/subnet.env");
    match left.exists() {
        true => Finding::warning(
            SUBJECT,
            format!("no flanneld runs here, and one has: {} is there", left.display()),
            "traffic goes on with what it has left; nodes that come, go or change are not followed, and nothing is \
             repaired",
            format!(
                "{}; if flannel is not wanted here any more: flannelctl cleanup",
                around.commands.restart_here()
            ),
        ),
        false => Finding::note(SUBJECT, "no flanneld runs here", "the node alone was looked at"),
    }
}

/// Whether the node's own device or address is missing, so that nothing else can be there.
fn is_groundless(network: &NetworkState) -> bool {
    let said = network.why.as_deref().unwrap_or_default();
    let is_it = |about: &str| said.starts_with(about);
    network.verdict == Verdict::NotReady && network.issues.iter().any(|one| is_it(&one.about))
}

/// Whether a finding of the leases is about this address already.
fn is_said(found: &[Finding], address: &str) -> bool {
    let word = |text: &str| text.split([' ', ',', ':']).any(|word| word == address);
    found.iter().any(|one| one.subject == "twins" && word(&one.what))
}

/// What came of asking the peers themselves.
fn probed(state: &DaemonState, found: &[Finding]) -> Vec<Finding> {
    let grounded = state.networks.iter().filter(|network| !is_groundless(network));
    let probing = grounded.filter_map(|network| network.probing.as_ref());
    let finding = |found: &FindingState| {
        let probe = &found.probe;
        let node = found.node.map(|node| format!(" at {node}")).unwrap_or_default();
        let layer = probe.layer.as_deref().unwrap_or("unknown layer");
        let why = probe.why.as_deref().unwrap_or(&probe.verdict);
        let what = format!("the peer {}{node} ({layer}): {why}", found.subnet);
        let fix = probe.fix.as_deref().unwrap_or(LOOK);
        match probe.traffic {
            Some(true) => Finding::warning(PROBES, what, "pods' packets pass all the same", fix),
            _ => Finding::broken(PROBES, what, "pods' packets to that node do not arrive", fix),
        }
    };
    // What carries less is told with its number already.
    let is_new = |one: &&FindingState| {
        let node = one.node.map(|node| node.to_string()).unwrap_or_default();
        let is_it = |known: &Finding| known.subject == "mtu" && known.what.contains(&node);
        one.probe.verdict != super::mtu::BLACK_HOLE || !found.iter().any(is_it)
    };
    probing
        .flat_map(|probing| probing.findings.iter().filter(is_new).take(NAMED))
        .map(finding)
        .collect()
}
