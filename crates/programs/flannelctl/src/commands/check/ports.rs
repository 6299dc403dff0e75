//! Whether the ports of probes and of the tunnel are open: asked from here and now, also where no daemon runs.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use flannel_common::{Family, OperatorCommands};
use flannel_probe::verdict::AskOutcome;
use flannel_probe::{Standing, ask_once};
use flannel_trace::Peer;
use ipnet::IpNet;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::node_context::Network;
use super::{MAX_NAMED, few};
use crate::commands::store_args::block_on;
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Reach;
/// For a host to say that nobody listens.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

struct AskedNode {
    node: IpAddr,
    port: Option<u16>,
    /// `None`: not asked, or that is not possible from here.
    beside: Option<AskOutcome>,
    through: Option<AskOutcome>,
    refuses_tunnel: bool,
}

struct Ways {
    node: IpAddr,
    port: Option<u16>,
    from: IpAddr,
    subnet: IpNet,
    through: Option<(IpAddr, IpAddr)>,
    tunnel: Option<u16>,
}

pub(super) fn look(
    network: &Network,
    there: &[IpAddr],
    commands: OperatorCommands,
) -> Vec<Finding> {
    let ways = there.iter().filter_map(|node| {
        let mut peers = network.peers.iter();
        ways(network, peers.find(|peer| peer.public.first() == Some(node))?, *node)
    });
    let asked = block_on(async {
        let mut asked = JoinSet::new();
        ways.for_each(|ways| _ = asked.spawn(ask(ways)));
        Ok(asked.join_all().await)
    });
    let mut asked = asked.unwrap_or_default();
    asked.sort_by_key(|one| one.node);
    judge(network, &asked, commands)
}

fn ways(network: &Network, peer: &Peer, node: IpAddr) -> Option<Ways> {
    let underlay = network.underlay.as_ref()?;
    let own = underlay.addresses();
    let from = own.into_iter().find(|ip| ip.is_ipv4() == node.is_ipv4())?;
    let tunnel = network.encapsulation.udp_port(Family::of(node));
    let subnet = network.own.first();
    // Then what goes through the tunnel, or what comes back, comes to another.
    let is_shared = network.public().into_iter().chain([node]).any(|ip| network.is_shared(ip));
    let through = subnet.and_then(|own| {
        let is_of_family = |net: &&IpNet| net.addr().is_ipv4() == own.addr().is_ipv4();
        Some((own.network(), peer.subnets.iter().find(is_of_family)?.network()))
    });
    Some(Ways {
        node,
        port: peer.probe_port.map(NonZeroU16::get),
        from,
        subnet: subnet.copied().unwrap_or_else(|| IpNet::from(from)),
        through: through.filter(|_| tunnel.is_some() && !is_shared),
        tunnel,
    })
}

async fn ask(ways: Ways) -> AskedNode {
    let Ways { node, port, from, subnet, through, tunnel } = ways;
    let at = |from, to| async move {
        let told = ask_once(from, SocketAddr::new(to, port?), subnet).await;
        // This node has no such address, or no way: that is told by others.
        Some(told).filter(|told| !matches!(told, AskOutcome::Unsent(_)))
    };
    let through = async {
        let (from, to) = through?;
        at(from, to).await
    };
    let refused = async {
        match tunnel {
            Some(tunnel) => is_refused(from, SocketAddr::new(node, tunnel)).await.unwrap_or(false),
            None => false,
        }
    };
    let (beside, through, refuses_tunnel) = tokio::join!(at(from, node), through, refused);
    AskedNode { node, port, beside, through, refuses_tunnel }
}

/// A tunnel passes over what is not of its kind. A host that has none, or whose firewall rejects it, says so.
async fn is_refused(from: IpAddr, to: SocketAddr) -> io::Result<bool> {
    let socket = UdpSocket::bind((from, 0)).await?;
    socket.connect(to).await?;
    socket.send(&[0; 8]).await?;
    let told = tokio::time::timeout(ANSWER_TIMEOUT, socket.recv(&mut [0; 8])).await;
    let refusal = [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::EACCES];
    Ok(
        matches!(told, Ok(Err(error)) if error.raw_os_error().is_some_and(|it| refusal.contains(&it))),
    )
}

