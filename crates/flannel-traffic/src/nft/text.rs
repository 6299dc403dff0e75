//! Rules in the words of `nft`. Pure.
//!
//! Names, comments and order are the Go flannel's; the rules mean what its iptables rules mean.

use crate::iptables::text::protocol_number;
use crate::rule::{KUBE_MARK, Purpose, Rule, Side, Verdict};
use crate::{Family, TunnelPackets};

/// What not every nft and kernel can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    /// Comments on tables and chains.
    pub(crate) comments: bool,
    /// `masquerade fully-random`.
    pub(crate) random: bool,
}

struct Chain {
    name: &'static str,
    hook: &'static str,
    /// The same as a number.
    numeric_hook: &'static str,
    comment: &'static str,
}

const POSTRTG: Chain = Chain {
    name: "postrtg",
    hook: "type nat hook postrouting priority srcnat; policy accept;",
    numeric_hook: "type nat hook postrouting priority 100; policy accept;",
    comment: "chain to manage traffic masquerading by flannel",
};
const FORWARD: Chain = Chain {
    name: "forward",
    hook: "type filter hook forward priority filter; policy accept;",
    numeric_hook: "type filter hook forward priority 0; policy accept;",
    comment: "chain to accept flannel traffic",
};

const TUNNEL_INPUT: Chain = Chain {
    name: "tunnelin",
    hook: "type filter hook input priority filter; policy accept;",
    numeric_hook: "type filter hook input priority 0; policy accept;",
    comment: "chain to keep packets of pods out of the tunnel of this node",
};
const TUNNEL_FORWARD: Chain = Chain {
    name: "tunnelout",
    hook: "type filter hook forward priority filter; policy accept;",
    numeric_hook: "type filter hook forward priority 0; policy accept;",
    comment: "chain to keep packets of pods out of the tunnels of other nodes",
};

impl Chain {
    fn of(purpose: Purpose) -> &'static Self {
        match purpose {
            Purpose::Masquerade => &POSTRTG,
            Purpose::Forward => &FORWARD,
            Purpose::GuardInput => &TUNNEL_INPUT,
            Purpose::GuardForward => &TUNNEL_FORWARD,
        }
    }
}

/// The table's name in `nft` and in the kernel.
pub(crate) fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel-ipv4",
        Family::V6 => "flannel-ipv6",
    }
}

pub(crate) fn protocol(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Our table as `nft list table` shows it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    exists: bool,
    /// The rules of the chains that are there; `None` is a rule that no flannel writes.
    chains: Vec<(Purpose, Vec<Option<Rule>>)>,
    /// It holds what does not belong there, or a chain is not what it should be.
    odd: bool,
}

impl Listing {
    pub(crate) fn rules(&self, purpose: Purpose) -> Option<&[Option<Rule>]> {
        let chain = self.chains.iter().find(|(of, _)| *of == purpose);
        chain.map(|(_, rules)| rules.as_slice())
    }

    pub(crate) fn parse(family: Family, text: &str) -> Self {
        let mut listing = Self::default();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let Some(opening) = lines.next() else { return listing };
        listing.exists = true;
        listing.odd = opening != format!("table {} {} {{", protocol(family), table(family));
        while let Some(line) = lines.next() {
            match line.strip_prefix("chain ").and_then(|rest| rest.strip_suffix(" {")) {
                Some(name) => {
                    let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "}").collect();
                    listing.take_chain(family, name, &body);
                }
                None if line == "}" || line.starts_with("comment ") => {}
                None => listing.odd = true,
            }
        }
        listing
    }

    fn take_chain(&mut self, family: Family, name: &str, body: &[&str]) {
        let purpose = Purpose::ALL.into_iter().find(|purpose| Chain::of(*purpose).name == name);
        let Some(purpose) = purpose else {
            self.odd = true;
            return;
        };
        let chain = Chain::of(purpose);
        let is_hook = |line: &&&str| **line == chain.hook || **line == chain.numeric_hook;
        if !body.iter().any(|line| is_hook(&line)) {
            self.odd = true;
        }
        let rules = body
            .iter()
            .filter(|line| !line.starts_with("comment ") && !is_hook(line))
            .map(|line| parse_rule(family, line))
            .collect();
        self.chains.push((purpose, rules));
    }

    /// The script that makes the table hold exactly these chains: one transaction. A chain that stays
    /// is emptied and filled, not made anew, so that packets on their way through it are not lost.
    pub(crate) fn change(
        &self,
        family: Family,
        wanted: &[(Purpose, Vec<Rule>)],
        features: Features,
    ) -> Option<String> {
        let named = format!("{} {}", protocol(family), table(family));
        let mut lines = Vec::new();
        let make_anew = !self.exists || self.odd;
        if self.odd {
            lines.push(format!("delete table {named}"));
        }
        if make_anew {
            let comment = format!("rules for {}", table(family));
            lines.push(format!("add table {named}{}", braced("", &comment, features)));
        }
        for purpose in Purpose::ALL {
            let chain = Chain::of(purpose);
            let named = format!("{named} {}", chain.name);
            let now = self.rules(purpose).filter(|_| !make_anew);
            let wanted = wanted.iter().find(|(p, _)| *p == purpose).map(|(_, rules)| rules);
            match (now, wanted) {
                (None, None) => continue,
                (Some(now), Some(rules))
                    if now.iter().map(Option::as_ref).eq(rules.iter().map(Some)) =>
                {
                    continue;
                }
                (Some(_), Some(_)) => lines.push(format!("flush chain {named}")),
                (Some(_), None) => {
                    lines.push(format!("flush chain {named}"));
                    lines.push(format!("delete chain {named}"));
                }
                (None, Some(_)) => {
                    let body = braced(chain.hook, chain.comment, features);
                    lines.push(format!("add chain {named}{body}"));
                }
            }
            for rule in wanted.into_iter().flatten() {
                lines.push(format!("add rule {named} {}", line(family, rule)));
            }
        }
        (!lines.is_empty()).then(|| lines.join("\n") + "\n")
    }
}

