//! Rules as `nft -j list ruleset` writes them.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use super::guards::{is_loopback, removal};
use super::path::{
    Conversation, Drop, Dropped, Hook, HostFacts, Judged, Match, Packet, TOO_FEW_HOPS, Verdict,
    address, protocol_number, walk,
};

/// Tables that iptables keeps in nftables.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

#[derive(Debug, Default)]
pub(super) struct Ruleset {
    chains: Vec<Value>,
    rules: Vec<Value>,
    sets: Vec<Value>,
    /// Devices of chains, where `nft -j` leaves them out.
    devices: Vec<ChainDevices>,
}

/// The devices whose frames a chain sees.
#[derive(Debug, PartialEq, Eq)]
struct ChainDevices {
    /// `netdev filter ingress-eth0`.
    chain: String,
    names: Vec<String>,
}

/// A table: its family and name.
type Table<'a> = (&'a str, &'a str);

impl Ruleset {
    pub(super) fn read(text: &str) -> Self {
        let all: Value = serde_json::from_str(text).unwrap_or_default();
        let objects = all["nftables"].as_array().cloned().unwrap_or_default();
        let of = |kind: &str| -> Vec<Value> {
            objects.iter().filter_map(|object| object.get(kind).cloned()).collect()
        };
        let sets = of("set").into_iter().chain(of("map")).collect();
        Self { chains: of("chain"), rules: of("rule"), sets, devices: Vec::new() }
    }

    /// Whether there are chains of devices that are not named.
    pub(super) fn lacks_devices(&self) -> bool {
        let of_device = |chain: &&Value| chain["hook"] == "ingress" || chain["hook"] == "egress";
        self.chains.iter().filter(of_device).any(|chain| chain["dev"].is_null())
    }

    /// `text`: what `nft list chains` prints.
    pub(super) fn add_devices(&mut self, text: &str) {
        self.devices = chain_devices(text);
    }

    /// `is_known`: a family and a table that iptables, or ebtables, shows in its own words.
    pub(super) fn counters(
        &self,
        is_known: &dyn Fn(&str, &str) -> bool,
    ) -> Vec<(String, String, u64)> {
        let counted = |rule: &Value| {
            let (family, name) = table(rule);
            if OF_IPTABLES.contains(&name) && is_known(family, name) {
                return None;
            }
            let expressions = rule["expr"].as_array()?;
            let drops = |one: &Value| one.get("drop").is_some() || one.get("reject").is_some();
            expressions.iter().any(drops).then_some(())?;
            let packets = expressions.iter().find_map(|one| one["counter"]["packets"].as_u64())?;
            let drop = named(rule, Some(packets));
            Some((drop.rule, drop.fix, packets))
        };
        self.rules.iter().filter_map(counted).collect()
    }

    /// Whether a rule keeps the kernel from tracking connections.
    pub(super) fn untracks(&self) -> bool {
        let is_it = |one: &Value| one.get("notrack").is_some();
        self.rules
            .iter()
            .any(|rule| rule["expr"].as_array().is_some_and(|all| all.iter().any(is_it)))
    }

    pub(super) fn has_bridge_rules(&self) -> bool {
        self.chains.iter().any(|chain| table(chain).0 == "bridge")
    }

