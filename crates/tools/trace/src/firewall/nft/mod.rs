//! nftables' rules, as the kernel has them: their expressions are carried out on what is known of a packet.

mod loads;
mod registers;

use flannel_netlink::ip;
use flannel_nft::{
    Chain, ChainKind, ElementData, Expression, Header, Hook as BaseHook, HookPoint, Nft, NftError,
    Rule, SetContents, TableContents, TableFamily, Verdict, loaded_network,
};

use self::loads::RuleContext;
use self::registers::Registers;
use super::guards::removal;
use super::path::{Drop, Dropped, Hook, JudgedRule, Match, Packet, TOO_FEW_HOPS, walk};

/// Tables that iptables keeps in nftables.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// Expressions that only load or write something; what they load is not known.
const LOADS: [&str; 12] = [
    "bitwise", "ct", "exthdr", "fib", "hash", "meta", "numgen", "osf", "rt", "socket", "tunnel",
    "xfrm",
];
/// Expressions that let every packet go on.
const PASSING: [&str; 2] = ["dup", "last"];

#[derive(Debug, Default)]
pub(super) struct Ruleset {
    tables: Vec<TableContents>,
}

impl Ruleset {
    pub(super) fn read() -> Result<Self, NftError> {
        Ok(Self { tables: Nft::open()?.ruleset()? })
    }

    /// `is_known`: a family and a table that iptables, or ebtables, shows in its own words.
    pub(super) fn counters(&self, is_known: &dyn Fn(TableFamily, &str) -> bool) -> Vec<Drop> {
        let shown = |table: &&TableContents| {
            !(OF_IPTABLES.contains(&table.name.as_str()) && is_known(table.family, &table.name))
        };
        let counted = |table: &TableContents, rule: &Rule| {
            rule.expressions.0.iter().any(drops).then_some(())?;
            Some(named(table, rule)).filter(|drop| drop.packets.is_some())
        };
        let tables = self.tables.iter().filter(shown);
        tables.flat_map(|it| it.rules.iter().filter_map(|rule| counted(it, rule))).collect()
    }

    pub(super) fn untracks(&self) -> bool {
        let mut rules = self.tables.iter().flat_map(|table| &table.rules);
        rules.any(|rule| rule.expressions.0.contains(&Expression::NoTrack))
    }

    pub(super) fn has_bridge_rules(&self) -> bool {
        self.tables.iter().any(|it| it.family == TableFamily::Bridge && !it.chains.is_empty())
    }

    /// `is_known`: tables that iptables, or ebtables, shows in its own words.
    pub(super) fn judge(&self, packet: &Packet, is_known: &dyn Fn(&str) -> bool) -> Dropped {
        let mut dropped = Dropped::default();
        let chains =
            self.tables.iter().flat_map(|table| table.chains.iter().map(move |it| (table, it)));
        for (table, chain) in chains {
            let Some(hook) = chain.hook else { continue };
            let (name, family) = (chain.name.as_str(), table.family.name());
            // Its base chains are called as nobody else calls his.
            let made_by_iptables = ["ip", "ip6", "bridge"].contains(&family)
                && OF_IPTABLES.contains(&table.name.as_str())
                && name.bytes().all(|byte| byte.is_ascii_uppercase())
                && is_known(&table.name);
            if made_by_iptables || !is_passed(table.family, chain, hook, packet) {
                continue;
            }
            let place = format!("{family} {}", table.name);
            let policy = (!chain.accepts).then(|| Drop {
                rule: format!("the policy of the nftables chain {place} {name}"),
                fix: format!("nft insert rule {place} {name} {} accept", described(packet)),
                packets: None,
            });
            let met = RuleContext { family: table.family, point: hook.point };
            let rules = |chain: &str| -> Vec<JudgedRule> {
                let rules = table.rules.iter().filter(|rule| rule.chain == chain);
                rules.flat_map(|rule| judge_rule(table, rule, packet, met)).collect()
            };
            let mut here = walk(name, 0, &rules).dropped_by(policy);
            if hook.kind == ChainKind::Nat {
                // What is led elsewhere on some condition is a published port or a service.
                here.perhaps.clear();
            }
            if !dropped.followed_by(here) {
                break;
            }
        }
        dropped
    }
}

fn is_passed(family: TableFamily, chain: &Chain, hook: BaseHook, packet: &Packet) -> bool {
    use HookPoint::{Egress, Ingress, Input, Output, Postrouting, Prerouting};
    let is_of_bridge = packet.hook.is_of_bridge();
    let passes_point = match packet.hook {
        Hook::In | Hook::BridgeIn => [Ingress, Prerouting, Input].contains(&hook.point),
        Hook::Out | Hook::BridgeOut => [Output, Postrouting, Egress].contains(&hook.point),
        Hook::Forward | Hook::BridgeForward => ![Input, Output].contains(&hook.point),
    };
    let passes_family = match (family, hook.point) {
        (_, Ingress) => chain.devices.iter().any(|it| packet.passes(it, true)),
        (_, Egress) => chain.devices.iter().any(|it| packet.passes(it, false)),
        (TableFamily::Bridge, _) => is_of_bridge,
        (TableFamily::Arp, _) => packet.is_arp && !is_of_bridge,
        (TableFamily::Inet, _) => !packet.is_arp && !is_of_bridge,
        (TableFamily::Ipv4, _) => !packet.is_arp && !is_of_bridge && packet.dst.is_ipv4(),
        (TableFamily::Ipv6, _) => !packet.is_arp && !is_of_bridge && packet.dst.is_ipv6(),
        (TableFamily::Netdev, _) => false,
    };
    passes_point && passes_family
}

