//! Rules for tests.

use flannel_entries::rules::{
    FamilyRules, Mode, NodeRules, Purpose, TrafficRules, TunnelGuard, TunnelPackets,
};
use ipnet::IpNet;

use crate::rule::Block;

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(crate) fn family(network: &str, subnet: &str) -> FamilyRules {
    let guard = TunnelGuard::none(net(network));
    FamilyRules { network: net(network), subnet: net(subnet), exclude: Vec::new(), guard }
}

/// A node as the recorded outputs of the Go flannel have it.
pub(crate) fn node(mode: Mode) -> NodeRules {
    NodeRules {
        v4: Some(family("10.244.0.0/16", "10.244.65.0/24")),
        v6: None,
        masquerade: true,
        random_fully: true,
        forward: true,
        mode,
    }
}

/// Makes a node guard the port of vxlan.
pub(crate) fn guard(rules: &mut FamilyRules) {
    rules.guard.packets = vec![TunnelPackets::Udp(8472)];
    rules.guard.forgeable = true;
}

pub(crate) trait Blocks {
    /// All entries of a node with this family alone.
    fn entries(&self, random_fully: bool) -> Vec<TrafficRules>;

    fn block(&self, purpose: Purpose, random: bool) -> Block {
        let entries = self.entries(random);
        Block::new(entries.iter().find(|it| it.purpose() == purpose).expect("it is wanted"), true)
    }
}

impl Blocks for FamilyRules {
    fn entries(&self, random_fully: bool) -> Vec<TrafficRules> {
        let (v4, v6) = match self.network.addr().is_ipv4() {
            true => (Some(self.clone()), None),
            false => (None, Some(self.clone())),
        };
        NodeRules { v4, v6, random_fully, ..node(Mode::Nftables) }.entries()
    }
}