    /// Whether a packet comes to this base chain.
    fn is_passed(&self, chain: &Value, hook: &str, packet: &Packet) -> bool {
        let (family, name) = table(chain);
        if hook == "ingress" || hook == "egress" {
            let whole = format!("{family} {name} {}", chain["name"].as_str().unwrap_or_default());
            let mut names: Vec<&str> = chain["dev"].as_str().into_iter().collect();
            names.extend(chain["dev"].as_array().into_iter().flatten().filter_map(Value::as_str));
            let noted = self.devices.iter().filter(|one| one.chain == whole);
            names.extend(noted.flat_map(|one| one.names.iter().map(String::as_str)));
            return match (hook, packet.hook) {
                ("ingress", Hook::Out | Hook::BridgeOut) => false,
                ("egress", Hook::In | Hook::BridgeIn) => false,
                ("ingress", _) => names.iter().any(|name| packet.comes_by(name)),
                _ => names.iter().any(|name| packet.goes_by(name)),
            };
        }
        let is_of_bridge =
            matches!(packet.hook, Hook::BridgeIn | Hook::BridgeOut | Hook::BridgeForward);
        let hooks: &[&str] = match packet.hook {
            Hook::In => &["prerouting", "input"],
            Hook::Out => &["output", "postrouting"],
            Hook::Forward => &["prerouting", "forward", "postrouting"],
            Hook::BridgeIn => &["prerouting", "input"],
            Hook::BridgeOut => &["output", "postrouting"],
            Hook::BridgeForward => &["prerouting", "forward", "postrouting"],
        };
        let of_family = match family {
            "bridge" => is_of_bridge,
            "arp" => packet.is_arp && !is_of_bridge,
            "inet" => !packet.is_arp && !is_of_bridge,
            "ip" => !packet.is_arp && !is_of_bridge && packet.dst.is_ipv4(),
            "ip6" => !packet.is_arp && !is_of_bridge && packet.dst.is_ipv6(),
            _ => false,
        };
        of_family && hooks.contains(&hook)
    }

    /// `is_known`: tables that iptables, or ebtables, shows in its own words.
    pub(super) fn judge(&self, packet: &Packet, is_known: &dyn Fn(&str) -> bool) -> Dropped {
        let mut dropped = Dropped::default();
        for chain in &self.chains {
            let (table, name) = (table(chain), chain["name"].as_str().unwrap_or_default());
            let Some(hook) = chain["hook"].as_str() else { continue };
            // Its base chains are called as nobody else calls his.
            let made_by_iptables = ["ip", "ip6", "bridge"].contains(&table.0)
                && OF_IPTABLES.contains(&table.1)
                && name.bytes().all(|byte| byte.is_ascii_uppercase())
                && is_known(table.1);
            if made_by_iptables || !self.is_passed(chain, hook, packet) {
                continue;
            }
            let place = format!("{} {}", table.0, table.1);
            let policy = (chain["policy"] == "drop").then(|| Drop {
                rule: format!("the policy of the nftables chain {place} {name}"),
                fix: format!("nft insert rule {place} {name} {} accept", described(packet)),
                packets: None,
            });
            let rules = |chain: &str| self.judged(table, chain, packet);
            let mut here = walk(name, 0, &rules).dropped_by(policy);
            if chain["type"] == "nat" {
                // What is led elsewhere on some condition is a published port or a service.
                here.perhaps.clear();
            }
            if !dropped.followed_by(here) {
                break;
            }
        }
        dropped
    }

    fn judged(&self, of: Table<'_>, chain: &str, packet: &Packet) -> Vec<Judged> {
        let here = |rule: &&Value| table(rule) == of && rule["chain"] == chain;
        self.rules.iter().filter(here).map(|rule| self.judge_rule(rule, packet)).collect()
    }

    fn judge_rule(&self, rule: &Value, packet: &Packet) -> Judged {
        let mut is_for = Match::Yes;
        let mut verdict = Verdict::Continue;
        let mut packets = None;
        for statement in rule["expr"].as_array().map_or(&[][..], Vec::as_slice) {
            let Some((kind, value)) = statement.as_object().and_then(|object| object.iter().next())
            else {
                continue;
            };
            match kind.as_str() {
                "match" => is_for = is_for.and(self.matches(table(rule), value, packet)),
                "vmap" => {
                    let (matched, to) = self.verdict_of_map(table(rule), value, packet);
                    is_for = is_for.and(matched);
                    verdict = to;
                }
                "counter" => packets = value["packets"].as_u64(),
                "log" | "comment" | "notrack" | "meter" | "ct helper" | "ct timeout" => {}
                "masquerade" => verdict = Verdict::Accept,
                // Answers to another sender than one of this host do not come back.
                "snat" => {
                    let to = value["addr"].as_str().unwrap_or_default();
                    verdict = match packet.host.loses_answers_to(to) {
                        true => Verdict::Drop,
                        false => Verdict::Accept,
                    };
                }
                "mangle" => {
                    if let Some(matched) = rewritten(value, packet) {
                        is_for = is_for.and(matched);
                        verdict = Verdict::Drop;
                    }
                }
                // What is led to another address or device does not come where it was sent.
                "dnat" | "redirect" | "fwd" => verdict = Verdict::Drop,
                // A program says what becomes of it; if none does, it is dropped.
                "queue" => {
                    is_for = is_for.and(Match::Maybe);
                    verdict = Verdict::Drop;
                }
                // `limit`, `quota`, what iptables matches by itself.
                _ => match verdict_of(statement) {
                    Some(found) => verdict = found,
                    None => is_for = is_for.and(Match::Maybe),
                },
            }
        }
        let drop = (verdict == Verdict::Drop).then(|| named(rule, packets));
        Judged { is_for, verdict, drop }
    }

