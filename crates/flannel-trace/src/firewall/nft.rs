//! Rules as `nft -j list ruleset` writes them.

use std::net::IpAddr;

use serde_json::Value;

use super::path::{Drop, Hook, Judged, Match, Packet, Verdict, address, protocol_number, walk};

/// Tables that iptables keeps in nftables.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

#[derive(Debug, Default)]
pub(super) struct Ruleset {
    chains: Vec<Value>,
    rules: Vec<Value>,
    sets: Vec<Value>,
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
        Self { chains: of("chain"), rules: of("rule"), sets }
    }

    /// `without_iptables`: rules of iptables are known in its own words.
    pub(super) fn drops(&self, packet: &Packet, without_iptables: bool) -> Option<Drop> {
        let hooks: &[&str] = match packet.hook {
            Hook::In => &["ingress", "prerouting", "input"],
            Hook::Out => &["output", "postrouting"],
            Hook::Forward => &["prerouting", "forward", "postrouting"],
        };
        self.chains.iter().find_map(|chain| {
            let (table, name) = (table(chain), chain["name"].as_str()?);
            let hook = chain["hook"].as_str()?;
            let family = match table.0 {
                "inet" => true,
                "ip" => packet.dst.is_ipv4(),
                "ip6" => packet.dst.is_ipv6(),
                "netdev" => chain["dev"] == packet.iif.as_str(),
                _ => false,
            };
            let of_iptables =
                without_iptables && table.0 != "inet" && OF_IPTABLES.contains(&table.1);
            // Rules of NAT drop nothing.
            if !family || of_iptables || !hooks.contains(&hook) || chain["type"] == "nat" {
                return None;
            }
            let place = format!("{} {}", table.0, table.1);
            let policy = (chain["policy"] == "drop").then(|| Drop {
                rule: format!("the policy of the nftables chain {place} {name}"),
                fix: format!("nft insert rule {place} {name} {} accept", described(packet)),
            });
            let rules = |chain: &str| self.judged(table, chain, packet);
            walk(name, 0, &rules).surely_dropped(policy)
        })
    }

    fn judged(&self, of: Table<'_>, chain: &str, packet: &Packet) -> Vec<Judged> {
        let here = |rule: &&Value| table(rule) == of && rule["chain"] == chain;
        self.rules.iter().filter(here).map(|rule| self.judge(rule, packet)).collect()
    }

    fn judge(&self, rule: &Value, packet: &Packet) -> Judged {
        let mut is_for = Match::Yes;
        let mut verdict = Verdict::Continue;
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
                "counter" | "log" | "comment" | "mangle" | "notrack" | "meter" | "masquerade"
                | "snat" | "dnat" | "redirect" | "ct helper" | "ct timeout" => {}
                // `limit`, `quota`, what iptables matches by itself.
                _ => match verdict_of(statement) {
                    Some(found) => verdict = found,
                    None => is_for = is_for.and(Match::Maybe),
                },
            }
        }
        let (family, name) = table(rule);
        let (chain, handle) = (
            rule["chain"].as_str().unwrap_or_default(),
            rule["handle"].as_u64().unwrap_or_default(),
        );
        let drop = (verdict == Verdict::Drop).then(|| Drop {
            rule: format!("the nftables rule {handle} of {family} {name} {chain}"),
            fix: format!("nft delete rule {family} {name} {chain} handle {handle}"),
        });
        Judged { is_for, verdict, drop }
    }

    fn matches(&self, of: Table<'_>, expression: &Value, packet: &Packet) -> Match {
        let Some(left) = field(&expression["left"], packet) else { return Match::Maybe };
        let Some(left) = left else { return Match::No };
        let found = self.is_among(of, &left, &expression["right"]);
        match expression["op"].as_str() {
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

/// What a rule looks at.
enum Field {
    Address(IpAddr),
    Number(u64),
    Name(String),
    /// Of a new conversation.
    State,
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
            Self::State => right
                .as_str()
                .map_or(Match::Maybe, |text| Match::of(text == "new" || text == "untracked")),
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
        let known = match packet.hook {
            Hook::In => key != "oifname" && key != "oif",
            Hook::Out => key != "iifname" && key != "iif",
            Hook::Forward => true,
        };
        return match key {
            "iifname" | "iif" => Some(known.then(|| Field::Name(packet.iif.clone()))),
            "oifname" | "oif" => Some(known.then(|| Field::Name(packet.oif.clone()))),
            "l4proto" => Some(Some(Field::Protocol(packet.protocol))),
            "nfproto" | "protocol" => {
                let name = match (packet.dst.is_ipv4(), key) {
                    (true, "nfproto") => "ipv4",
                    (false, "nfproto") => "ipv6",
                    (true, _) => "ip",
                    (false, _) => "ip6",
                };
                Some(Some(Field::Name(name.to_owned())))
            }
            _ => None,
        };
    }
    if left["ct"]["key"] == "state" {
        return Some(Some(Field::State));
    }
    let (protocol, field) =
        (left["payload"]["protocol"].as_str()?, left["payload"]["field"].as_str()?);
    let carries = match protocol {
        "udp" => packet.protocol == 17,
        "tcp" => packet.protocol == 6,
        "th" => [6, 17].contains(&packet.protocol),
        "ip" => packet.dst.is_ipv4(),
        "ip6" => packet.dst.is_ipv6(),
        _ => return None,
    };
    Some(match (carries, field) {
        (false, _) => None,
        (true, "saddr") => Some(Field::Address(packet.src)),
        (true, "daddr") => Some(Field::Address(packet.dst)),
        (true, "dport") => Some(Field::Number(packet.port.into())),
        (true, "protocol" | "nexthdr") => Some(Field::Protocol(packet.protocol)),
        _ => return None,
    })
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

fn table(object: &Value) -> Table<'_> {
    let name = |key: &str| object[key].as_str().unwrap_or_default();
    let family = object["family"].as_str().unwrap_or_default();
    (family, name("table"))
}

/// In the words of a rule.
fn described(packet: &Packet) -> String {
    let family = if packet.dst.is_ipv4() { "ip" } else { "ip6" };
    match (packet.hook, packet.protocol) {
        (Hook::Forward, _) => {
            format!("{family} saddr {} {family} daddr {}", packet.src, packet.dst)
        }
        (_, 17) => format!("udp dport {}", packet.port),
        (_, protocol) => format!("meta l4proto {protocol}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel() -> Packet {
        Packet {
            hook: Hook::In,
            src: [192, 0, 2, 2].into(),
            dst: [192, 0, 2, 1].into(),
            protocol: 17,
            port: 8472,
            iif: "eth0".to_owned(),
            oif: "eth0".to_owned(),
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
        Ruleset::read(&text).drops(&tunnel(), true)
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
}
