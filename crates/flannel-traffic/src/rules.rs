//! What the operator wants, before it is said in the language of any packet filter.

use std::fmt;

use flannel_common::Family;
use ipnet::IpNet;

use crate::TrafficError;

/// The wanted state of both families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub v4: Option<FamilyRules>,
    pub v6: Option<FamilyRules>,
    /// Traffic between the network and the rest of the world bears the node's address.
    pub masquerade: bool,
    /// Ports of masqueraded connections are drawn at random, where kernel and tools can.
    pub random_fully: bool,
    /// Traffic of the network is forwarded even if the node drops what nobody accepts.
    pub forward: bool,
    pub mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyRules {
    /// The whole flannel network.
    pub network: IpNet,
    /// This node's part of it.
    pub subnet: IpNet,
    /// Destinations that always see the true source address. Those of the other family are ignored, so
    /// one list serves both.
    pub exclude: Vec<IpNet>,
    pub guard: TunnelGuard,
}

/// Keeps pods from putting packets into the tunnel between nodes, which would take them for a node's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelGuard {
    /// Where pods' addresses lie. Nodes' addresses do not.
    pub pods: IpNet,
    /// Interfaces of this node that pods are behind, whatever address they pretend to have.
    pub pod_links: Vec<String>,
    /// What reaches the tunnel's end of a node. Empty: there is nothing to guard.
    pub packets: Vec<TunnelPackets>,
    /// Whether a node takes such packets from anybody: those to other nodes are dropped, too.
    pub forgeable: bool,
}

/// Packets that a tunnel's end takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelPackets {
    /// UDP to this port.
    Udp(u16),
    /// This protocol of IP.
    Protocol(u8),
}

impl TunnelGuard {
    /// Guards nothing.
    pub fn none(pods: IpNet) -> Self {
        Self { pods, pod_links: Vec::new(), packets: Vec::new(), forgeable: false }
    }
}

/// Whether packet filters take this name as it is: not for a pattern, and not for more than a name.
fn is_plain(link: &str) -> bool {
    link.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte))
        && link.starts_with(|first: char| first.is_ascii_alphanumeric())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        })
    }
}

impl Rules {
    /// The family's rules if there are any to keep.
    pub(crate) fn of(&self, family: Family) -> Option<&FamilyRules> {
        let rules = match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        rules.as_ref().filter(|_| self.masquerade || self.forward)
    }

    pub(crate) fn networks(&self) -> Vec<IpNet> {
        Family::BOTH.iter().filter_map(|family| Some(self.of(*family)?.network)).collect()
    }

    /// The same rules in the one form the rest of this crate counts on: no host bits, no exclusions of
    /// the other family and none twice.
    pub(crate) fn checked(mut self) -> Result<Self, TrafficError> {
        for (family, rules) in [(Family::V4, &mut self.v4), (Family::V6, &mut self.v6)] {
            let Some(rules) = rules else { continue };
            rules.network = rules.network.trunc();
            rules.subnet = rules.subnet.trunc();
            rules.guard.pods = rules.guard.pods.trunc();
            rules.guard.pod_links.retain(|link| is_plain(link));
            for net in [rules.network, rules.subnet, rules.guard.pods] {
                if Family::of(net.addr()) != family || net.prefix_len() == 0 {
                    return Err(TrafficError::Network { family, net });
                }
            }
            let mut exclude: Vec<IpNet> = Vec::new();
            for net in rules.exclude.iter().map(IpNet::trunc) {
                if Family::of(net.addr()) == family && !exclude.contains(&net) {
                    exclude.push(net);
                }
            }
            rules.exclude = exclude;
        }
        Ok(self)
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    pub(crate) fn family(network: &str, subnet: &str) -> FamilyRules {
        let guard = TunnelGuard::none(net(network));
        FamilyRules { network: net(network), subnet: net(subnet), exclude: Vec::new(), guard }
    }

    /// A node as the recorded outputs of the Go flannel have it.
    pub(crate) fn node(mode: Mode) -> Rules {
        Rules {
            v4: Some(family("10.244.0.0/16", "10.244.65.0/24")),
            v6: None,
            masquerade: true,
            random_fully: true,
            forward: true,
            mode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{net, node};
    use super::*;

    #[test]
    fn host_bits_doubles_and_the_other_familys_exclusions_are_dropped() {
        let mut rules = node(Mode::Nftables);
        let v4 = rules.v4.as_mut().unwrap();
        v4.subnet = net("10.244.65.1/24");
        v4.exclude = vec![net("10.0.0.1/8"), net("fd00::/8"), net("10.0.0.0/8")];
        let v4 = rules.checked().unwrap().v4.unwrap();
        assert_eq!(v4.subnet, net("10.244.65.0/24"));
        assert_eq!(v4.exclude, [net("10.0.0.0/8")]);
    }

    #[test]
    fn a_network_of_the_other_family_or_of_everything_is_refused() {
        for wrong in ["fd00::/64", "0.0.0.0/0"] {
            let mut rules = node(Mode::Nftables);
            rules.v4.as_mut().unwrap().network = net(wrong);
            let error = rules.checked().unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn interfaces_whose_names_mean_more_than_a_name_are_left_out() {
        let mut rules = node(Mode::Nftables);
        let links = ["cni0", "br-1.2", "cni+", "x*", "a\"b", "-i", "a;b", ""];
        rules.v4.as_mut().unwrap().guard.pod_links = links.map(String::from).to_vec();
        assert_eq!(rules.checked().unwrap().v4.unwrap().guard.pod_links, ["cni0", "br-1.2"]);
    }

    #[test]
    fn nothing_to_masquerade_and_nothing_to_forward_is_nothing() {
        let mut rules = node(Mode::Iptables);
        rules.masquerade = false;
        assert!(rules.of(Family::V4).is_some());
        rules.forward = false;
        assert!(rules.of(Family::V4).is_none());
        assert!(rules.networks().is_empty());
    }
}
