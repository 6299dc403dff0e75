//! A packet's way through chains of rules, where not all can be told from outside.

use std::net::IpAddr;

use ipnet::IpNet;

/// Where rules are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    In,
    Out,
    Forward,
}

/// The first packet of a conversation.
#[derive(Clone, Debug)]
pub struct Packet {
    pub hook: Hook,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: u8,
    /// To which it is sent; 0 where there are none.
    pub port: u16,
    pub iif: String,
    pub oif: String,
}

/// Who drops a packet, and how that is undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drop {
    /// In words.
    pub rule: String,
    pub fix: String,
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
    /// It may be dropped: by whom first.
    pub(crate) dropped: Option<Drop>,
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
                fate.dropped = fate.dropped.or(rule.drop);
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
                fate.dropped = fate.dropped.or(there.dropped);
                if sure && !there.falls_through {
                    return fate;
                }
            }
            Verdict::Goto(to) => {
                let there = walk(&to, depth + 1, rules);
                fate.accepted |= there.accepted;
                fate.dropped = fate.dropped.or(there.dropped);
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
    /// Who drops the packet, if it is dropped whatever is not known. `policy`: who drops at the end of the chain.
    pub(crate) fn surely_dropped(self, policy: Option<Drop>) -> Option<Drop> {
        match (self.accepted, self.falls_through, policy) {
            (false, false, _) => self.dropped,
            (false, true, Some(policy)) => Some(self.dropped.unwrap_or(policy)),
            _ => None,
        }
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
        Drop { rule: rule.to_owned(), fix: String::new() }
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
        let dropped = |rules: &[(Match, Verdict)]| fate(rules).surely_dropped(None).is_some();
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
        assert!(fate(&[]).surely_dropped(Some(drop("policy"))).is_some());
        assert!(
            fate(&[(Match::Maybe, Verdict::Accept)]).surely_dropped(Some(drop("policy"))).is_none()
        );
    }
}
