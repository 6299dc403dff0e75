//! What is wrong where pods do not reach each other: what probes have found, or what follows from the trials.

use crate::protocol::{Cause, TrialOutcome, TrialResult};

/// What the probes say of the other node, if that is not that all is well.
#[derive(Clone, Debug)]
pub struct ProbeFinding {
    pub cause: Cause,
    /// Whether pods' packets pass all the same.
    pub flows: bool,
}

/// `port` is where the test pods listen.
pub fn of(found: &TrialResult, probed: Option<ProbeFinding>, port: u16) -> Option<Cause> {
    let failed = |outcome: &TrialOutcome| matches!(outcome, TrialOutcome::Failed(_));
    if found.is_whole() {
        return None;
    }
    let (tcp, udp, full) = (failed(&found.tcp), failed(&found.udp), failed(&found.full));
    let node = found.node.as_ref().is_some_and(failed);
    let small_passes = !udp;
    let arrives = |outcome: &TrialOutcome| matches!(outcome, TrialOutcome::Failed(why) if why.starts_with("it arrives"));
    // What arrives is not lost, whatever the probes knew a moment before.
    let masqueraded = arrives(&found.udp) || arrives(&found.tcp);
    if let Some(probed) = probed
        && !masqueraded
        && (!probed.flows || (small_passes && full && probed.cause.layer == "underlay"))
    {
        return Some(probed.cause);
    }
    let is_too_large = !masqueraded && small_passes && full;
    let layer = if is_too_large { "underlay" } else { "host" };
    let (why, fix) = if masqueraded {
        (
            "a rule masquerades what pods send each other: the other pod does not see who asks",
            "`nft list ruleset` and `iptables -t nat -S POSTROUTING` on this node show the rule; `flannelctl check` \
             on both",
        )
    } else if is_too_large {
        (
            "small packets pass, and those as large as pods may send do not: the path carries less than the MTU says",
            "`flannelctl check` on both nodes finds the MTU that fits",
        )
    } else if tcp && udp {
        (
            "nodes reach each other, and pods do not: a firewall or forwarding on one of the two nodes",
            "`flannelctl check` on both nodes, and `flannelctl trace` between two pods of theirs",
        )
    } else if tcp != udp {
        let what = if tcp { "TCP" } else { "UDP" };
        let why =
            format!("only {what} does not pass: a firewall's rule for it, or for port {port}");
        let fix = "`nft list ruleset` on both nodes shows the rule".to_owned();
        return Some(Cause { layer: "host".to_owned(), why, fix: Some(fix) });
    } else if node {
        (
            "pods reach it, and the node itself does not as it should: connections to NodePorts of this node, and \
             what the node itself asks of pods, are lost or come from another address",
            "masquerade rules (--ip-masq) and rp_filter on both nodes: `flannelctl check`",
        )
    } else {
        ("something between the two pods drops some of it", "`flannelctl check` on both nodes")
    };
    Some(Cause { layer: layer.to_owned(), why: why.to_owned(), fix: Some(fix.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tcp: bool, udp: bool, full: bool, node: bool) -> TrialResult {
        let outcome = |passed| match passed {
            true => TrialOutcome::Passed(100),
            false => TrialOutcome::Failed("no answer within 3 s".to_owned()),
        };
        TrialResult {
            to: "10.5.2.0-24".to_owned(),
            address: "10.5.2.254".parse().expect("an address"),
            tcp: outcome(tcp),
            udp: outcome(udp),
            full: outcome(full),
            node: Some(outcome(node)),
            cause: None,
        }
    }

    fn probed(layer: &str, flows: bool) -> Option<ProbeFinding> {
        let cause = Cause { layer: layer.to_owned(), why: "known".to_owned(), fix: None };
        Some(ProbeFinding { cause, flows })
    }

    #[test]
    fn what_probes_have_found_out_is_told_where_it_explains_what_failed() {
        let nothing = found(false, false, false, false);
        let layer = |found: &TrialResult, probed| of(found, probed, 8476).map(|cause| cause.layer);
        assert_eq!(layer(&found(true, true, true, true), probed("tunnel", false)), None);
        assert_eq!(layer(&nothing, probed("tunnel", false)).as_deref(), Some("tunnel"));
        assert_eq!(layer(&nothing, probed("daemon", true)).as_deref(), Some("host"));
        assert_eq!(layer(&nothing, None).as_deref(), Some("host"));
    }

    #[test]
    fn what_passed_tells_what_is_wrong_with_what_did_not() {
        let why = |found: &TrialResult| of(found, None, 8476).expect("a cause").why;
        assert!(why(&found(false, true, false, true)).contains("carries less"));
        assert!(why(&found(true, true, false, true)).contains("carries less"));
        assert!(why(&found(false, true, true, true)).contains("only TCP"));
        assert!(why(&found(true, true, true, false)).contains("NodePorts"));
        let masqueraded = TrialOutcome::Failed("it arrives, but as if from 10.5.1.0".to_owned());
        let found = TrialResult { udp: masqueraded, ..found(true, true, true, true) };
        assert!(why(&found).contains("masquerades"));
        let cause = of(&found, probed("underlay", false), 8476).expect("a cause");
        assert!(cause.why.contains("masquerades"), "what the probes knew before is no cause of it");
    }
}
