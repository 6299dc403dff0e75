//! Rules in the words of `iptables-save` and `iptables-restore`. Pure.
//!
//! The order of chains, comments and options is the Go flannel's: people and tests know these lines.

use flannel_entries::rules::{Purpose, TunnelPackets};
use flannel_nft::{SavedLine, read_saved, split_words};

use crate::rule::{KUBE_MARK, Rule, Side, Verdict};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) table: &'static str,
    /// The built-in chain that jumps to ours.
    pub(crate) base: &'static str,
    pub(crate) chain: &'static str,
    pub(crate) comment: &'static str,
}

const NAT: Place =
    Place { table: "nat", base: "POSTROUTING", chain: "FLANNEL-POSTRTG", comment: "flanneld masq" };
const FILTER: Place =
    Place { table: "filter", base: "FORWARD", chain: "FLANNEL-FWD", comment: "flanneld forward" };

const GUARD_INPUT: Place =
    Place { table: "mangle", base: "INPUT", chain: "FLANNEL-TUN-IN", comment: "flanneld tunnel" };
const GUARD_FORWARD: Place = Place {
    table: "mangle",
    base: "FORWARD",
    chain: "FLANNEL-TUN-OUT",
    comment: "flanneld tunnel",
};

/// What every line that concerns us contains.
pub(crate) const OURS: &str = "FLANNEL-";

impl Place {
    pub(crate) fn of(purpose: Purpose) -> &'static Self {
        match purpose {
            Purpose::Masquerade => &NAT,
            Purpose::Forward => &FILTER,
            Purpose::GuardInput => &GUARD_INPUT,
            Purpose::GuardForward => &GUARD_FORWARD,
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) exists: bool,
    /// Our chain; `None` is a rule that no flannel writes.
    pub(crate) rules: Vec<Option<Rule>>,
    /// The jumps to it that a flannel has made, as they can be said to `-A` and `-D`.
    jumps: Vec<String>,
    /// Somebody else's rules refer to it.
    referred: bool,
}

impl Saved {
    pub(crate) fn parse(place: &Place, text: &str) -> Self {
        let mut saved = Self::default();
        for line in read_saved(text) {
            match line {
                SavedLine::Chain { name, .. } if name == place.chain => saved.exists = true,
                SavedLine::Rule(rule) if rule.chain == place.chain => {
                    saved.rules.push(parse_rule(place, rule.words()));
                }
                SavedLine::Rule(rule) if rule.words().any(|word| word == place.chain) => {
                    let ours = rule.words().any(|word| word == place.comment);
                    if ours && rule.chain == place.base {
                        saved.jumps.push(rule.text.to_owned());
                    } else {
                        saved.referred = true;
                    }
                }
                _ => {}
            }
        }
        saved
    }

    /// The `iptables-restore` block that makes our chain these rules and leads to it once.
    pub(crate) fn change(&self, place: &Place, wanted: &[Rule]) -> Option<String> {
        let jump = jump(place);
        let (good, bad): (Vec<_>, Vec<_>) =
            self.jumps.iter().partition(|line| split_words(line) == split_words(&jump));
        let as_wanted = self.exists
            && good.len() == 1
            && bad.is_empty()
            && self.rules.iter().map(Option::as_ref).eq(wanted.iter().map(Some));
        if as_wanted {
            return None;
        }
        // Naming a chain of one's own empties it; all until COMMIT is one change.
        let mut lines = vec![format!("*{}", place.table), format!(":{} - [0:0]", place.chain)];
        lines.extend(bad.iter().chain(good.iter().skip(1)).map(|line| format!("-D {line}")));
        lines.extend(wanted.iter().map(|rule| line(place, rule)));
        if good.is_empty() {
            lines.push(format!("-A {jump}"));
        }
        lines.push("COMMIT\n".to_owned());
        Some(lines.join("\n"))
    }

