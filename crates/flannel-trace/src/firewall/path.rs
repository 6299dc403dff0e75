//! A packet's way through chains of rules, where not all can be told from outside.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// Where rules are asked.
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

/// Whether a packet begins a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversation {
    New,
    Established,
}

/// A packet as rules see it.
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
    /// Bytes of the whole IP packet.
    pub length: u32,
    pub conversation: Conversation,
    /// It asks or says who has an address, and is not an IP packet.
    pub is_arp: bool,
    /// The host whose rules it passes.
    pub host: Arc<HostFacts>,
}

/// What rules depend on beyond the packet itself.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// Addresses of the host itself, to which answers come back.
    pub(crate) addresses: Vec<IpAddr>,
    /// A rule keeps the kernel from tracking some connections.
    pub(crate) may_untrack: bool,
}

impl HostFacts {
    /// Whether answers to a packet that gets this sender come elsewhere than to this host.
    pub(crate) fn loses_answers_to(&self, sender: &str) -> bool {
        sender.parse().is_ok_and(|sender: IpAddr| !self.addresses.contains(&sender))
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
pub const SMALL: u32 = 84;

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
            length: SMALL,
            conversation: Conversation::New,
            is_arp: false,
            host: Arc::default(),
        }
    }

    /// Whether it passes this device's hook for frames that come in.
    pub(crate) fn comes_by(&self, device: &str) -> bool {
        let [came, _] = &self.bridge_ports;
        !device.is_empty() && (self.iif == device || came.as_deref() == Some(device))
    }

    /// Whether it passes this device's hook for frames that go out.
    pub(crate) fn goes_by(&self, device: &str) -> bool {
        let [_, goes] = &self.bridge_ports;
        !device.is_empty() && (self.oif == device || goes.as_deref() == Some(device))
    }
}

/// Who drops a packet, and how that is undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drop {
    /// In words.
    pub rule: String,
    pub fix: String,
    /// Packets that it has dropped, where it counts them.
    pub packets: Option<u64>,
}

impl Drop {
    /// The program whose rules these are, and which would write them again.
    pub fn manager(&self) -> Option<&'static str> {
        if self.rule.contains("firewalld") {
            Some("firewalld")
        } else if self.rule.contains("ufw-") {
            Some("ufw")
        } else {
            None
        }
    }
}

/// Whether a rule is for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Yes,
    No,
    /// That hangs on what is not known here.
    Maybe,
}

impl Match {
    pub(crate) fn of(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Maybe, _) | (_, Self::Maybe) => Self::Maybe,
            _ => Self::Yes,
        }
    }

    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::Maybe, _) | (_, Self::Maybe) => Self::Maybe,
            _ => Self::No,
        }
    }

    pub(crate) fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            Self::Maybe => Self::Maybe,
        }
    }
}

/// What a rule does with a packet that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Drop,
    Jump(String),
    Goto(String),
    Return,
    /// It goes on to the next rule.
    Continue,
}

/// What may become of a packet in a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    /// It may be let through.
    pub(crate) accepted: bool,
    /// Rules that may drop it, in order.
    pub(crate) droppers: Vec<Drop>,
    /// It may come to the chain's end.
    pub(crate) falls_through: bool,
}

/// A rule as far as it matters to one packet.
pub(crate) struct Judged {
    pub(crate) is_for: Match,
    pub(crate) verdict: Verdict,
    /// If it drops.
    pub(crate) drop: Option<Drop>,
}

/// Rules of chains lead to each other at most so deep.
const DEEPEST: usize = 32;

/// `chain`: the rules of a chain, in order.
pub(crate) fn walk(chain: &str, depth: usize, rules: &dyn Fn(&str) -> Vec<Judged>) -> Fate {
    let mut fate = Fate::default();
    if depth > DEEPEST {
        return Fate { falls_through: true, ..fate };
    }
    for rule in rules(chain) {
        if rule.is_for == Match::No {
            continue;
        }
        let sure = rule.is_for == Match::Yes;
        match rule.verdict {
            Verdict::Continue => {}
            Verdict::Accept => {
                fate.accepted = true;
                if sure {
                    return fate;
                }
            }
            Verdict::Drop => {
                fate.droppers.extend(rule.drop);
                if sure {
                    return fate;
                }
            }
            Verdict::Return => {
                fate.falls_through = true;
                if sure {
                    return fate;
                }
            }
            Verdict::Jump(to) => {
                let there = walk(&to, depth + 1, rules);
                fate.accepted |= there.accepted;
                fate.droppers.extend(there.droppers);
                if sure && !there.falls_through {
                    return fate;
                }
            }
            Verdict::Goto(to) => {
                let there = walk(&to, depth + 1, rules);
                fate.accepted |= there.accepted;
                fate.droppers.extend(there.droppers);
                fate.falls_through |= there.falls_through;
                if sure {
                    return fate;
                }
            }
        }
    }
    fate.falls_through = true;
    fate
}

impl Fate {
    /// Who drops the packet, if it is dropped whatever is not known; else those who may. `policy`: who drops at the
    /// end of the chain.
    pub(crate) fn dropped_by(self, policy: Option<Drop>) -> Dropped {
        let first = self.droppers.first().cloned();
        let surely = match (self.accepted, self.falls_through, policy) {
            (false, false, _) => first,
            (false, true, Some(policy)) => Some(first.unwrap_or(policy)),
            _ => None,
        };
        match surely {
            Some(drop) => Dropped { surely: Some(drop), perhaps: Vec::new() },
            None => Dropped { surely: None, perhaps: self.droppers },
        }
    }
}

/// What rules do to a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Who drops it, whatever is not known of it.
    pub surely: Option<Drop>,
    /// Who may drop it: some packets (a rate, a share, a mark), and not others.
    pub perhaps: Vec<Drop>,
}

impl Dropped {
    /// With those of a chain that the packet comes to afterwards. `false`: it comes to no other.
    pub(crate) fn followed_by(&mut self, later: Self) -> bool {
        self.perhaps.extend(later.perhaps);
        self.surely = self.surely.take().or(later.surely);
        self.surely.is_none()
    }
}

/// An address against an address or a network, as rules write them.
pub(crate) fn address(ip: IpAddr, written: &str) -> Match {
    let net =
        written.parse::<IpNet>().ok().or_else(|| written.parse::<IpAddr>().ok().map(IpNet::from));
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

    fn rule(is_for: Match, verdict: Verdict) -> Judged {
        Judged { is_for, drop: (verdict == Verdict::Drop).then(|| drop("rule")), verdict }
    }

    #[test]
    fn only_what_is_dropped_either_way_is_dropped() {
        let fate = |rules: &[(Match, Verdict)]| {
            let chain = |name: &str| match name {
                "input" => {
                    rules.iter().map(|(is_for, verdict)| rule(*is_for, verdict.clone())).collect()
                }
                "open" => vec![rule(Match::Maybe, Verdict::Accept)],
                _ => vec![rule(Match::Yes, Verdict::Drop)],
            };
            walk("input", 0, &chain)
        };
        let dropped = |rules: &[(Match, Verdict)]| fate(rules).dropped_by(None).surely.is_some();
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
        assert!(fate(&[]).dropped_by(Some(drop("policy"))).surely.is_some());
        assert!(
            fate(&[(Match::Maybe, Verdict::Accept)])
                .dropped_by(Some(drop("policy")))
                .surely
                .is_none()
        );
        let perhaps = fate(&[(Match::Maybe, Verdict::Drop)]).dropped_by(None).perhaps;
        assert_eq!(perhaps, [drop("rule")], "named, though nobody knows");
    }
}
