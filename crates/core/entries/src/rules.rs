//! What can be wanted of a node's packet filter: which packets of the network are masqueraded, that they may be
//! forwarded, and that pods put none into the tunnel between nodes.

use std::convert::Infallible;
use std::fmt;

use flannel_common::Family;
use flannel_wanted::{Importance, KeyedEntry};
use ipnet::IpNet;

/// The rules of one flannel network for one purpose, which stand together in one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficRules {
    pub network: IpNet,
    pub content: RulesContent,
    pub mode: Mode,
    /// Whether the node masquerades, and is not ready without its rules, guards aside.
    pub is_required: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulesContent {
    Masquerade(Masquerade),
    Forward,
    GuardInput(TunnelGuard),
    GuardForward(TunnelGuard),
}

/// Traffic between the network and the rest of the world bears the node's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masquerade {
    pub subnet: IpNet,
    /// Destinations that always see the true source address.
    pub exclude: Vec<IpNet>,
    /// Ports are drawn at random, where kernel and tools can.
    pub random_fully: bool,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelPackets {
    Udp(u16),
    /// This protocol of IP.
    Protocol(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
}

/// What rules are for: each purpose has a chain of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Masquerade,
    /// Traffic of the network is forwarded even if the node drops what nobody accepts.
    Forward,
    /// Keeps pods' packets out of this node's end of the tunnel.
    GuardInput,
    /// Keeps pods' packets from other nodes' ends of the tunnel.
    GuardForward,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RulesKey {
    pub family: Family,
    pub purpose: Purpose,
}

/// The traffic rules that flags, network config and backend ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRules {
    pub v4: Option<FamilyRules>,
    pub v6: Option<FamilyRules>,
    pub masquerade: bool,
    pub random_fully: bool,
    pub forward: bool,
    pub mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyRules {
    pub network: IpNet,
    pub subnet: IpNet,
    /// Destinations that are not masqueraded. Those of the other family are ignored, so one list serves both.
    pub exclude: Vec<IpNet>,
    pub guard: TunnelGuard,
}

impl NodeRules {
    /// Guards come along with either of the others, and not alone.
    pub fn entries(&self) -> Vec<TrafficRules> {
        if !self.masquerade && !self.forward {
            return Vec::new();
        }
        [&self.v4, &self.v6].into_iter().flatten().flat_map(|of| self.family_entries(of)).collect()
    }

    /// In the one form that packet filters count on: no host bits, no exclusions of the other family and none twice.
    fn family_entries(&self, of: &FamilyRules) -> Vec<TrafficRules> {
        let network = of.network.trunc();
        let mut exclude: Vec<IpNet> = Vec::new();
        for net in of.exclude.iter().map(IpNet::trunc) {
            if Family::of(net.addr()) == Family::of(network.addr()) && !exclude.contains(&net) {
                exclude.push(net);
            }
        }
        let (subnet, random_fully) = (of.subnet.trunc(), self.random_fully);
        let masquerade = RulesContent::Masquerade(Masquerade { subnet, exclude, random_fully });
        let mut guard = TunnelGuard { pods: of.guard.pods.trunc(), ..of.guard.clone() };
        guard.pod_links.retain(|link| is_plain(link));
        let guards_input = !guard.packets.is_empty();
        let guards_forward = guards_input && guard.forgeable;
        let contents = [
            self.masquerade.then_some(masquerade),
            self.forward.then_some(RulesContent::Forward),
            guards_input.then(|| RulesContent::GuardInput(guard.clone())),
            guards_forward.then(|| RulesContent::GuardForward(guard.clone())),
        ];
        let entry = |content| TrafficRules {
            network,
            content,
            mode: self.mode,
            is_required: self.masquerade,
        };
        contents.into_iter().flatten().map(entry).collect()
    }
}

/// Whether packet filters take this name as it is: not for a pattern, and not for more than a name.
fn is_plain(link: &str) -> bool {
    link.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte))
        && link.starts_with(|first: char| first.is_ascii_alphanumeric())
}

impl TunnelGuard {
    pub fn none(pods: IpNet) -> Self {
        Self { pods, pod_links: Vec::new(), packets: Vec::new(), forgeable: false }
    }
}

impl TrafficRules {
    pub fn family(&self) -> Family {
        Family::of(self.network.addr())
    }

    pub fn purpose(&self) -> Purpose {
        match self.content {
            RulesContent::Masquerade(_) => Purpose::Masquerade,
            RulesContent::Forward => Purpose::Forward,
            RulesContent::GuardInput(_) => Purpose::GuardInput,
            RulesContent::GuardForward(_) => Purpose::GuardForward,
        }
    }
}

