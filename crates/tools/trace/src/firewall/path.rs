//! A packet's way through chains of rules, where not all can be told from outside.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use flannel_nft::Verdict;
use ipnet::IpNet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    In,
    Out,
    Forward,
    /// A frame of a bridge's port for the host itself.
    BridgeIn,
    /// A frame of the host for a bridge's port.
    BridgeOut,
    /// A frame from port to port.
    BridgeForward,
}

impl Hook {
    pub(crate) fn is_of_bridge(self) -> bool {
        matches!(self, Self::BridgeIn | Self::BridgeOut | Self::BridgeForward)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversation {
    New,
    Established,
}

#[derive(Clone, Debug)]
pub struct Packet {
    pub hook: Hook,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: u8,
    /// Port to which it is sent; `None` where it may be any.
    pub port: Option<u16>,
    pub iif: String,
    pub oif: String,
    /// Port of a bridge by which it came, where that is known; and the one by which it goes.
    pub bridge_ports: [Option<String>; 2],
    pub length: u32,
    pub conversation: Conversation,
    /// Whether it asks or says who has an address, and is not an IP packet.
    pub is_arp: bool,
    pub host: Arc<HostFacts>,
}

/// What rules depend on beyond the packet itself.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    pub(crate) addresses: Vec<IpAddr>,
    /// Devices by the numbers that rules may have instead of their names.
    pub(crate) links: BTreeMap<String, u32>,
    /// A rule keeps the kernel from tracking some connections.
    pub(crate) may_untrack: bool,
}

impl HostFacts {
    /// Whether answers to a packet that gets this sender come elsewhere than to this host.
    pub(crate) fn loses_answers_to(&self, sender: IpAddr) -> bool {
        !self.addresses.contains(&sender)
    }

    /// Whether a state of conntrack that rules name is that of a packet.
    pub(crate) fn has_state(&self, conversation: Conversation, written: &str) -> Match {
        match (written.to_ascii_lowercase().as_str(), conversation) {
            ("new", Conversation::New) | ("established", Conversation::Established) => Match::Yes,
            ("untracked", _) if self.may_untrack => Match::Maybe,
            _ => Match::No,
        }
    }
}

/// A packet of a pod is forwarded by two nodes: with so small a TTL it does not come to the other pod.
pub(crate) const TOO_FEW_HOPS: u64 = 2;

/// Bytes of a packet that carries next to nothing.
pub const SMALL_PACKET: u32 = 84;

impl Packet {
    /// The first packet of a conversation, a small one, of any port.
    pub fn first(hook: Hook, src: IpAddr, dst: IpAddr, protocol: u8) -> Self {
        Self {
            hook,
            src,
            dst,
            protocol,
            port: None,
            iif: String::new(),
            oif: String::new(),
            bridge_ports: [None, None],
            length: SMALL_PACKET,
            conversation: Conversation::New,
            is_arp: false,
            host: Arc::default(),
        }
    }

