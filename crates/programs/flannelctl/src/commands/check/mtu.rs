//! Whether what pods send fits into what the tunnel and the card carry.

use std::net::IpAddr;

use flannel_kernel::look::{Device, Kernel, RouteQuery};

use super::node_context::{MAX_PEERS, Network, NodeContext};
use super::{MAX_NAMED, few};
use flannel_state::{Finding, Layer, ProbedPeer};

const LAYER: Layer = Layer::Mtu;
const LEAST_V6: u32 = 1280;

struct Facts<'a> {
    pods: u32,
    v6: bool,
    underlay: (&'a str, u32),
    tunnels: Vec<(&'a str, u32)>,
    bridge: Vec<(&'a str, u32)>,
    /// Paths to peers that carry less than the card: as the kernel has learned, or as was measured.
    narrow: Vec<(IpAddr, u32)>,
}

/// `measured`: paths to nodes that carry less than the card.
pub(super) fn look(context: &NodeContext, measured: &[(IpAddr, u32)]) -> Vec<Finding> {
    let Ok(mut kernel) = Kernel::open() else { return Vec::new() };
    let mut findings = Vec::new();
    for network in &context.networks {
        let mut narrow = narrow_paths(network, &mut kernel);
        let of_peer = |ip: &IpAddr| network.peers.iter().any(|peer| peer.public.contains(ip));
        narrow.extend(measured.iter().copied().filter(|(ip, _)| of_peer(ip)));
        // What the daemon has measured is told by its number.
        let told = told_by_daemon(context, network);
        narrow.retain(|(ip, _)| !told.iter().any(|(known, _)| known == ip));
        narrow.extend(told);
        findings
            .extend(facts(network, &kernel, narrow).map(|facts| judge(&facts)).unwrap_or_default());
    }
    findings
}

/// Paths that carry less than the card, as the daemon that runs here has measured them.
fn told_by_daemon(context: &NodeContext, network: &Network) -> Vec<(IpAddr, u32)> {
    let state = context.state.iter().flat_map(|state| &state.networks);
    let of_network = state.filter(|state| state.name == network.name);
    let findings = of_network.filter_map(|state| state.probing.as_ref());
    let findings = findings.flat_map(|probing| &probing.findings);
    let added = match (&network.underlay, network.mtu) {
        (Some(underlay), Some(mtu)) => underlay.mtu.saturating_sub(mtu),
        _ => return Vec::new(),
    };
    let path = |found: &ProbedPeer| {
        let is_hole = found.probe.verdict == BLACK_HOLE;
        Some((found.node?, found.probe.mtu.filter(|_| is_hole)? + added))
    };
    findings.filter_map(path).collect()
}

pub(super) const BLACK_HOLE: &str = "mtu-black-hole";

fn narrow_paths(network: &Network, kernel: &mut Kernel) -> Vec<(IpAddr, u32)> {
    let Some(underlay) = &network.underlay else { return Vec::new() };
    let mut narrow = Vec::new();
    for peer in network.peers.iter().take(MAX_PEERS).flat_map(|peer| &peer.public) {
        let way = kernel.decide(RouteQuery { dst: *peer, from: None, protocol: None });
        let mtu = way.ok().and_then(Result::ok).and_then(|way| way.mtu);
        narrow.extend(mtu.filter(|mtu| *mtu < underlay.mtu).map(|mtu| (*peer, mtu)));
    }
    narrow
}

fn facts<'a>(
    network: &'a Network,
    kernel: &'a Kernel,
    narrow: Vec<(IpAddr, u32)>,
) -> Option<Facts<'a>> {
    let underlay = network.underlay.as_ref()?;
    let of = |device: &'a Device| (device.name.as_str(), device.mtu);
    let bridge = network.bridge(kernel);
    let ports = kernel.devices.iter().filter(|device| {
        device.master.is_some() && device.master == bridge.map(|bridge| bridge.index)
    });
    Some(Facts {
        pods: network.mtu?,
        v6: network.stack.v6,
        underlay: (underlay.link.as_str(), underlay.mtu),
        tunnels: network.devices.iter().filter_map(|name| kernel.device(name)).map(of).collect(),
        bridge: bridge.into_iter().chain(ports).map(of).collect(),
        narrow,
    })
}

