//! What `flannelctl trace` finds on ways between pods of this node and peers, as far as no other subject covers it.

use std::net::IpAddr;

use flannel_kernel::look::Kernel;
use flannel_trace::{DropCounters, End, Hop, Peer};
use netlink_packet_route::neighbour::NeighbourState;

use super::node_context::{Network, NodeContext};
use flannel_state::{DropCount, Finding, Layer, Severity};

/// So many ways are walked: with as many pods and as many peers as there are.
const MAX_WAYS: usize = 3;
const CUT: &str =
    "pods of this node do not reach those of others, or not with all of their packets";
const SLOW: &str = "connections of pods may be slow or hang, or some of them fail";
/// The others have subjects of their own, or the daemon tells of them.
const LAYERS: [Layer; 7] = [
    Layer::Queues,
    Layer::Ipsec,
    Layer::Firewall,
    Layer::Neighbours,
    Layer::Arp,
    Layer::Pods,
    Layer::Bridge,
];

/// `before`: counters from before packets were sent. `found`: what is known without it, which is not said twice.
pub(super) fn look(
    context: &NodeContext,
    before: &DropCounters,
    found: &[Finding],
) -> Vec<Finding> {
    let hops: Vec<Hop> = context.networks.iter().flat_map(walked).collect();
    let grown = DropCounters::read().grown_since(before);
    let mut findings: Vec<Finding> = Vec::new();
    for finding in hops.iter().filter_map(|hop| judge(hop, &grown)) {
        let is_said = |one: &Finding| {
            one.about == finding.about || is_of_one_rule(&one.about, &finding.about)
        };
        if !findings.iter().chain(found).any(is_said) {
            findings.push(finding);
        }
    }
    findings
}

/// What on this node is wrong with the ways of its pods, whoever has found that packets are lost.
pub(crate) fn causes(context: &NodeContext) -> Vec<Finding> {
    let mut findings = super::firewall::look(context);
    findings.extend(look(context, &DropCounters::default(), &findings.clone()));
    findings.retain(|finding| finding.severity >= Severity::Warning);
    findings
}

fn walked(network: &Network) -> Vec<Hop> {
    let node = network.node();
    let pods = pods(network);
    let come: Vec<&Peer> = network.peers.iter().filter(|peer| !peer.backend.is_empty()).collect();
    let mut hops = Vec::new();
    for number in 0..pods.len().max(1).max(come.len()).min(MAX_WAYS) {
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

fn pods(network: &Network) -> Vec<IpAddr> {
    let Ok(mut kernel) = Kernel::open() else { return Vec::new() };
    let Some(index) = network.bridge(&kernel).map(|bridge| bridge.index) else { return Vec::new() };
    let known = [true, false].map(|v4| kernel.neighbours(v4, index).unwrap_or_default());
    let gone = [NeighbourState::Failed, NeighbourState::Incomplete];
    let here = known.into_iter().flatten().filter(|one| !gone.contains(&one.state));
    here.map(|one| one.ip).filter(|ip| network.is_own(*ip)).collect()
}

fn judge(hop: &Hop, grown: &[DropCount]) -> Option<Finding> {
    let finding = hop.finding.as_ref()?;
    LAYERS.contains(&finding.layer).then_some(())?;
    let (cause, separator) = match finding.severity {
        Severity::Broken => (CUT, ";"),
        Severity::Warning | Severity::Note => (SLOW, ","),
    };
    let meanwhile = grown.iter().find(|one| one.is_exact && finding.about.starts_with(&one.what));
    let meanwhile = meanwhile.map(|one| format!("{separator} {} while this ran", one.packets));
    let about = format!("{}{}", finding.about, meanwhile.unwrap_or_default());
    Some(Finding { about, cause: cause.to_owned(), ..finding.clone() })
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
        let (queue, fix) = ("the queue blackhole of eth0 drops it", "tc qdisc del dev eth0 root");
        hops.wrong("queue", Layer::Queues, queue, fix);
        let rule = "the rule a may drop some packets (3 so far)";
        hops.found("rules", Finding::warning(Layer::Firewall, rule, "", "nft delete rule a"));
        hops.wrong("route", Layer::Entries, "it leads elsewhere", "ip rule");
        hops.unknown("veth", "nobody knows");
        let grown = [DropCount {
            what: "the rule a".to_owned(),
            fix: String::new(),
            packets: 7,
            is_exact: true,
        }];
        let found: Vec<Finding> = hops.all.iter().filter_map(|hop| judge(hop, &grown)).collect();
        let shown: Vec<(Layer, Severity, &str, &str)> = found
            .iter()
            .map(|one| (one.layer, one.severity, one.about.as_str(), one.fix.as_str()))
            .collect();
        assert_eq!(
            shown,
            [
                (
                    Layer::Queues,
                    Severity::Broken,
                    "the queue blackhole of eth0 drops it",
                    "tc qdisc del dev eth0 root"
                ),
                (
                    Layer::Firewall,
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
