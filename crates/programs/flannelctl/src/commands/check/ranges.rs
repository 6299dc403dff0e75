//! Address ranges of the pod network that something else on this host has, too.

use flannel_common::overlap;
use flannel_kernel::RouteKind;
use flannel_kernel::look::{FoundRoute, Kernel};
use ipnet::IpNet;

use super::node_context::{Network, NodeContext};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Ranges;
/// As `ip route` calls them: made by the kernel for an address, and made by flannel.
const KERNEL: u8 = 2;

pub(super) fn look(context: &NodeContext) -> anyhow::Result<Vec<Finding>> {
    let routes = Kernel::open()?.routes()?;
    Ok(context.networks.iter().flat_map(|network| judge(network, &routes)).collect())
}

fn judge(network: &Network, routes: &[FoundRoute]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for connected in &network.connected {
        let (net, link) = (connected.net(), connected.link);
        // The pods' bridge has addresses of this node's own subnet.
        let is_pods = |own: &IpNet| own.contains(&net);
        if network.own.iter().any(is_pods) {
            continue;
        }
        let Some(range) = network.ranges.iter().find(|range| overlap(range, &net)) else {
            continue;
        };
        let (name, is_dockers) = match link.as_str() {
            "docker0" => ("Docker's bridge docker0".to_owned(), true),
            other if other.starts_with("br-") => (format!("Docker's network {other}"), true),
            other => (other.to_owned(), false),
        };
        let what = format!("{name} has {}, and the pod network is {range}", connected.addr);
        let fix = match is_dockers {
            true => "give Docker another range (\"bip\" and \"default-address-pools\" in /etc/docker/daemon.json), or \
                     the pod network another Network in its config"
                .to_owned(),
            false => format!("ip addr del {} dev {link}, or another Network in the network config", connected.addr),
        };
        findings.push(if net.contains(range) && net != *range {
            let why = "subnets of nodes are more specific and win: what else is in that network is cut off where one lies";
            Finding::warning(LAYER, what, why, fix)
        } else {
            let why = "packets for pods of the node that gets these addresses stay on this host";
            Finding::broken(LAYER, what, why, fix)
        });
    }
    for route in routes {
        let ours = network.devices.contains(&route.link)
            || route.protocol == flannel_entries::kernel::ROUTE_PROTOCOL
            || route.protocol == KERNEL;
        // An address of this node's own subnet: the pods' business.
        let pods = network.own.iter().any(|own| own.contains(&route.dst));
        let inside = network.ranges.iter().find(|range| range.contains(&route.dst));
        let (false, false, Some(range)) = (ours, pods, inside) else { continue };
        // The Go flannel's bear no mark, and are where ours would be.
        let to_peer = network.peers.iter().any(|peer| {
            let gateway = route.via.is_some_and(|via| peer.public.contains(&via));
            peer.subnets.contains(&route.dst) && gateway
        });
        if to_peer || route.kind != RouteKind::Unicast && route.kind != RouteKind::Blackhole {
            continue;
        }
        let text = FoundRoute { onlink: false, ..route.clone() }.to_string();
        let what =
            format!("the route {text} leads into the pod network {range}, and is not flannel's");
        let why = "packets for pods there go another way";
        findings.push(Finding::broken(LAYER, what, why, format!("ip route del {text}")));
    }
    findings
}
