//! What an operator is told of a verdict: its cause, and what to type.

use std::net::IpAddr;

use flannel_state::Finding;
use ipnet::IpNet;

use crate::peers::{PeerReachability, ProbingNode, Target};
use crate::round_trip::RoundTrips;
use crate::verdict::{Asks, Direction, ProbeVerdict};
use crate::wire::Standing;

/// What is wrong with a peer; `None` if it is reached.
pub fn finding(
    known: &PeerReachability,
    own: &ProbingNode,
    subnet: &IpNet,
    target: &Target,
) -> Option<Finding> {
    let layer = known.verdict.layer()?;
    let family = known.family.map(|family| format!("{family}: ")).unwrap_or_default();
    let there = target.public.iter().flatten().next();
    let at = there.map(|node| format!(" at {node}")).unwrap_or_default();
    let (cause, fix) = cause_and_fix(&known.verdict, own, subnet, target);
    let judge = if known.verdict.traffic_flows() { Finding::warning } else { Finding::broken };
    Some(judge(layer, format!("peer {subnet}{at}"), format!("{family}{cause}"), fix))
}

/// What makes packets fit a path: one command, on both of its ends.
pub fn smaller_mtu(link: &str, carries: u32, there: &str) -> String {
    format!(
        "on both nodes, this one and {there}: `ip link set dev {link} mtu {carries}` (flannel follows), then restart their \
         pods; or let what is between carry more, or delete the rule for long packets if `flannelctl check` names one there"
    )
}

