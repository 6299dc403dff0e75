//! Packet filter rules as values, the same for nftables and iptables.
//!
//! Rules come in blocks, one per flannel network and purpose. Usually a chain holds one block; where
//! two daemons with two networks run on one node, they share the chains, and each must leave the
//! other's block alone. So blocks are recognised, and stand in the order of their networks, whoever
//! writes them.

use flannel_common::{Family, overlap};
use flannel_entries::rules::{
    Masquerade, Purpose, RulesContent, TrafficRules, TunnelGuard, TunnelPackets,
};
use ipnet::IpNet;

/// Set by kube-proxy on packets that it masquerades itself.
pub(crate) const KUBE_MARK: u32 = 0x4000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Applies to packets with kube-proxy's mark alone.
    pub(crate) marked: bool,
    /// Applies to packets that came in by this interface alone.
    pub(crate) incoming: Option<String>,
    pub(crate) source: Option<Side>,
    pub(crate) destination: Option<Side>,
    /// Applies to these packets alone.
    pub(crate) packets: Option<TunnelPackets>,
    pub(crate) verdict: Verdict,
}

/// One end of a packet's way is in a network, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) net: IpNet,
    pub(crate) outside: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Return,
    Accept,
    Drop,
    Masquerade { random: bool },
}

/// The rules of one flannel network for one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) network: IpNet,
    pub(crate) rules: Vec<Rule>,
}

/// What of a chain's other blocks is to stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Those of networks that a running daemon stands for: all else was left by somebody gone.
    Only(Vec<IpNet>),
    /// All but those of networks that were ours: whoever wrote them since we began is running.
    AllBut(Vec<IpNet>),
}

impl Rule {
    pub(crate) const fn always(verdict: Verdict) -> Self {
        let (source, destination) = (None, None);
        Self { marked: false, incoming: None, source, destination, packets: None, verdict }
    }

    fn from_to(source: Option<Side>, destination: Option<Side>, verdict: Verdict) -> Self {
        Self { source, destination, ..Self::always(verdict) }
    }

    /// Only kube-proxy's mark decides.
    fn is_mark(&self) -> bool {
        *self == Self { marked: true, ..Self::from_to(None, None, Verdict::Return) }
    }
}

fn inside(net: IpNet) -> Option<Side> {
    // A network that contains everything needs no condition.
    (net.prefix_len() > 0).then_some(Side { net, outside: false })
}

fn outside(net: IpNet) -> Option<Side> {
    Some(Side { net, outside: true })
}

fn multicast(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert([224, 0, 0, 0].into(), 4),
        Family::V6 => IpNet::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
    }
}

impl Block {
    /// `can_randomise`: whether the packet filter can draw ports at random.
    pub(crate) fn new(wanted: &TrafficRules, can_randomise: bool) -> Self {
        let network = wanted.network;
        match &wanted.content {
            RulesContent::Masquerade(rules) => {
                Self::masquerade(network, rules, rules.random_fully && can_randomise)
            }
            RulesContent::Forward => Self::forward(network),
            RulesContent::GuardInput(guard) => Self::guard(network, guard, None),
            RulesContent::GuardForward(guard) => Self::guard(network, guard, outside(network)),
        }
    }

    fn masquerade(network: IpNet, rules: &Masquerade, random: bool) -> Self {
        use Verdict::Return;
        let (subnet, masquerade) = (rules.subnet, Verdict::Masquerade { random });
        let multicast = multicast(Family::of(network.addr()));
        let mut list = vec![
            // kube-proxy does it.
            Rule { marked: true, ..Rule::from_to(None, None, Return) },
            // Between pods nothing is masqueraded,
            Rule::from_to(inside(subnet), inside(network), Return),
            Rule::from_to(inside(network), inside(subnet), Return),
            // nor what comes from elsewhere to our own pods.
            Rule::from_to(outside(network), inside(subnet), Return),
        ];
        list.extend(rules.exclude.iter().map(|net| Rule::from_to(None, inside(*net), Return)));
        list.extend([
            // What leaves the network would find no way back,
            Rule::from_to(inside(network), outside(multicast), masquerade),
            // nor would the answer of a pod of another node to somebody it can only reach directly.
            Rule::from_to(outside(network), inside(network), masquerade),
        ]);
        Self { network, rules: list }
    }

    fn forward(network: IpNet) -> Self {
        let list = vec![
            Rule::from_to(inside(network), None, Verdict::Accept),
            Rule::from_to(None, inside(network), Verdict::Accept),
        ];
        Self { network, rules: list }
    }

    /// Drops what pods, known by their addresses or by the interface they are behind, send to the tunnel.
    fn guard(network: IpNet, guard: &TunnelGuard, destination: Option<Side>) -> Self {
        let drop = Rule { destination, ..Rule::always(Verdict::Drop) };
        let mut list = Vec::new();
        for packets in &guard.packets {
            let packets = Some(*packets);
            list.push(Rule { source: inside(guard.pods), packets, ..drop.clone() });
            list.extend(guard.pod_links.iter().map(|link| {
                let incoming = Some(link.clone());
                Rule { incoming, packets, ..drop.clone() }
            }));
        }
        Self { network, rules: list }
    }