fn judge(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (card, carried) = facts.underlay;
    if facts.v6 && facts.pods < LEAST_V6 {
        let what = format!(
            "pods would have an MTU of {}, and IPv6 needs {LEAST_V6}: {card} carries {carried}",
            facts.pods
        );
        let why = "the kernel takes no IPv6 address on such a device";
        let fix = format!("ip link set {card} mtu {}", carried + LEAST_V6 - facts.pods);
        findings.push(Finding::broken(LAYER, what, why, fix));
    }
    let large: Vec<&(&str, u32)> =
        facts.bridge.iter().filter(|(_, mtu)| *mtu > facts.pods).collect();
    if let [(first, mtu), ..] = large[..] {
        let smaller = large.iter().take(MAX_NAMED);
        let smaller: Vec<String> =
            smaller.map(|(name, _)| format!("ip link set {name} mtu {}", facts.pods)).collect();
        findings.push(Finding::warning(
            LAYER,
            format!(
                "{first} has an MTU of {mtu}, and the network carries {} ({})",
                facts.pods,
                few(large.iter().map(|(name, _)| name))
            ),
            "large packets of these pods do not get through: connections are made, and hang with the first full packet",
            format!("{}; and restart those pods: their own side keeps the larger one", smaller.join("; ")),
        ));
    }
    for (name, mtu) in &facts.tunnels {
        if *mtu > carried {
            let what = format!("{name} has an MTU of {mtu}, and {card} carries {carried}");
            let why = "packets of full size are lost, or sent in pieces";
            let fix = format!("ip link set {name} mtu {}", facts.pods);
            findings.push(Finding::broken(LAYER, what, why, fix));
        }
    }
    if let Some((peer, path)) = facts.narrow.iter().min_by_key(|(_, mtu)| *mtu) {
        let others = facts.narrow.len() - 1;
        let more = if others > 0 {
            format!(" (and less than {card} to {others} more)")
        } else {
            String::new()
        };
        let fits = facts.pods.saturating_sub(carried.saturating_sub(*path));
        findings.push(Finding::broken(
            LAYER,
            format!("the path to {peer} carries {path} bytes, and {card} {carried}: an MTU of {fits} fits for pods, they have {}{more}", facts.pods),
            "packets of full size between that node and this one are lost on the way: connections are made, and hang",
            flannel_probe::finding::smaller_mtu(card, *path, &peer.to_string()),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Facts<'static> {
        Facts {
            pods: 1450,
            v6: false,
            underlay: ("eth0", 1500),
            tunnels: vec![("flannel.1", 1450)],
            bridge: vec![("cni0", 1450), ("veth1", 1450)],
            narrow: Vec::new(),
        }
    }

    #[test]
    fn every_mtu_that_does_not_fit_is_named_with_the_one_that_does() {
        assert_eq!(judge(&sound()), []);
        let found = judge(&Facts { bridge: vec![("cni0", 1500), ("veth1", 1500)], ..sound() });
        assert!(
            found[0].about.contains("cni0 has an MTU of 1500, and the network carries 1450"),
            "{found:?}"
        );
        let found = judge(&Facts { narrow: vec![([192, 0, 2, 9].into(), 1400)], ..sound() });
        assert!(found[0].about.contains("an MTU of 1350 fits"), "{found:?}");
        assert!(found[0].fix.contains("`ip link set dev eth0 mtu 1400`"), "{found:?}");
        let found = judge(&Facts { v6: true, pods: 1230, underlay: ("eth0", 1300), ..sound() });
        assert!(found.iter().any(|one| one.fix == "ip link set eth0 mtu 1350"), "{found:?}");
        let found = judge(&Facts { tunnels: vec![("flannel.1", 9000)], ..sound() });
        assert_eq!(found[0].fix, "ip link set flannel.1 mtu 1450");
    }
}