impl Purpose {
    pub const ALL: [Self; 4] =
        [Self::Masquerade, Self::Forward, Self::GuardInput, Self::GuardForward];

    /// Whether the rules only protect: pods have their network without them.
    pub fn is_guard(self) -> bool {
        matches!(self, Self::GuardInput | Self::GuardForward)
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Masquerade => "masquerade",
            Self::Forward => "forward",
            Self::GuardInput => "tunnel guard input",
            Self::GuardForward => "tunnel guard forward",
        })
    }
}

impl KeyedEntry for TrafficRules {
    type Key = RulesKey;
    /// They name devices, and do not need them.
    type Device = Infallible;

    fn key(&self) -> RulesKey {
        RulesKey { family: self.family(), purpose: self.purpose() }
    }

    fn describe(&self) -> String {
        format!("{} {} rules of {}", self.family(), self.purpose(), self.network)
    }

    fn kind(&self) -> &'static str {
        match self.purpose() {
            Purpose::Masquerade => "masquerade",
            Purpose::Forward => "forward",
            Purpose::GuardInput | Purpose::GuardForward => "tunnel-guard",
        }
    }

    fn importance(&self) -> Importance {
        match self.is_required && !self.purpose().is_guard() {
            true => Importance::Required,
            false => Importance::Optional,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn node() -> NodeRules {
        let network = net("10.244.0.0/16");
        let guard = TunnelGuard::none(network);
        let v4 = FamilyRules { network, subnet: net("10.244.65.0/24"), exclude: vec![], guard };
        NodeRules {
            v4: Some(v4),
            v6: None,
            masquerade: true,
            random_fully: true,
            forward: true,
            mode: Mode::Nftables,
        }
    }

    #[test]
    fn host_bits_doubles_and_the_other_familys_exclusions_are_dropped() {
        let mut rules = node();
        let v4 = rules.v4.as_mut().unwrap();
        v4.subnet = net("10.244.65.1/24");
        v4.exclude = vec![net("10.0.0.1/8"), net("fd00::/8"), net("10.0.0.0/8")];
        let RulesContent::Masquerade(masquerade) = &rules.entries()[0].content else {
            panic!("it is the first")
        };
        assert_eq!(masquerade.subnet, net("10.244.65.0/24"));
        assert_eq!(masquerade.exclude, [net("10.0.0.0/8")]);
    }

    #[test]
    fn interfaces_whose_names_mean_more_than_a_name_are_left_out() {
        let mut rules = node();
        let guard = &mut rules.v4.as_mut().unwrap().guard;
        let links = ["cni0", "br-1.2", "cni+", "x*", "a\"b", "-i", "a;b", ""];
        guard.pod_links = links.map(String::from).to_vec();
        guard.packets = vec![TunnelPackets::Udp(8472)];
        let entries = rules.entries();
        let Some(RulesContent::GuardInput(guard)) = entries.last().map(|it| &it.content) else {
            panic!("nobody can forge them: {entries:?}")
        };
        assert_eq!(guard.pod_links, ["cni0", "br-1.2"]);
    }

    #[test]
    fn entries_are_known_by_family_and_purpose() {
        let mut rules = node();
        rules.v4.as_mut().unwrap().guard.packets = vec![TunnelPackets::Udp(8472)];
        rules.v4.as_mut().unwrap().guard.forgeable = true;
        let told: Vec<String> = rules.entries().iter().map(KeyedEntry::describe).collect();
        assert_eq!(
            told,
            [
                "IPv4 masquerade rules of 10.244.0.0/16",
                "IPv4 forward rules of 10.244.0.0/16",
                "IPv4 tunnel guard input rules of 10.244.0.0/16",
                "IPv4 tunnel guard forward rules of 10.244.0.0/16",
            ]
        );
    }

    #[test]
    fn a_node_that_masquerades_is_not_ready_without_its_rules_but_for_guards() {
        let mut rules = node();
        rules.v4.as_mut().unwrap().guard.packets = vec![TunnelPackets::Udp(8472)];
        let importance = |rules: &NodeRules| {
            rules.entries().iter().map(KeyedEntry::importance).collect::<Vec<_>>()
        };
        use Importance::{Optional, Required};
        assert_eq!(importance(&rules), [Required, Required, Optional]);
        rules.masquerade = false;
        assert_eq!(importance(&rules), [Optional, Optional]);
    }

    #[test]
    fn nothing_to_masquerade_and_nothing_to_forward_is_nothing() {
        let mut rules = node();
        rules.v4.as_mut().unwrap().guard.packets = vec![TunnelPackets::Udp(8472)];
        (rules.masquerade, rules.forward) = (false, false);
        assert_eq!(rules.entries(), []);
    }
}