/// What a rule may do with a packet: nothing if it is not for it, and several things if a map decides by what is not known.
fn judge_rule(
    table: &TableContents,
    rule: &Rule,
    packet: &Packet,
    place: RuleContext,
) -> Vec<JudgedRule> {
    let judged = |is_for: Match, verdict: Verdict| {
        let drop = (verdict == Verdict::Drop).then(|| named(table, rule));
        JudgedRule { is_for, verdict, drop }
    };
    let mut registers = Registers::default();
    let mut is_for = Match::Yes;
    let mut verdict = Verdict::Continue;
    for expression in &rule.expressions.0 {
        let mut load = |register: &u32, bytes: Option<Vec<_>>| match bytes {
            Some(bytes) => {
                registers.load(*register, &bytes);
                Match::Yes
            }
            None => Match::No,
        };
        let matched = match expression {
            Expression::Meta { key, register } => load(register, loads::meta(*key, packet, place)),
            Expression::Payload { header, offset, len, register } => {
                load(register, loads::payload(*header, *offset, *len, packet))
            }
            Expression::Connection { key, register, .. } => {
                load(register, Some(loads::connection(*key, packet)))
            }
            Expression::DestinationType { register } => load(register, Some(registers::unknown(4))),
            Expression::Immediate { register, value } => {
                load(register, Some(registers::known(value)))
            }
            Expression::Bitwise { register, mask, xor } => {
                registers.mask(*register, mask, xor);
                Match::Yes
            }
            Expression::ByteOrder { from, to, len, size } => {
                registers.reorder(*from, *to, *len, *size);
                Match::Yes
            }
            Expression::Compare { register, how, value } => {
                registers.compare(*register, *how, value)
            }
            Expression::Range { register, inverted, first, last } => {
                let found = registers.is_between(*register, first, last);
                if *inverted { found.not() } else { found }
            }
            Expression::Lookup { set, register, inverted, verdict: is_verdict } => {
                let Some(set) = table.sets.iter().find(|it| it.name == *set) else {
                    registers.forget();
                    is_for = is_for.and(Match::Maybe);
                    continue;
                };
                if *is_verdict {
                    let verdicts = verdicts_of_map(set, *register, &registers).into_iter();
                    return verdicts.map(|(it, verdict)| judged(is_for.and(it), verdict)).collect();
                }
                let found = set.ranges.iter().map(|range| registers.is_in(*register, range));
                let found = found.fold(Match::No, Match::or);
                if set.ranges.iter().any(|range| range.data != ElementData::Nothing) {
                    registers.forget();
                }
                if *inverted { found.not() } else { found }
            }
            Expression::Verdict(found) => {
                verdict = found.clone();
                Match::Yes
            }
            Expression::Masquerade { .. } => {
                verdict = Verdict::Accept;
                Match::Yes
            }
            // Answers to another sender than one of this host do not come back.
            Expression::SourceNat { address } => {
                let len = if packet.dst.is_ipv4() { 4 } else { 16 };
                let bytes = address.and_then(|it| registers::value(&registers.read(it, len)));
                let sender = bytes.as_deref().and_then(ip);
                let is_lost = sender.is_some_and(|it| packet.host.loses_answers_to(it));
                verdict = if is_lost { Verdict::Drop } else { Verdict::Accept };
                Match::Yes
            }
            // What is led to another address or device does not come where it was sent.
            Expression::Dnat { .. } | Expression::Redirect | Expression::ForwardTo => {
                verdict = Verdict::Drop;
                Match::Yes
            }
            Expression::PayloadWrite { header: Header::Network, offset, len, register } => {
                let written = registers.read(*register, *len as usize);
                let lost = rewritten(*offset as usize, &written, packet);
                verdict = if lost.is_some() { Verdict::Drop } else { verdict };
                lost.unwrap_or(Match::Yes)
            }
            // A program says what becomes of it; if none does, it is dropped.
            Expression::Queue => {
                verdict = Verdict::Drop;
                Match::Maybe
            }
            dropping if drops(dropping) => {
                verdict = Verdict::Drop;
                Match::Yes
            }
            Expression::Extension { name, .. } if name == "comment" => Match::Yes,
            Expression::Other(name) if LOADS.contains(&name.as_str()) => {
                registers.forget();
                Match::Yes
            }
            Expression::Other(name) if PASSING.contains(&name.as_str()) => Match::Yes,
            // `limit`, `quota`, what iptables matches by itself.
            Expression::Other(_) | Expression::Extension { .. } => {
                registers.forget();
                Match::Maybe
            }
            Expression::SetMark { .. }
            | Expression::PayloadWrite { .. }
            | Expression::Counter { .. }
            | Expression::NamedCounter(_)
            | Expression::FlowOffload(_)
            | Expression::NoTrack
            | Expression::Reject
            | Expression::Log => Match::Yes,
        };
        is_for = is_for.and(matched);
        if is_for == Match::No {
            return Vec::new();
        }
    }
    vec![judged(is_for, verdict)]
}