fn cause_and_fix(
    verdict: &ProbeVerdict,
    own: &ProbingNode,
    subnet: &IpNet,
    target: &Target,
) -> (String, String) {
    let port = target.port;
    let there = target.public.iter().flatten().next();
    let there = match there {
        // As `ping` wants it.
        Some(IpAddr::V6(ip)) if ip.is_unicast_link_local() => format!("{ip}%{}", own.link),
        Some(ip) => ip.to_string(),
        None => subnet.to_string(),
    };
    let (tunnel, allow, devices) = match own.encapsulation.tunnel() {
        Some(tunnel) => (tunnel.name.as_str(), tunnel.allow.as_slice(), own.devices.as_slice()),
        None => ("the underlay", [].as_slice(), [].as_slice()),
    };
    let let_in = |rule: &str| format!("`iptables -I INPUT {rule} -j ACCEPT`");
    let let_in_probes = let_in(&format!("-p udp --dport {port}"));
    let show_daemon = own.commands.show_daemon(&there);
    let let_in_tunnel = || allow.iter().map(|rule| let_in(rule)).collect::<Vec<_>>().join(" and ");
    let offload = |on: &str| {
        let each = devices.iter().map(|d| format!("`ethtool -K {d} tx-checksum-ip-generic off`"));
        format!("on {on}: {}", each.collect::<Vec<_>>().join(" and "))
    };
    match verdict {
        ProbeVerdict::Reached => ("reached".to_owned(), String::new()),
        ProbeVerdict::AnotherMachine => (
            format!(
                "another machine than the one that announced the lease {subnet} answers in its place: two nodes have one \
                 address, MAC or key, or one has taken the other's"
            ),
            format!(
                "`flannelctl check` names leases that share one (lease); give {there} its address, MAC or key back, or \
                 stop the node that has taken it"
            ),
        ),
        ProbeVerdict::MtuBlackHole { fits } => {
            let carries = fits + own.overhead;
            (
                format!(
                    "packets of more than {fits} bytes vanish between this node and that one, and pods send up to {}: \
                     the path carries {carries} bytes, not the {} of {}",
                    own.mtu, own.link_mtu, own.link
                ),
                smaller_mtu(&own.link, carries, &there),
            )
        }
        ProbeVerdict::Fragmented { carries } => (
            format!(
                "packets arrive, but the largest are cut up on the way, which is slow: the path carries {carries} \
                 bytes, not the {} of {}; a tunnel below this one may be why",
                own.link_mtu, own.link
            ),
            smaller_mtu(&own.link, *carries, &there),
        ),
        ProbeVerdict::Lossy(Asks { asked, lost }) => (
            format!(
                "of the last {asked} probes through the tunnel, {lost} were lost on the way there or back; on which side \
                 is not known"
            ),
            format!(
                "here and on {there}: `flannelctl check` names rules, queues and filters that drop; if neither does, the \
                 network between loses them"
            ),
        ),
        ProbeVerdict::Slow(round_trips) => (
            format!(
                "packets take {} there and back, and the same path took {} before: something on the way there or back delays \
                 them, and on which side is not known",
                RoundTrips::in_words(round_trips.now),
                RoundTrips::in_words(round_trips.shortest)
            ),
            format!(
                "here and on {there}: `flannelctl check` names queues (tc) that delay; if neither does, the network between \
                 is slow or congested"
            ),
        ),
        ProbeVerdict::DaemonDown { is_certain: true } => (
            format!(
                "packets get there and back, but nobody listens on its UDP port {port}: flanneld is not \
                 running there, or has not joined its network yet, as while it waits for its store"
            ),
            format!("{show_daemon}; if it does not run: {}", own.commands.restart(&there)),
        ),
        ProbeVerdict::DaemonDown { is_certain: false } => (
            format!(
                "packets get there and back, but its UDP port {port} does not answer: flanneld is not running \
                 there, waits for its store, or a firewall drops probes"
            ),
            format!("{show_daemon}; if it runs and is ready, on {there}: {let_in_probes}"),
        ),
        ProbeVerdict::ProbesFiltered => (
            format!(
                "packets get there and back, and its daemon runs, but a firewall drops probes on UDP port \
                 {port} of its tunnel device"
            ),
            format!("on {there}: {let_in_probes}"),
        ),
        ProbeVerdict::ChecksumHere => (
            "packets leave here with wrong checksums: a checksum offload of this node's card or driver is \
             broken; flanneld switches it off on its own device"
                .to_owned(),
            offload("this node"),
        ),
        ProbeVerdict::ChecksumThere => (
            "packets come back with wrong checksums: a checksum offload of its card or driver is broken"
                .to_owned(),
            offload(&there),
        ),
        ProbeVerdict::EntriesMissingThere(standing) => {
            let what = standing.words();
            let of_whom = match standing {
                Standing::Unknown | Standing::Unusable => format!(" {}", own.subnet),
                _ => String::new(),
            };
            (
                format!("its daemon answers, but {what}{of_whom}"),
                format!("on {there}: `flannelctl status` and `flannelctl peers {}`", own.subnet),
            )
        }
        ProbeVerdict::TunnelBlocked(direction @ (Direction::There | Direction::Back)) => (
            if *direction == Direction::There {
                format!(
                    "its daemon answers beside the tunnel, but {tunnel} does not arrive there: this node, that node or \
                     something between drops it, and which is not known"
                )
            } else {
                format!(
                    "what is sent through the tunnel arrives there, but {tunnel} does not come back: that node, this \
                     node or something between drops it, and which is not known"
                )
            },
            format!(
                "here and on {there}: `flannelctl check` names what drops it on that node; if neither does, what is \
                 between (a security group) must let {tunnel} through"
            ),
        ),
        ProbeVerdict::TunnelBlocked(Direction::Unknown) => (
            format!(
                "its host is there, but {tunnel} does not get there and back, and its daemon does not answer \
                 on UDP port {port} either: a firewall drops both, or flanneld is not running there"
            ),
            format!("{show_daemon}; on both nodes {} and {let_in_probes}", let_in_tunnel()),
        ),
        ProbeVerdict::UnderlayCut => (
            format!(
                "nothing comes back from {there}, neither through the tunnel nor beside it: that node is down, \
                 or the network between is cut"
            ),
            format!(
                "`ip route get {there}` and `ping {there}`; `flannelctl check` here and there looks for routes, \
                 rp_filter and rules that may be why; if that node is gone for good, {}",
                own.commands.release(subnet, None)
            ),
        ),
        ProbeVerdict::Unsent(why) => (
            format!("packets to it do not leave this node: {why}"),
            "`flannelctl repair` and `flannelctl check`, on this node".to_owned(),
        ),
    }
}
