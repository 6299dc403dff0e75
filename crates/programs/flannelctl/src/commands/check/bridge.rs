//! The pods' bridge: whether it is up, and has the address by which pods of this node reach others.

use flannel_kernel::look::{Device, Kernel};
use ipnet::IpNet;

use super::node_context::{Network, NodeContext};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Bridge;
/// As the flannel plugin calls it unless it is told otherwise.
const BRIDGE: &str = "cni0";

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    let Ok(kernel) = Kernel::open() else { return Vec::new() };
    let Some(bridge) = kernel.device(BRIDGE) else { return Vec::new() };
    let has_pods = kernel.devices.iter().any(|device| device.master == Some(bridge.index));
    let judged = context
        .networks
        .iter()
        .flat_map(|network| judge(network, bridge, has_pods, context.reports(network)));
    judged.collect()
}

/// `is_reported`: a daemon runs here, which reports addresses of a former subnet.
fn judge(network: &Network, bridge: &Device, has_pods: bool, is_reported: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !bridge.up && !network.own.is_empty() {
        let why = "pods of this node reach nobody";
        let fix = format!("ip link set {BRIDGE} up");
        findings.push(Finding::broken(LAYER, format!("{BRIDGE} is down"), why, fix));
    }
    for own in &network.own {
        let of_family = |net: &&IpNet| net.addr().is_ipv4() == own.addr().is_ipv4();
        // The kernel gives every device one of these.
        let link_local =
            |net: &IpNet| matches!(net, IpNet::V6(v6) if v6.addr().is_unicast_link_local());
        let mut addresses =
            bridge.addresses.iter().filter(of_family).filter(|net| !link_local(net));
        if addresses.clone().any(|net| own.contains(&net.addr())) {
            continue;
        }
        let is_of_pods = |net: &IpNet| network.ranges.iter().any(|it| it.contains(&net.addr()));
        let gateway = own.hosts().next().unwrap_or(own.addr());
        let wanted = format!("{gateway}/{}", own.prefix_len());
        match addresses.next() {
            Some(other) if is_reported && is_of_pods(other) => {}
            Some(other) => findings.push(Finding::broken(
                LAYER,
                format!("{BRIDGE} has {other}, and this node's subnet is {own}"),
                "pods that are on it have addresses of a former subnet, which no other node sends here; new ones do \
                 not start",
                format!(
                    "drain the node of its pods, then ip link del {BRIDGE}: it is made again with {wanted} for the next pod"
                ),
            )),
            None if has_pods => findings.push(Finding::broken(
                LAYER,
                format!("{BRIDGE} has pods on it, and no address of this node's subnet {own}"),
                "it is what pods send to for all that is not on this node: they reach nobody else",
                format!("ip addr add {wanted} dev {BRIDGE}"),
            )),
            None => {}
        }
    }
    findings
}
