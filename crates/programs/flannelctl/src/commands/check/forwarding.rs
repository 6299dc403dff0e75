//! Whether this host forwards packets at all, where no daemon reports that.

use super::node_context::{Network, NodeContext};
use flannel_state::{Finding, Layer};
use flannel_trace::settings::{in_words, setting};

const LAYER: Layer = Layer::Forwarding;

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    let unreported = context.networks.iter().filter(|network| !context.reports(network));
    let mut findings: Vec<Finding> = unreported.flat_map(judge).collect();
    findings.dedup();
    findings
}

fn judge(network: &Network) -> Vec<Finding> {
    let off = |path: &str| setting(path).as_deref() == Some("0");
    let mut names = Vec::new();
    if network.stack.v4 {
        if off("net/ipv4/ip_forward") {
            names.push("net/ipv4/ip_forward".to_owned());
        } else {
            // The device by which a packet comes in decides.
            let devices = network.devices.iter().map(String::as_str).chain(["cni0"]);
            let own = devices.map(|device| format!("net/ipv4/conf/{device}/forwarding"));
            names.extend(own.filter(|path| off(path)));
        }
    }
    if network.stack.v6 && off("net/ipv6/conf/all/forwarding") {
        names.push("net/ipv6/conf/all/forwarding".to_owned());
    }
    let finding = |path: String| {
        let name = in_words(&path);
        let why = "this host does not forward packets of its pods, so they reach no other node";
        Finding::broken(LAYER, format!("{name} is 0"), why, format!("sysctl -w {name}=1"))
    };
    names.into_iter().map(finding).collect()
}