    /// The `iptables-restore` block after which nothing of ours is left.
    pub(crate) fn removal(&self, place: &Place) -> Option<String> {
        if !self.exists {
            return None;
        }
        let mut lines = vec![format!("*{}", place.table)];
        lines.extend(self.jumps.iter().map(|line| format!("-D {line}")));
        lines.push(format!("-F {}", place.chain));
        if !self.referred {
            lines.push(format!("-X {}", place.chain));
        }
        lines.push("COMMIT\n".to_owned());
        Some(lines.join("\n"))
    }
}

fn jump(place: &Place) -> String {
    format!("{} -m comment --comment \"{}\" -j {}", place.base, place.comment, place.chain)
}

fn line(place: &Place, rule: &Rule) -> String {
    let mut line = format!("-A {}", place.chain);
    for (option, side) in [("-s", rule.source), ("-d", rule.destination)] {
        if let Some(Side { net, outside }) = side {
            line += &format!("{} {option} {net}", if outside { " !" } else { "" });
        }
    }
    if let Some(link) = &rule.incoming {
        line += &format!(" -i {link}");
    }
    match rule.packets {
        Some(TunnelPackets::Udp(port)) => line += &format!(" -p udp -m udp --dport {port}"),
        Some(TunnelPackets::Protocol(number)) => line += &format!(" -p {number}"),
        None => {}
    }
    if rule.marked {
        line += &format!(" -m mark --mark {KUBE_MARK:#x}/{KUBE_MARK:#x}");
    }
    line += &format!(" -m comment --comment \"{}\" -j ", place.comment);
    line += match rule.verdict {
        Verdict::Return => "RETURN",
        Verdict::Accept => "ACCEPT",
        Verdict::Drop => "DROP",
        Verdict::Masquerade { random: false } => "MASQUERADE",
        Verdict::Masquerade { random: true } => "MASQUERADE --random-fully",
    };
    line
}

/// `None` for anything `line` would not have written in some order: versions order options differently.
fn parse_rule<'a>(place: &Place, mut words: impl Iterator<Item = &'a str>) -> Option<Rule> {
    let mut rule = Rule::always(Verdict::Return);
    let (mut protocol, mut port) = (None, None);
    let (mut target, mut random, mut commented, mut outside) = (None, false, false, false);
    while let Some(option) = words.next() {
        if option == "!" {
            outside = true;
            continue;
        }
        match option {
            "-s" => rule.source = Some(Side { net: words.next()?.parse().ok()?, outside }),
            "-d" => rule.destination = Some(Side { net: words.next()?.parse().ok()?, outside }),
            _ if outside => return None,
            "-i" => rule.incoming = Some(words.next()?.to_owned()),
            "-p" => protocol = Some(protocol_number(words.next()?)?),
            "--dport" => port = Some(words.next()?.parse().ok()?),
            "-m" => matches!(words.next()?, "mark" | "comment" | "udp").then_some(())?,
            "--mark" => {
                let (value, mask) = words.next()?.split_once('/')?;
                (hex(value)? == KUBE_MARK && hex(mask)? == KUBE_MARK).then_some(())?;
                rule.marked = true;
            }
            "--comment" => commented = words.next()? == place.comment,
            "-j" => target = words.next(),
            "--random-fully" => random = true,
            _ => return None,
        }
        outside = false;
    }
    rule.packets = match (protocol, port) {
        (None, None) => None,
        (Some(UDP), Some(port)) => Some(TunnelPackets::Udp(port)),
        (Some(number), None) => Some(TunnelPackets::Protocol(number)),
        (_, Some(_)) => return None,
    };
    rule.verdict = match (target?, random) {
        ("RETURN", false) => Verdict::Return,
        ("ACCEPT", false) => Verdict::Accept,
        ("DROP", false) => Verdict::Drop,
        ("MASQUERADE", random) => Verdict::Masquerade { random },
        _ => return None,
    };
    commented.then_some(rule)
}

const UDP: u8 = 17;

/// The number of a protocol, which `iptables-save` shows by the name that the node has for it.
pub(crate) fn protocol_number(text: &str) -> Option<u8> {
    match text {
        "udp" => Some(UDP),
        "ipencap" | "ipv4" | "ipip" => Some(4),
        "ipv6" => Some(41),
        "esp" => Some(50),
        number => number.parse().ok(),
    }
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