fn judge(network: &Network, asked: &[AskedNode], commands: OperatorCommands) -> Vec<Finding> {
    let named = |asked: &[&AskedNode]| few(asked.iter().map(|one| one.node));
    let answers = |outcome: &Option<AskOutcome>| matches!(outcome, Some(AskOutcome::Answered(_)));
    let (mut refusing, mut lacking, mut blocked, mut silent) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for one in asked.iter().filter(|one| !answers(&one.through)) {
        match &one.beside {
            _ if one.refuses_tunnel => refusing.push(one),
            Some(AskOutcome::Answered(_)) if one.through.is_none() => {}
            Some(AskOutcome::Answered(beside)) if beside.standing == Standing::Programmed => {
                blocked.push(one);
            }
            Some(AskOutcome::Answered(beside)) => lacking.push((one, beside.standing)),
            Some(_) => silent.push(one),
            None => {}
        }
    }
    let family = asked.first().map_or(Family::V4, |one| Family::of(one.node));
    let tunnel = network.encapsulation.udp_port(family).unwrap_or_default();
    let carried = format!("UDP port {tunnel}, the {} tunnel,", network.backend);
    let cut = "pods of this node and of those do not reach each other";
    let open = |port: u16| {
        format!(
            "iptables -I INPUT -p udp --dport {port} -j ACCEPT, or firewall-cmd --permanent --add-port={port}/udp && \
             firewall-cmd --reload"
        )
    };
    let mut findings = Vec::new();
    if let [first, ..] = refusing[..] {
        let what = format!("{carried} is refused by {}", named(&refusing));
        let fix = format!(
            "on {}: {}; and look whether flanneld runs, which makes the tunnel: {}",
            first.node,
            open(tunnel),
            commands.show_daemon(first.node)
        );
        findings.push(Finding::broken(LAYER, what, cut, fix));
    }
    findings.extend(lacking.iter().take(MAX_NAMED).map(|(one, standing)| {
        let fix = format!("on {}: flannelctl status", one.node);
        Finding::broken(LAYER, format!("{} {}", one.node, standing.words()), cut, fix)
    }));
    if let [first, ..] = blocked[..] {
        let what = format!(
            "{carried} is blocked between this node and {}: they answer beside it",
            named(&blocked)
        );
        let fix = format!(
            "on {} too: flannelctl check names what drops it on either node; if neither does, let UDP port {tunnel} \
             through what is between (security groups)",
            first.node
        );
        findings.push(Finding::broken(LAYER, what, cut, fix));
    }
    // That nobody listens, a host says itself; why it is silent nobody has seen.
    let (gone, silent): (Vec<&AskedNode>, Vec<&AskedNode>) =
        silent.into_iter().partition(|one| one.beside == Some(AskOutcome::Refused));
    let at = |asked: &[&AskedNode]| {
        let port = asked.first().and_then(|one| one.port).unwrap_or(flannel_probe::PORT);
        let nodes = named(asked);
        (port, format!("UDP port {port} does not answer at {nodes}, which answer a ping"))
    };
    if let [first, ..] = gone[..] {
        let why = "that host says that nobody listens there: flanneld is not running, or has not joined its network yet";
        let fix = format!("{}; if it does not run, start it", commands.show_daemon(first.node));
        findings.push(Finding::warning(LAYER, at(&gone).1, why, fix));
    }
    if let [first, ..] = silent[..] {
        let (port, what) = at(&silent);
        findings.push(Finding::warning(
            LAYER,
            what,
            "no reason was seen from here: flanneld may be down there, or a firewall may drop probes, and perhaps the \
             tunnel's packets too",
            format!(
                "{}; if it does not run, start it; if it runs, a firewall drops probes: on {}: {}",
                commands.show_daemon(first.node),
                first.node,
                open(port)
            ),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use flannel_probe::verdict::ProbeAnswer;

    use super::*;
    use flannel_state::Severity;

    #[test]
    fn what_is_closed_is_told_from_who_does_not_listen() {
        let answered_as = |standing| {
            Some(AskOutcome::Answered(ProbeAnswer {
                latency: ANSWER_TIMEOUT,
                standing,
                has_heard: true,
                machine: None,
            }))
        };
        let answered = || answered_as(Standing::Programmed);
        let one = |beside, through, refuses_tunnel| {
            let node = [192, 0, 2, 2].into();
            judge(
                &Network::sample(),
                &[AskedNode { node, port: Some(8475), beside, through, refuses_tunnel }],
                OperatorCommands { in_pods: true, ..OperatorCommands::default() },
            )
        };
        let silent = || Some(AskOutcome::Silent);
        assert_eq!(one(answered(), answered(), false), []);
        assert_eq!(one(answered(), None, false), [], "this node has no tunnel yet");
        assert_eq!(one(silent(), answered(), false), [], "probes alone are filtered");
        assert_eq!(one(None, None, false), [], "the Go flannel answers nothing");
        let found = |found: Vec<Finding>, severity, words: &str| {
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].severity == severity && found[0].about.contains(words), "{found:?}");
        };
        found(
            one(answered(), silent(), false),
            Severity::Broken,
            "is blocked between this node and 192.0.2.2",
        );
        for (standing, words) in [
            (Standing::Unknown, "192.0.2.2 does not know this node's lease"),
            (Standing::Unusable, "192.0.2.2 cannot use this node's lease"),
            (Standing::Incomplete, "192.0.2.2 lacks entries that lead to this node"),
        ] {
            found(one(answered_as(standing), silent(), false), Severity::Broken, words);
        }
        found(
            one(answered(), None, true),
            Severity::Broken,
            "UDP port 8472, the vxlan tunnel, is refused by",
        );
        found(
            one(silent(), silent(), false),
            Severity::Warning,
            "UDP port 8475 does not answer at 192.0.2.2",
        );
        for found in [one(answered(), None, true), one(silent(), silent(), false)].concat() {
            assert!(found.fix.contains("kubectl") && !found.fix.contains("systemctl"), "{found:?}");
        }
        found(
            one(Some(AskOutcome::Refused), None, false),
            Severity::Warning,
            "UDP port 8475 does not answer",
        );
        let cause = |outcome| one(Some(outcome), None, false).remove(0).cause;
        assert!(cause(AskOutcome::Refused).contains("says that nobody listens there"));
        assert!(
            cause(AskOutcome::Silent).starts_with("no reason was seen from here"),
            "nor claimed"
        );
    }

    #[test]
    fn nobody_is_asked_through_the_tunnel_where_leases_share_an_address() {
        let peer = |subnet: &str, public: [u8; 4]| Peer {
            subnets: vec![subnet.parse().expect("a subnet")],
            public: vec![public.into()],
            backend: "vxlan".to_owned(),
            ..Peer::default()
        };
        let is_asked = |peers: &[Peer]| {
            let network = Network { peers: peers.to_vec(), ..Network::sample() };
            let node = peers[0].public[0];
            ways(&network, &peers[0], node).is_some_and(|ways| ways.through.is_some())
        };
        let second = peer("10.244.2.0/24", [192, 0, 2, 2]);
        assert!(is_asked(&[second.clone(), peer("10.244.3.0/24", [192, 0, 2, 3])]));
        assert!(!is_asked(&[second.clone(), peer("10.244.3.0/24", [192, 0, 2, 2])]));
        // This node's own.
        assert!(!is_asked(&[second, peer("10.244.3.0/24", [192, 0, 2, 1])]));
    }
}