    /// Whether it passes a device's hook for frames that come in, or that go out.
    pub(crate) fn passes(&self, device: &str, comes_in: bool) -> bool {
        let [came, goes] = &self.bridge_ports;
        let (name, port) = if comes_in { (&self.iif, came) } else { (&self.oif, goes) };
        is_named(device, name) || port.as_ref().is_some_and(|port| is_named(device, port))
    }
}

/// `pattern`: a name, or how names begin and an asterisk.
fn is_named(pattern: &str, name: &str) -> bool {
    let is_it = |beginning: &str| name.starts_with(beginning);
    !name.is_empty() && pattern.strip_suffix('*').map_or(name == pattern, is_it)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drop {
    pub rule: String,
    pub fix: String,
    pub packets: Option<u64>,
}

impl Drop {
    /// The program whose rules these are, and which would write them again.
    pub fn manager(&self) -> Option<&'static str> {
        let managers = [("firewalld", "firewalld"), ("ufw-", "ufw")];
        managers.into_iter().find(|(mark, _)| self.rule.contains(mark)).map(|(_, name)| name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// That hangs on what is not known here.
    Maybe,
    Yes,
}

impl Match {
    pub(crate) fn of(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        self.min(other)
    }

    pub(crate) fn or(self, other: Self) -> Self {
        self.max(other)
    }

    pub(crate) fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            Self::Maybe => Self::Maybe,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainOutcome {
    pub(crate) accepted: bool,
    pub(crate) droppers: Vec<Drop>,
    pub(crate) falls_through: bool,
}

pub(crate) struct JudgedRule {
    pub(crate) is_for: Match,
    pub(crate) verdict: Verdict,
    pub(crate) drop: Option<Drop>,
}

/// Rules of chains lead to each other at most so deep.
const MAX_CHAIN_DEPTH: usize = 32;

/// Follows a packet through a chain. `rules`: the rules of a chain, in order.
pub(crate) fn walk(
    chain: &str,
    depth: usize,
    rules: &dyn Fn(&str) -> Vec<JudgedRule>,
) -> ChainOutcome {
    let mut outcome = ChainOutcome::default();
    if depth > MAX_CHAIN_DEPTH {
        return ChainOutcome { falls_through: true, ..outcome };
    }
    for rule in rules(chain) {
        if rule.is_for == Match::No {
            continue;
        }
        let mut goes_on = rule.is_for != Match::Yes;
        match &rule.verdict {
            Verdict::Continue => goes_on = true,
            Verdict::Accept => outcome.accepted = true,
            Verdict::Drop => outcome.droppers.extend(rule.drop),
            Verdict::Return => outcome.falls_through = true,
            Verdict::Jump(to) | Verdict::Goto(to) => {
                let there = walk(to, depth + 1, rules);
                outcome.accepted |= there.accepted;
                outcome.droppers.extend(there.droppers);
                match rule.verdict {
                    Verdict::Jump(_) => goes_on |= there.falls_through,
                    _ => outcome.falls_through |= there.falls_through,
                }
            }
        }
        if !goes_on {
            return outcome;
        }
    }
    outcome.falls_through = true;
    outcome
}

impl ChainOutcome {
    /// Who drops the packet for sure, else those who may. `policy`: who drops at the end of the chain.
    pub(crate) fn dropped_by(self, policy: Option<Drop>) -> Dropped {
        let first = self.droppers.first().cloned();
        let surely = match (self.accepted, self.falls_through, policy) {
            (false, false, _) => first,
            (false, true, Some(policy)) => Some(first.unwrap_or(policy)),
            _ => None,
        };
        let perhaps = if surely.is_some() { Vec::new() } else { self.droppers };
        Dropped { surely, perhaps }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    pub surely: Option<Drop>,
    /// What may drop it: some packets (a rate, a share, a mark), and not others.
    pub perhaps: Vec<Drop>,
}

impl Dropped {
    /// Adds what a later chain does. `false`: the packet comes to no other chain.
    pub(crate) fn followed_by(&mut self, later: Self) -> bool {
        self.perhaps.extend(later.perhaps);
        self.surely = self.surely.take().or(later.surely);
        self.surely.is_none()
    }
}

/// An address against an address or a network, as rules write them.
pub(crate) fn address(ip: IpAddr, written: &str) -> Match {
    let net = written.parse().or_else(|_| written.parse::<IpAddr>().map(IpNet::from));
    net.map_or(Match::Maybe, |net| Match::of(net.contains(&ip)))
}

pub(crate) fn protocol_number(written: &str) -> Option<u8> {
    Some(match written {
        "icmp" => 1,
        "ipip" | "ipencap" => 4,
        "tcp" => 6,
        "udp" => 17,
        "esp" => 50,
        "ah" => 51,
        "icmpv6" | "ipv6-icmp" => 58,
        "sctp" => 132,
        other => return other.parse().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop(rule: &str) -> Drop {
        Drop { rule: rule.to_owned(), fix: String::new(), packets: None }
    }

    fn rule(is_for: Match, verdict: Verdict) -> JudgedRule {
        JudgedRule { is_for, drop: (verdict == Verdict::Drop).then(|| drop("rule")), verdict }
    }

    #[test]
    fn only_what_is_dropped_either_way_is_dropped() {
        let outcome = |rules: &[(Match, Verdict)]| {
            let chain = |name: &str| match name {
                "input" => {
                    rules.iter().map(|(is_for, verdict)| rule(*is_for, verdict.clone())).collect()
                }
                "open" => vec![rule(Match::Maybe, Verdict::Accept)],
                _ => vec![rule(Match::Yes, Verdict::Drop)],
            };
            walk("input", 0, &chain)
        };
        let dropped = |rules: &[(Match, Verdict)]| outcome(rules).dropped_by(None).surely.is_some();
        assert!(!dropped(&[]));
        assert!(dropped(&[(Match::Yes, Verdict::Drop)]));
        assert!(!dropped(&[(Match::Maybe, Verdict::Drop)]));
        assert!(!dropped(&[(Match::Maybe, Verdict::Accept), (Match::Yes, Verdict::Drop)]));
        assert!(dropped(&[
            (Match::No, Verdict::Accept),
            (Match::Yes, Verdict::Jump("shut".to_owned()))
        ]));
        assert!(!dropped(&[
            (Match::Yes, Verdict::Jump("open".to_owned())),
            (Match::Yes, Verdict::Drop)
        ]));
        assert!(!dropped(&[(Match::Yes, Verdict::Return), (Match::Yes, Verdict::Drop)]));
        assert!(outcome(&[]).dropped_by(Some(drop("policy"))).surely.is_some());
        assert!(
            outcome(&[(Match::Maybe, Verdict::Accept)])
                .dropped_by(Some(drop("policy")))
                .surely
                .is_none()
        );
        let perhaps = outcome(&[(Match::Maybe, Verdict::Drop)]).dropped_by(None).perhaps;
        assert_eq!(perhaps, [drop("rule")], "named, though nobody knows");
    }
}
