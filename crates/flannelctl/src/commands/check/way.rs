//! The way of packets from pods of this node to peers, and back, as `flannelctl trace` walks it: queues, filters, rules of
//! the bridge, policies of IPsec, neighbours, and the pods themselves. What other subjects look at is left to them.

use std::net::IpAddr;

use flannel_kernel::look::{Device, Kernel};
use flannel_trace::{Condition, CounterGrowth, DropCounters, End, Hop, Peer};
use netlink_packet_route::neighbour::NeighbourState;

use super::finding::{Finding, Severity};
use super::surroundings::{Network, Surroundings};

/// So many ways are walked: with as many pods and as many peers as there are.
const WAYS: usize = 3;
const CUT: &str =
    "pods of this node do not reach those of others, or not with all of their packets";

/// `before`: counters from before packets were sent. `found`: what is known without it, which is not said twice.
pub(super) fn look(
    around: &Surroundings,
    before: &DropCounters,
    found: &[Finding],
) -> Vec<Finding> {
    let hops: Vec<Hop> = around.networks.iter().flat_map(walked).collect();
    let grown = DropCounters::read().grown_since(before);
    let mut findings: Vec<Finding> = Vec::new();
    for finding in hops.iter().filter_map(|hop| judge(hop, &grown)) {
        let is_said =
            |one: &Finding| one.what == finding.what || is_of_one_rule(&one.what, &finding.what);
        if !findings.iter().chain(found).any(is_said) {
            findings.push(finding);
        }
    }
    findings
}

/// What on this node is wrong with the ways of its pods, whoever has found that packets are lost.
pub(crate) fn causes(around: &Surroundings) -> Vec<Finding> {
    let mut findings = super::firewall::look(around);
    findings.extend(look(around, &DropCounters::default(), &findings.clone()));
    findings.retain(|finding| finding.severity >= Severity::Warning);
    findings
}

fn walked(network: &Network) -> Vec<Hop> {
    let node = network.node();
    let pods = pods(network);
    let come: Vec<&Peer> = network.peers.iter().filter(|peer| !peer.backend.is_empty()).collect();
    let mut hops = Vec::new();
    for number in 0..pods.len().max(1).max(come.len()).min(WAYS) {
        let Some(peer) = come.get(number % come.len().max(1)) else { break };
        let pod = pods.get(number % pods.len().max(1)).copied();
        let v4 = pod.is_none_or(|pod| pod.is_ipv4());
        // The first address of its subnet is that of the node itself, in the tunnel.
        let to = peer.subnets.iter().find(|net| net.addr().is_ipv4() == v4);
        let own = network.own.iter().find(|net| net.addr().is_ipv4() == v4);
        let (Some(to), Some(own)) = (to, own) else { continue };
        let from = match pod {
            Some(pod) => (pod, End::Pod),
            None => (own.network(), End::Host),
        };
        let to = (to.network(), End::Peer(peer));
        hops.extend(flannel_trace::walk(&node, from, to).unwrap_or_default());
    }
    hops
}

/// Pods of this node that its bridge has heard of.
fn pods(network: &Network) -> Vec<IpAddr> {
    let Ok(mut kernel) = Kernel::open() else { return Vec::new() };
    let inside = |ip: IpAddr| network.own.iter().any(|own| own.contains(&ip));
    let has_own = |device: &&Device| {
        device.kind == "bridge" && device.addresses.iter().any(|net| inside(net.addr()))
    };
    let Some(bridge) = kernel.devices.iter().find(has_own).cloned() else { return Vec::new() };
    let mut pods = Vec::new();
    for v4 in [true, false] {
        let known = kernel.neighbours(v4, bridge.index).unwrap_or_default().into_iter();
        let gone = [NeighbourState::Failed, NeighbourState::Incomplete];
        let here = known.filter(|one| inside(one.ip) && !gone.contains(&one.state));
        pods.extend(here.map(|one| one.ip));
    }
    pods
}

fn judge(hop: &Hop, grown: &[CounterGrowth]) -> Option<Finding> {
    let subject = match hop.hop.as_str() {
        "queue" => "queues",
        "policy" => "ipsec",
        "rules" => "firewall",
        "neighbour" => "neighbours",
        "arp" => "arp",
        "pod" | "veth" => "pods",
        "bridge" | "fdb" => "bridge",
        // These have subjects of their own, or the daemon tells of them.
        _ => return None,
    };
    let meanwhile = grown.iter().find(|one| one.is_exact && hop.what.starts_with(&one.what));
    let meanwhile = meanwhile.map(|one| format!("; {} while this ran", one.packets));
    let what = format!("{}{}", hop.what, meanwhile.unwrap_or_default());
    match hop.condition {
        Condition::Wrong => Some(Finding::broken(subject, what, CUT, &hop.fix)),
        Condition::Unknown if ["queues", "firewall", "pods"].contains(&subject) => {
            let (what, fix) = what.split_once("; to undo it: ")?;
            // What is counted stands behind the command.
            let (fix, count) = fix.split_once("; ").unwrap_or((fix, ""));
            let count = if count.is_empty() { String::new() } else { format!(", {count}") };
            Some(Finding::warning(
                subject,
                format!("{what}{count}"),
                "connections of pods may be slow or hang, or some of them fail",
                fix,
            ))
        }
        Condition::Good | Condition::Unknown => None,
    }
}

/// Whether both tell of one rule, or of one queue: up to what it does.
fn is_of_one_rule(one: &str, other: &str) -> bool {
    let rule = |text: &str| text.split(" drops ").next().map(str::to_owned);
    one.contains(" drops ") && other.contains(" drops ") && rule(one) == rule(other)
}

#[cfg(test)]
mod tests {
    use flannel_trace::{Hops, Way};

    use super::*;

    #[test]
    fn a_hop_that_is_wrong_is_a_finding_and_one_that_may_drop_a_warning_with_its_count() {
        let mut hops = Hops::new(Way::There);
        hops.wrong("queue", "the queue blackhole of eth0 drops it", "tc qdisc del dev eth0 root");
        hops.unknown(
            "rules",
            "the rule a may drop some packets (3 so far); to undo it: nft delete rule a",
        );
        hops.wrong("route", "it leads elsewhere", "ip rule");
        hops.unknown("veth", "nobody knows");
        let grown = [CounterGrowth {
            what: "the rule a".to_owned(),
            fix: String::new(),
            packets: 7,
            is_exact: true,
        }];
        let found: Vec<Finding> = hops.all.iter().filter_map(|hop| judge(hop, &grown)).collect();
        let shown: Vec<(&str, Severity, &str, &str)> = found
            .iter()
            .map(|one| (one.subject, one.severity, one.what.as_str(), one.fix.as_str()))
            .collect();
        assert_eq!(
            shown,
            [
                (
                    "queues",
                    Severity::Broken,
                    "the queue blackhole of eth0 drops it",
                    "tc qdisc del dev eth0 root"
                ),
                (
                    "firewall",
                    Severity::Warning,
                    "the rule a may drop some packets (3 so far), 7 while this ran",
                    "nft delete rule a"
                ),
            ]
        );
        assert!(is_of_one_rule("the rule x drops what comes", "the rule x drops it"));
        assert!(!is_of_one_rule("the rule x drops what comes", "the rule y drops it"));
    }
}