    /// The complete blocks among a chain's rules, of which `None` is one that no flannel writes.
    pub(crate) fn recognise(purpose: Purpose, chain: &[Option<Rule>]) -> Vec<Self> {
        match purpose {
            Purpose::Masquerade => chain
                .chunk_by(|_, next| !next.as_ref().is_some_and(Rule::is_mark))
                .filter_map(Self::recognise_masquerade)
                .collect(),
            Purpose::Forward => chain.windows(2).filter_map(Self::recognise_forward).collect(),
            Purpose::GuardInput | Purpose::GuardForward => Self::recognise_guards(chain),
        }
    }

    fn recognise_masquerade(chunk: &[Option<Rule>]) -> Option<Self> {
        let rules: Vec<&Rule> = chunk.iter().map(Option::as_ref).collect::<Option<_>>()?;
        let [_, first, _, _, excluded @ .., _, last] = rules.as_slice() else { return None };
        let (subnet, network) = (first.source?.net, first.destination?.net);
        let Verdict::Masquerade { random } = last.verdict else { return None };
        let everything = IpNet::new(network.network(), 0).ok()?.trunc();
        let exclude =
            excluded.iter().map(|rule| rule.destination.map_or(everything, |to| to.net)).collect();
        let rules_of = Masquerade { subnet, exclude, random_fully: random };
        let block = Self::masquerade(network, &rules_of, random);
        block.rules.iter().eq(rules).then_some(block)
    }

    fn recognise_forward(pair: &[Option<Rule>]) -> Option<Self> {
        let [Some(from), Some(to)] = pair else { return None };
        let network = from.source?.net;
        let block = Self::forward(network);
        block.rules.iter().eq([from, to]).then_some(block)
    }

    /// A rule with pods' addresses begins a block, unless the block before is of the same.
    fn recognise_guards(chain: &[Option<Rule>]) -> Vec<Self> {
        let is_guard = |rule: &&Rule| rule.verdict == Verdict::Drop && rule.packets.is_some();
        let mut blocks: Vec<Self> = Vec::new();
        for rule in chain.iter().flatten().filter(is_guard) {
            let begins = |pods: &Side| blocks.last().is_none_or(|it| it.network != pods.net);
            if let Some(pods) = rule.source.filter(begins) {
                blocks.push(Self { network: pods.net, rules: vec![rule.clone()] });
            } else if let Some(block) = blocks.last_mut() {
                block.rules.push(rule.clone());
            }
        }
        blocks
    }

    /// All that belongs into a chain: our own block and those that stay beside it.
    pub(crate) fn chain(self, purpose: Purpose, now: &[Option<Rule>], keep: &Keep) -> Vec<Rule> {
        let mut blocks = Self::recognise(purpose, now);
        blocks.retain(|block| {
            !overlap(&block.network, &self.network)
                && match keep {
                    Keep::Only(networks) => networks.contains(&block.network),
                    Keep::AllBut(former) => !former.contains(&block.network),
                }
        });
        blocks.push(self);
        blocks.sort_by_key(|block| block.network);
        blocks.dedup_by_key(|block| block.network);
        blocks.into_iter().flat_map(|block| block.rules).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Blocks as _, family, net};
    use flannel_entries::rules::FamilyRules;

    fn seen(block: &Block) -> Vec<Option<Rule>> {
        block.rules.iter().cloned().map(Some).collect()
    }

    fn masquerade(network: &str, subnet: &str) -> Block {
        family(network, subnet).block(Purpose::Masquerade, true)
    }

    const NOBODY: Keep = Keep::Only(Vec::new());
    const EVERYBODY: Keep = Keep::AllBut(Vec::new());

    #[test]
    fn exclusions_stand_before_both_masquerade_rules() {
        let mut rules = family("10.244.0.0/16", "10.244.1.0/24");
        rules.exclude = vec![net("192.168.0.0/16"), net("0.0.0.0/0")];
        let block = rules.block(Purpose::Masquerade, false);
        assert_eq!(block.rules.len(), 8);
        assert_eq!(block.rules[4].destination.unwrap().net, net("192.168.0.0/16"));
        assert_eq!(block.rules[5].destination, None);
        assert!(block.rules[6..].iter().all(|r| matches!(r.verdict, Verdict::Masquerade { .. })));
        assert_eq!(Block::recognise(Purpose::Masquerade, &seen(&block)), [block]);
    }

    #[test]
    fn a_block_is_recognised_among_other_rules_and_only_when_complete() {
        let block = masquerade("10.244.0.0/16", "10.244.1.0/24");
        let mut chain = vec![None];
        chain.extend(seen(&block));
        assert_eq!(Block::recognise(Purpose::Masquerade, &chain), std::slice::from_ref(&block));
        chain.push(None);
        assert_eq!(Block::recognise(Purpose::Masquerade, &chain), []);
        for missing in 0..6 {
            let mut chain = seen(&block);
            chain.remove(missing);
            assert_eq!(Block::recognise(Purpose::Masquerade, &chain), [], "without {missing}");
        }
    }