fn drops(expression: &Expression) -> bool {
    match expression {
        Expression::Verdict(Verdict::Drop) | Expression::Reject => true,
        Expression::Extension { name, .. } => name == "REJECT",
        _ => false,
    }
}

/// `udp dport vmap { 53 : accept, 8472 : jump tunnel }`
fn verdicts_of_map(
    map: &SetContents,
    register: u32,
    registers: &Registers,
) -> Vec<(Match, Verdict)> {
    let mut verdicts: Vec<(Match, Verdict)> = Vec::new();
    for range in &map.ranges {
        let matched = registers.is_in(register, range);
        let verdict = match &range.data {
            ElementData::Verdict(verdict) => verdict.clone(),
            _ => Verdict::Continue,
        };
        if matched != Match::No && !verdicts.contains(&(matched, verdict.clone())) {
            verdicts.push((matched, verdict));
        }
        if matched == Match::Yes {
            break;
        }
    }
    verdicts
}

/// Whether a packet is lost by what a rule writes into its IP header; `None` if it is not.
fn rewritten(offset: usize, written: &[registers::PartialByte], packet: &Packet) -> Option<Match> {
    let (hops, source, destination, len) = match packet.dst.is_ipv4() {
        _ if packet.is_arp => return None,
        true => (8, 12, 16, 4),
        false => (7, 8, 24, 16),
    };
    let part = |at: usize, len: usize| {
        let at = at.checked_sub(offset)?;
        written.get(at..at + len).map(registers::value)
    };
    if let Some(address) = part(destination, len) {
        return Some(if address.is_some() { Match::Yes } else { Match::Maybe });
    }
    let sender = part(source, len).flatten().as_deref().and_then(ip);
    if sender.is_some_and(|sender| packet.host.loses_answers_to(sender)) {
        return Some(Match::Yes);
    }
    // It ends on the way, if it is not for this host.
    let hops = part(hops, 1).flatten()?;
    let ends = hops.iter().all(|hops| u64::from(*hops) <= TOO_FEW_HOPS);
    (ends && packet.hook == Hook::Forward).then_some(Match::Maybe)
}

fn named(table: &TableContents, rule: &Rule) -> Drop {
    let (family, name) = (table.family.name(), &table.name);
    let Rule { chain, handle, .. } = rule;
    let words = format!("the nftables rule {handle} of {family} {name} {chain}");
    let command = format!("nft delete rule {family} {name} {chain} handle {handle}");
    let fix = removal(&words, names_loopback(table, rule), command);
    let packets = rule.expressions.0.iter().find_map(|expression| match expression {
        Expression::Counter { packets, .. } => Some(*packets),
        _ => None,
    });
    Drop { rule: words, fix, packets }
}

/// Whether a rule asks for addresses of a loopback device.
fn names_loopback(table: &TableContents, rule: &Rule) -> bool {
    let mut loaded = None;
    rule.expressions.0.iter().any(|expression| {
        let is_loopback = |value: &[u8]| {
            let Some((offset, family)) = loaded else { return false };
            let net = loaded_network(offset, value, None, family);
            net.is_some_and(|(_, net)| net.addr().is_loopback())
        };
        match expression {
            Expression::Payload { header: Header::Network, offset, .. } => {
                let is_v4 = [12, 16].contains(offset);
                let family = if is_v4 { TableFamily::Ipv4 } else { TableFamily::Ipv6 };
                loaded = Some((*offset, family));
                false
            }
            Expression::Compare { value, .. } | Expression::Range { first: value, .. } => {
                is_loopback(value)
            }
            Expression::Lookup { set, .. } => {
                let sets = table.sets.iter().filter(|it| it.name == *set);
                let mut parts = sets.flat_map(|it| &it.ranges).flat_map(|range| &range.parts);
                parts.any(|part| is_loopback(&part.first))
            }
            _ => false,
        }
    })
}

fn described(packet: &Packet) -> String {
    let family = if packet.dst.is_ipv4() { "ip" } else { "ip6" };
    match (packet.hook, packet.protocol) {
        (hook, _) if hook == Hook::Forward || hook.is_of_bridge() => {
            format!("{family} saddr {} {family} daddr {}", packet.src, packet.dst)
        }
        (_, 17) => match packet.port {
            Some(port) => format!("udp dport {port}"),
            None => "meta l4proto udp".to_owned(),
        },
        (_, protocol) => format!("meta l4proto {protocol}"),
    }
}