    fn matches(&self, of: Table<'_>, expression: &Value, packet: &Packet) -> Match {
        let Some(left) = field(&expression["left"], packet) else { return Match::Maybe };
        let Some(left) = left else { return Match::No };
        let right = &expression["right"];
        let op = expression["op"].as_str();
        if let (Field::Number(left), Some(right), Some("<" | ">" | "<=" | ">=")) =
            (&left, right.as_u64(), op)
        {
            return Match::of(match op {
                Some("<") => *left < right,
                Some(">") => *left > right,
                Some("<=") => *left <= right,
                _ => *left >= right,
            });
        }
        let found = self.is_among(of, &left, right);
        match op {
            Some("==" | "in") | None => found,
            Some("!=") => found.not(),
            _ => Match::Maybe,
        }
    }

    fn is_among(&self, of: Table<'_>, left: &Field, right: &Value) -> Match {
        if let Some(name) = right.as_str().and_then(|text| text.strip_prefix('@')) {
            let set = self.sets.iter().find(|set| table(set) == of && set["name"] == name);
            let Some(elements) = set.map(|set| set["elem"].as_array().cloned().unwrap_or_default())
            else {
                return Match::Maybe;
            };
            return self.any(of, left, &elements);
        }
        if let Some(elements) = right["set"].as_array().or(right.as_array()) {
            return self.any(of, left, elements);
        }
        if let Some(element) = right.get("elem") {
            return self.is_among(of, left, &element["val"]);
        }
        left.is(right)
    }

    fn any(&self, of: Table<'_>, left: &Field, elements: &[Value]) -> Match {
        elements.iter().fold(Match::No, |found, element| found.or(self.is_among(of, left, element)))
    }

    /// `udp dport vmap { 53 : accept, 8472 : jump tunnel }`
    fn verdict_of_map(&self, of: Table<'_>, map: &Value, packet: &Packet) -> (Match, Verdict) {
        let left = match field(&map["key"], packet) {
            Some(Some(left)) => left,
            Some(None) => return (Match::No, Verdict::Continue),
            None => return (Match::Maybe, Verdict::Accept),
        };
        let named = map["data"].as_str().and_then(|text| text.strip_prefix('@'));
        let named = named
            .and_then(|name| self.sets.iter().find(|set| table(set) == of && set["name"] == name));
        let pairs = named.map_or(&map["data"]["set"], |set| &set["elem"]);
        for pair in pairs.as_array().map_or(&[][..], Vec::as_slice) {
            match self.is_among(of, &left, &pair[0]) {
                Match::No => {}
                matched => return (matched, verdict_of(&pair[1]).unwrap_or(Verdict::Continue)),
            }
        }
        (Match::No, Verdict::Continue)
    }
}

/// Whether a packet is lost by what a rule writes into it; `None` if it is not.
fn rewritten(change: &Value, packet: &Packet) -> Option<Match> {
    let (payload, value) = (&change["key"]["payload"], &change["value"]);
    let is_ip = ["ip", "ip6"].contains(&payload["protocol"].as_str()?);
    match payload["field"].as_str().filter(|_| is_ip)? {
        "daddr" => value.as_str()?.parse::<IpAddr>().ok().map(|_| Match::Yes),
        "saddr" => packet.host.loses_answers_to(value.as_str()?).then_some(Match::Yes),
        // It ends on the way, if it is not for this host.
        "ttl" | "hoplimit" => {
            let ends = value.as_u64()? <= TOO_FEW_HOPS && packet.hook == Hook::Forward;
            ends.then_some(Match::Maybe)
        }
        _ => None,
    }
}