fn braced(body: &str, comment: &str, features: Features) -> String {
    let comment = if features.comments { format!("comment \"{comment}\";") } else { String::new() };
    match [body, &comment].join(" ").trim() {
        "" => String::new(),
        inner => format!(" {{ {inner} }}"),
    }
}

fn line(family: Family, rule: &Rule) -> String {
    let protocol = protocol(family);
    let mut line = String::new();
    if rule.marked {
        line += &format!("meta mark & {KUBE_MARK:#010x} == {KUBE_MARK:#010x} ");
    }
    if let Some(link) = &rule.incoming {
        line += &format!("iifname \"{link}\" ");
    }
    for (field, side) in [("saddr", rule.source), ("daddr", rule.destination)] {
        if let Some(Side { net, outside }) = side {
            line += &format!("{protocol} {field} {}{net} ", if outside { "!= " } else { "" });
        }
    }
    match rule.packets {
        Some(TunnelPackets::Udp(port)) => line += &format!("udp dport {port} "),
        Some(TunnelPackets::Protocol(number)) => line += &format!("meta l4proto {number} "),
        None => {}
    }
    line + match rule.verdict {
        Verdict::Return => "return",
        Verdict::Accept => "accept",
        Verdict::Drop => "drop",
        Verdict::Masquerade { random: false } => "masquerade",
        Verdict::Masquerade { random: true } => "masquerade fully-random",
    }
}

/// `None` for anything that `line` would not have written.
fn parse_rule(family: Family, line: &str) -> Option<Rule> {
    let mut rule = Rule::always(Verdict::Return);
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut rest = words.as_slice();
    loop {
        rest = match rest {
            ["meta", "mark", "&", mask, "==", value, rest @ ..] => {
                (number(mask)? == KUBE_MARK && number(value)? == KUBE_MARK).then_some(())?;
                rule.marked = true;
                rest
            }
            ["iifname", link, rest @ ..] => {
                let link = link.strip_prefix('"')?.strip_suffix('"')?;
                rule.incoming = Some(link.to_owned());
                rest
            }
            ["udp", "dport", port, rest @ ..] => {
                rule.packets = Some(TunnelPackets::Udp(port.parse().ok()?));
                rest
            }
            ["meta", "l4proto", protocol, rest @ ..] => {
                rule.packets = Some(TunnelPackets::Protocol(protocol_number(protocol)?));
                rest
            }
            [protocol_, field, rest @ ..] if *protocol_ == protocol(family) => {
                let (outside, rest) = match rest {
                    ["!=", rest @ ..] => (true, rest),
                    rest => (false, rest),
                };
                let (net, rest) = rest.split_first()?;
                // A single address is shown without its length.
                let net = net
                    .parse()
                    .ok()
                    .or_else(|| Some(net.parse::<std::net::IpAddr>().ok()?.into()))?;
                let side = Some(Side { net, outside });
                match *field {
                    "saddr" => rule.source = side,
                    "daddr" => rule.destination = side,
                    _ => return None,
                }
                rest
            }
            verdict => {
                rule.verdict = match verdict {
                    ["return"] => Verdict::Return,
                    ["accept"] => Verdict::Accept,
                    ["drop"] => Verdict::Drop,
                    ["masquerade"] => Verdict::Masquerade { random: false },
                    ["masquerade", "fully-random"] => Verdict::Masquerade { random: true },
                    _ => return None,
                };
                return Some(rule);
            }
        }
    }
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