    #[test]
    fn forward_blocks_are_pairs() {
        let one = Block::forward(net("10.244.0.0/16"));
        let two = Block::forward(net("10.9.0.0/16"));
        let mut chain = seen(&one);
        chain.extend(seen(&two));
        assert_eq!(Block::recognise(Purpose::Forward, &chain), [one, two]);
    }

    fn guarded(network: &str, subnet: &str, links: &[&str]) -> FamilyRules {
        let mut rules = family(network, subnet);
        rules.guard.packets = vec![TunnelPackets::Udp(8472), TunnelPackets::Protocol(4)];
        rules.guard.pod_links = links.iter().map(ToString::to_string).collect();
        rules.guard.forgeable = true;
        rules
    }

    #[test]
    fn guards_drop_pods_packets_to_the_tunnel_by_address_and_by_interface() {
        let rules = guarded("10.244.0.0/16", "10.244.1.0/24", &["cni0"]);
        let here = rules.block(Purpose::GuardInput, true).rules;
        let said: Vec<_> =
            here.iter().map(|r| (r.source.map(|s| s.net), r.incoming.as_deref())).collect();
        let by_address = (Some(net("10.244.0.0/16")), None);
        assert_eq!(said, [by_address, (None, Some("cni0")), by_address, (None, Some("cni0"))]);
        assert!(here.iter().all(|r| r.destination.is_none() && r.verdict == Verdict::Drop));

        let passing = rules.block(Purpose::GuardForward, true).rules;
        let outside = outside(net("10.244.0.0/16"));
        assert!(passing.iter().all(|r| r.destination == outside), "pods reach each other's ports");
    }

    #[test]
    fn guards_of_two_daemons_stand_side_by_side() {
        let one = guarded("10.244.0.0/16", "10.244.1.0/24", &["cni0"]);
        let two = guarded("10.9.0.0/16", "10.9.1.0/24", &["cni1", "docker0"]);
        for purpose in [Purpose::GuardInput, Purpose::GuardForward] {
            let [one, two] = [&one, &two].map(|rules| rules.block(purpose, true));
            let both = one.clone().chain(purpose, &seen(&two), &EVERYBODY);
            assert_eq!(both.len(), 4 + 6);
            let now: Vec<_> = both.iter().cloned().map(Some).collect();
            assert_eq!(two.clone().chain(purpose, &now, &EVERYBODY), both);
            assert_eq!(two.clone().chain(purpose, &now, &NOBODY), two.rules);
            let mut foreign = now.clone();
            foreign.insert(1, None);
            assert_eq!(one.chain(purpose, &foreign, &EVERYBODY), both, "what is foreign goes");
        }
    }

    #[test]
    fn two_daemons_agree_on_one_order() {
        let one = masquerade("10.244.0.0/16", "10.244.1.0/24");
        let two = masquerade("10.9.0.0/16", "10.9.1.0/24");
        let purpose = Purpose::Masquerade;
        let beside_two = one.clone().chain(purpose, &seen(&two), &EVERYBODY);
        let beside_one = two.clone().chain(purpose, &seen(&one), &EVERYBODY);
        assert_eq!(beside_one, beside_two);
        assert_eq!(beside_one.len(), 12);
        let now: Vec<_> = beside_one.iter().cloned().map(Some).collect();
        assert_eq!(one.chain(purpose, &now, &EVERYBODY), beside_one, "and both are content");
    }

    #[test]
    fn what_a_former_run_left_goes_and_what_a_running_daemon_keeps_stays() {
        let own = masquerade("10.244.0.0/16", "10.244.1.0/24");
        let other = masquerade("10.9.0.0/16", "10.9.1.0/24");
        let purpose = Purpose::Masquerade;
        let alone = |keep: &Keep| own.clone().chain(purpose, &seen(&other), keep) == own.rules;
        assert!(alone(&NOBODY));
        assert!(alone(&Keep::AllBut(vec![net("10.9.0.0/16")])));
        assert!(!alone(&Keep::Only(vec![net("10.9.0.0/16")])));
        assert!(!alone(&EVERYBODY));
    }

    #[test]
    fn the_own_networks_old_subnet_is_never_kept() {
        let own = masquerade("10.244.0.0/16", "10.244.1.0/24");
        for old in [
            masquerade("10.244.0.0/16", "10.244.9.0/24"),
            masquerade("10.0.0.0/8", "10.244.9.0/24"),
            masquerade("10.244.128.0/17", "10.244.129.0/24"),
        ] {
            assert_eq!(own.clone().chain(Purpose::Masquerade, &seen(&old), &EVERYBODY), own.rules);
        }
    }
}