/// What a rule looks at.
enum Field {
    Address(IpAddr),
    Number(u64),
    Name(String),
    State(Conversation, Arc<HostFacts>),
    Protocol(u8),
}

impl Field {
    fn is(&self, right: &Value) -> Match {
        let range =
            right["range"].as_array().and_then(|range| Some((range.first()?, range.get(1)?)));
        match self {
            Self::Address(ip) => {
                if let Some(prefix) = right.get("prefix") {
                    let (addr, len) = (prefix["addr"].as_str().unwrap_or_default(), &prefix["len"]);
                    return address(*ip, &format!("{addr}/{len}"));
                }
                let ends = range.map(|(low, high)| (parsed(low), parsed(high)));
                match ends {
                    Some((Some(low), Some(high))) => Match::of((low..=high).contains(ip)),
                    _ => right.as_str().map_or(Match::Maybe, |text| address(*ip, text)),
                }
            }
            Self::Number(number) => match range.map(|(low, high)| (low.as_u64(), high.as_u64())) {
                Some((Some(low), Some(high))) => Match::of((low..=high).contains(number)),
                _ => right.as_u64().map_or(Match::Maybe, |right| Match::of(right == *number)),
            },
            Self::Name(name) => right.as_str().map_or(Match::Maybe, |text| {
                Match::of(
                    text.strip_suffix('*').map_or(name == text, |prefix| name.starts_with(prefix)),
                )
            }),
            Self::State(conversation, host) => right
                .as_str()
                .map_or(Match::Maybe, |written| host.has_state(*conversation, written)),
            Self::Protocol(number) => {
                let text = right.as_u64().map(|number| number.to_string());
                let text = text.as_deref().or(right.as_str());
                let right = text.and_then(protocol_number);
                right.map_or(Match::Maybe, |right| Match::of(right == *number))
            }
        }
    }
}

