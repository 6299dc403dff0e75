//! The interface by which this node reaches the others: which one, why, and whether it will do.

use super::finding::Finding;
use super::surroundings::{Network, Surroundings};

const SUBJECT: &str = "nic";

pub(super) fn look(around: &Surroundings) -> Vec<Finding> {
    around.networks.iter().flat_map(judge).collect()
}

fn judge(network: &Network) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(error) = &network.no_underlay {
        findings.push(Finding::broken(
            SUBJECT,
            error.clone(),
            "without an interface and its address, this node cannot be a part of the network",
            "give the interface what is missing, or name another one (flanneld --iface NAME)",
        ));
    }
    if let Some(underlay) = &network.underlay {
        let addresses =
            [underlay.v4.map(|ip| ip.to_string()), underlay.v6.map(|ip| ip.to_string())];
        let addresses: Vec<String> = addresses.into_iter().flatten().collect();
        findings.push(Finding::note(
            SUBJECT,
            format!("{} {}, MTU {}", underlay.link, addresses.join(" "), underlay.mtu),
            underlay.why.clone(),
        ));
        // Every machine of Vagrant and many of VirtualBox have this very address on their first card.
        if underlay.public_v4.is_some_and(|ip| ip.octets() == [10, 0, 2, 15]) {
            findings.push(Finding::broken(
                SUBJECT,
                format!("{} has the address 10.0.2.15, which is VirtualBox's NAT", underlay.link),
                "every machine has this address there, and none is reached by it",
                "name the interface of the network between the machines (flanneld --iface eth1)",
            ));
        }
    }
    findings
}
