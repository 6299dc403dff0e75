//! The interface by which this node reaches the others: which one, why, and whether it will do.

use super::node_context::{Network, NodeContext};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Nic;

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    context.networks.iter().flat_map(judge).collect()
}

fn judge(network: &Network) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(error) = &network.no_underlay {
        let why = "without an interface and its address, this node cannot be a part of the network";
        let fix = "give the interface what is missing, or name another one (flanneld --iface NAME)";
        findings.push(Finding::broken(LAYER, error.clone(), why, fix));
    }
    if let Some(underlay) = &network.underlay {
        let addresses: Vec<String> = underlay.addresses().iter().map(ToString::to_string).collect();
        let what = format!("{} {}, MTU {}", underlay.link, addresses.join(" "), underlay.mtu);
        findings.push(Finding::note(LAYER, what, underlay.why.clone()));
        // Every machine of Vagrant and many of VirtualBox have this very address on their first card.
        if underlay.public_v4.is_some_and(|ip| ip.octets() == [10, 0, 2, 15]) {
            findings.push(Finding::broken(
                LAYER,
                format!("{} has the address 10.0.2.15, which is VirtualBox's NAT", underlay.link),
                "every machine has this address there, and none is reached by it",
                "name the interface of the network between the machines (flanneld --iface eth1)",
            ));
        }
    }
    findings
}