fn parsed(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

/// `None`: nobody knows from outside. `Some(None)`: this packet has no such thing.
fn field(left: &Value, packet: &Packet) -> Option<Option<Field>> {
    if let Some(key) = left["meta"]["key"].as_str() {
        let [came, goes] = &packet.bridge_ports;
        return match (key, packet.hook) {
            ("iifname" | "iif", Hook::Out | Hook::BridgeOut)
            | ("oifname" | "oif", Hook::In | Hook::BridgeIn) => Some(None),
            ("iifname" | "iif", Hook::BridgeIn | Hook::BridgeForward) => {
                came.clone().map(|port| Some(Field::Name(port)))
            }
            ("oifname" | "oif", Hook::BridgeOut | Hook::BridgeForward) => {
                goes.clone().map(|port| Some(Field::Name(port)))
            }
            ("iifname" | "iif", _) => Some(Some(Field::Name(packet.iif.clone()))),
            ("oifname" | "oif", _) => Some(Some(Field::Name(packet.oif.clone()))),
            ("ibrname", _) => Some(Some(Field::Name(packet.iif.clone()))),
            ("obrname", _) => Some(Some(Field::Name(packet.oif.clone()))),
            ("l4proto", _) => Some((!packet.is_arp).then_some(Field::Protocol(packet.protocol))),
            ("length", _) => Some(Some(Field::Number(packet.length.into()))),
            ("nfproto" | "protocol", _) => {
                let name = match (packet.is_arp, packet.dst.is_ipv4(), key) {
                    (true, ..) => "arp",
                    (_, true, "nfproto") => "ipv4",
                    (_, false, "nfproto") => "ipv6",
                    (_, true, _) => "ip",
                    (_, false, _) => "ip6",
                };
                Some(Some(Field::Name(name.to_owned())))
            }
            _ => None,
        };
    }
    if left["ct"]["key"] == "state" {
        return Some(Some(Field::State(packet.conversation, packet.host.clone())));
    }
    let (protocol, field) =
        (left["payload"]["protocol"].as_str()?, left["payload"]["field"].as_str()?);
    let carries = match protocol {
        "udp" => packet.protocol == 17,
        "tcp" => packet.protocol == 6,
        "icmp" => packet.protocol == 1,
        "icmpv6" => packet.protocol == 58,
        "th" => [6, 17].contains(&packet.protocol),
        "ip" => packet.dst.is_ipv4() && !packet.is_arp,
        "ip6" => packet.dst.is_ipv6() && !packet.is_arp,
        "arp" => packet.is_arp,
        "ether" => true,
        _ => return None,
    };
    Some(match (carries, field) {
        (false, _) => None,
        (true, "type") if protocol == "ether" => {
            let name = match (packet.is_arp, packet.dst.is_ipv4()) {
                (true, _) => "arp",
                (false, true) => "ip",
                (false, false) => "ip6",
            };
            Some(Field::Name(name.to_owned()))
        }
        _ if protocol == "ether" => return None,
        (true, "saddr" | "saddr ip") => Some(Field::Address(packet.src)),
        (true, "daddr" | "daddr ip") => Some(Field::Address(packet.dst)),
        (true, "dport") => Some(Field::Number(packet.port?.into())),
        (true, "length") if protocol == "ip" => Some(Field::Number(packet.length.into())),
        (true, "length") if protocol == "ip6" => {
            Some(Field::Number(packet.length.saturating_sub(40).into()))
        }
        (true, "protocol" | "nexthdr") => Some(Field::Protocol(packet.protocol)),
        _ => return None,
    })
}

/// The devices of chains, as `nft list chains` writes them.
fn chain_devices(text: &str) -> Vec<ChainDevices> {
    let (mut table, mut chain, mut found) = (String::new(), String::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("table ") {
            name.trim_end_matches(" {").clone_into(&mut table);
        } else if let Some(name) = line.strip_prefix("chain ") {
            name.trim_end_matches(" {").clone_into(&mut chain);
        } else if let Some((_, rest)) = line.split_once(" device") {
            let rest = rest.trim_start_matches(['s', ' ', '=']);
            let rest = rest.split(" priority").next().unwrap_or_default();
            let names = rest.split([' ', ',', '{', '}', '"']).filter(|name| !name.is_empty());
            let names = names.map(str::to_owned).collect();
            found.push(ChainDevices { chain: format!("{table} {chain}"), names });
        }
    }
    found
}

fn verdict_of(statement: &Value) -> Option<Verdict> {
    let (kind, value) = statement.as_object()?.iter().next()?;
    let target = || value["target"].as_str().unwrap_or_default().to_owned();
    Some(match kind.as_str() {
        "accept" => Verdict::Accept,
        "drop" | "reject" => Verdict::Drop,
        "return" => Verdict::Return,
        "continue" => Verdict::Continue,
        "jump" => Verdict::Jump(target()),
        "goto" => Verdict::Goto(target()),
        _ => return None,
    })
}

fn named(rule: &Value, packets: Option<u64>) -> Drop {
    let (family, name) = table(rule);
    let chain = rule["chain"].as_str().unwrap_or_default();
    let handle = rule["handle"].as_u64().unwrap_or_default();
    let words = format!("the nftables rule {handle} of {family} {name} {chain}");
    let command = format!("nft delete rule {family} {name} {chain} handle {handle}");
    let fix = removal(&words, names_loopback(&rule["expr"]), command);
    Drop { rule: words, fix, packets }
}

fn names_loopback(value: &Value) -> bool {
    match value {
        Value::String(text) => is_loopback(text),
        Value::Array(all) => all.iter().any(names_loopback),
        Value::Object(fields) => fields.values().any(names_loopback),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn table(object: &Value) -> Table<'_> {
    let name = |key: &str| object[key].as_str().unwrap_or_default();
    let family = object["family"].as_str().unwrap_or_default();
    (family, name("table"))
}

/// In the words of a rule.
fn described(packet: &Packet) -> String {
    let family = if packet.dst.is_ipv4() { "ip" } else { "ip6" };
    match (packet.hook, packet.protocol) {
        (Hook::Forward | Hook::BridgeIn | Hook::BridgeOut | Hook::BridgeForward, _) => {
            format!("{family} saddr {} {family} daddr {}", packet.src, packet.dst)
        }
        (_, 17) => match packet.port {
            Some(port) => format!("udp dport {port}"),
            None => "meta l4proto udp".to_owned(),
        },
        (_, protocol) => format!("meta l4proto {protocol}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel() -> Packet {
        Packet {
            port: Some(8472),
            iif: "eth0".to_owned(),
            oif: "eth0".to_owned(),
            ..Packet::first(Hook::In, [192, 0, 2, 2].into(), [192, 0, 2, 1].into(), 17)
        }
    }

    /// With one rule of these statements in a base chain, and `drop` in a chain `shut`.
    fn dropped(expressions: &str, policy: &str) -> Option<Drop> {
        let text = format!(
            r#"{{"nftables": [
                {{"chain": {{"family": "inet", "table": "t", "name": "in", "handle": 1, "type": "filter", "hook": "input",
                    "prio": 0, "policy": "{policy}"}}}},
                {{"set": {{"family": "inet", "table": "t", "name": "nodes", "elem": ["192.0.2.2"]}}}},
                {{"rule": {{"family": "inet", "table": "t", "chain": "in", "handle": 4, "expr": [{expressions}]}}}},
                {{"rule": {{"family": "inet", "table": "t", "chain": "shut", "handle": 5, "expr": [{{"drop": null}}]}}}}
            ]}}"#
        );
        Ruleset::read(&text).judge(&tunnel(), &|_| true).surely
    }

    const PORT: &str = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 8472}}"#;

    #[test]
    fn rules_that_drop_the_tunnel_are_found_and_others_are_not() {
        let found = dropped(&format!(r#"{PORT}, {{"counter": {{}}}}, {{"drop": null}}"#), "accept")
            .unwrap();
        assert_eq!(found.fix, "nft delete rule inet t in handle 4");
        let matched = |left: &str, op: &str, right: &str, verdict: &str| {
            let rule = format!(
                r#"{{"match": {{"op": "{op}", "left": {left}, "right": {right}}}}}, {{"{verdict}": null}}"#
            );
            dropped(&rule, "accept").is_some()
        };
        let port = r#"{"payload": {"protocol": "th", "field": "dport"}}"#;
        let source = r#"{"payload": {"protocol": "ip", "field": "saddr"}}"#;
        let device = r#"{"meta": {"key": "iifname"}}"#;
        assert!(matched(port, "==", r#"{"set": [53, {"range": [8000, 9000]}]}"#, "drop"));
        assert!(!matched(port, "==", r#"{"set": [53, 8473]}"#, "drop"));
        assert!(matched(source, "==", r#"{"prefix": {"addr": "192.0.2.0", "len": 24}}"#, "reject"));
        assert!(matched(source, "==", "\"@nodes\"", "drop"));
        assert!(!matched(source, "!=", "\"@nodes\"", "drop"));
        assert!(matched(device, "!=", "\"lo\"", "drop"));
        assert!(!matched(device, "==", "\"lo\"", "drop"));
        assert!(!matched(r#"{"meta": {"key": "mark"}}"#, "==", "1", "drop"), "nobody knows");
        assert!(!matched(
            r#"{"ct": {"key": "state"}}"#,
            "in",
            r#"["established", "related"]"#,
            "drop"
        ));
        assert!(dropped(r#"{"jump": {"target": "shut"}}"#, "accept").is_some());
        let map = r#"{"vmap": {"key": {"meta": {"key": "l4proto"}}, "data": {"set": [["tcp", {"accept": null}], ["udp", {"goto": {"target": "shut"}}]]}}}"#;
        assert!(dropped(map, "accept").is_some());
    }

    #[test]
    fn a_policy_that_drops_is_named_with_the_rule_that_lets_the_tunnel_through() {
        let found = dropped(r#"{"counter": {}}"#, "drop").unwrap();
        assert_eq!(found.fix, "nft insert rule inet t in udp dport 8472 accept");
        assert_eq!(dropped(&format!(r#"{PORT}, {{"accept": null}}"#), "drop"), None);
    }

    #[test]
    fn chains_of_devices_and_bridges_see_the_frames_of_theirs() {
        let ruleset = |family: &str, hook: &str, expressions: &str| {
            let text = format!(
                r#"{{"nftables": [
                    {{"chain": {{"family": "{family}", "table": "t", "name": "c", "type": "filter", "hook": "{hook}", "prio": 0}}}},
                    {{"rule": {{"family": "{family}", "table": "t", "chain": "c", "handle": 2, "expr": [{expressions}]}}}}
                ]}}"#
            );
            Ruleset::read(&text)
        };
        let drop = r#"{"counter": {"packets": 4, "bytes": 9}}, {"drop": null}"#;
        let mut egress = ruleset("netdev", "egress", drop);
        assert!(egress.lacks_devices());
        egress.add_devices(
            "table netdev t {\n\tchain c {\n\t\ttype filter hook egress devices = { eth0, eth1 } priority filter; policy accept;\n\t}\n}\n",
        );
        let sent = Packet { hook: Hook::Out, ..tunnel() };
        assert_eq!(egress.judge(&sent, &|_| true).surely.and_then(|drop| drop.packets), Some(4));
        assert_eq!(egress.judge(&tunnel(), &|_| true), Dropped::default(), "what comes in");
        let other = Packet { oif: "eth2".to_owned(), ..sent };
        assert_eq!(egress.judge(&other, &|_| true), Dropped::default());
        let mut ingress = ruleset("netdev", "ingress", drop);
        ingress.add_devices(
            "table netdev t {\n\tchain c {\n\t\ttype filter hook ingress device \"eth0\" priority filter; policy accept;\n",
        );
        assert!(ingress.judge(&tunnel(), &|_| true).surely.is_some());

        let to = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "192.0.2.1"}}"#;
        let bridge = ruleset("bridge", "postrouting", &format!("{to}, {drop}"));
        assert_eq!(
            bridge.judge(&tunnel(), &|_| true),
            Dropped::default(),
            "not a frame of a bridge"
        );
        let frame = Packet { hook: Hook::BridgeOut, ..tunnel() };
        assert!(bridge.judge(&frame, &|_| true).surely.is_some());
        let arp = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "ether", "field": "type"}}, "right": "arp"}}"#;
        let bridge = ruleset("bridge", "output", &format!("{arp}, {drop}"));
        assert!(bridge.judge(&frame, &|_| true).surely.is_none());
        assert!(bridge.judge(&Packet { is_arp: true, ..frame }, &|_| true).surely.is_some());
    }

    #[test]
    fn rules_for_some_packets_are_told_with_their_counters_and_sizes_and_states_are_known() {
        let judged = |expressions: &str, packet: &Packet| {
            let text = format!(
                r#"{{"nftables": [
                    {{"chain": {{"family": "inet", "table": "t", "name": "in", "type": "filter", "hook": "input", "prio": 0}}}},
                    {{"rule": {{"family": "inet", "table": "t", "chain": "in", "handle": 4,
                        "expr": [{expressions}, {{"counter": {{"packets": 3, "bytes": 9}}}}, {{"drop": null}}]}}}}
                ]}}"#
            );
            Ruleset::read(&text).judge(packet, &|_| true)
        };
        let matched = |left: &str, op: &str, right: &str| {
            format!(r#"{{"match": {{"op": "{op}", "left": {left}, "right": {right}}}}}"#)
        };
        let full = Packet { length: 1500, ..tunnel() };
        for long in [
            matched(r#"{"payload": {"protocol": "ip", "field": "length"}}"#, ">", "1000"),
            matched(r#"{"meta": {"key": "length"}}"#, ">=", "1000"),
            matched(r#"{"meta": {"key": "length"}}"#, "==", r#"{"range": [1000, 65535]}"#),
        ] {
            assert_eq!(judged(&long, &tunnel()), Dropped::default(), "{long}");
            assert!(judged(&long, &full).surely.is_some(), "{long}");
        }
        for some in [
            matched(r#"{"numgen": {"mode": "random", "mod": 100, "offset": 0}}"#, "<", "5"),
            r#"{"limit": {"rate": 10, "burst": 5, "per": "second", "inv": true}}"#.to_owned(),
            matched(r#"{"meta": {"key": "mark"}}"#, "==", "1"),
        ] {
            let dropped = judged(&some, &tunnel());
            assert_eq!(dropped.surely, None, "{some}");
            assert_eq!(dropped.perhaps.first().and_then(|one| one.packets), Some(3), "{some}");
        }
        let begun = Packet { conversation: Conversation::Established, ..tunnel() };
        let state = matched(r#"{"ct": {"key": "state"}}"#, "in", r#"["established", "related"]"#);
        assert!(judged(&state, &begun).surely.is_some());
    }
}
