//! Rules as `iptables-save` and `ebtables-save` write them.

use std::collections::BTreeMap;

use flannel_nft::{SavedLine, SavedRule, Verdict, read_saved};

use super::guards::{is_loopback, removal};
use super::path::{
    Drop, Dropped, Hook, JudgedRule, Match, Packet, TOO_FEW_HOPS, address, protocol_number, walk,
};

/// Modules that match nothing beyond their options, which are known here.
const KNOWN_MODULES: [&str; 8] =
    ["udp", "tcp", "comment", "conntrack", "state", "multiport", "length", "physdev"];

#[derive(Debug, Default)]
pub(super) struct Tables(BTreeMap<String, Table>);

#[derive(Debug, Default)]
struct Table {
    /// Chains, and whether their policy is to accept; none for those that are jumped to.
    chains: BTreeMap<String, Option<bool>>,
    rules: BTreeMap<String, Vec<Rule>>,
}

#[derive(Debug)]
struct Rule {
    /// The rule as it was written, without `-A`.
    text: String,
    words: Vec<String>,
    packets: Option<u64>,
}

impl Tables {
    pub(super) fn read(text: &str) -> Self {
        let (mut tables, mut current) = (BTreeMap::<String, Table>::new(), String::new());
        for line in read_saved(text) {
            if let SavedLine::Table(name) = line {
                current = name.to_owned();
                tables.entry(current.clone()).or_default();
                continue;
            }
            let Some(table) = tables.get_mut(&current) else { continue };
            match line {
                SavedLine::Table(_) => {}
                SavedLine::Chain { name, policy } => {
                    table.chains.insert(name.to_owned(), policy.map(|policy| policy == "ACCEPT"));
                }
                SavedLine::Rule(SavedRule { chain, text, words, packets }) => {
                    let rule = Rule { text: text.to_owned(), words, packets };
                    table.rules.entry(chain).or_default().push(rule);
                }
            }
        }
        Self(tables)
    }

    pub(super) fn has(&self, table: &str) -> bool {
        self.0.contains_key(table)
    }

    pub(super) fn untracks(&self) -> bool {
        let rules = self.0.values().flat_map(|table| table.rules.values().flatten());
        let is_it = |word: &String| word == "--notrack" || word == "NOTRACK";
        rules.into_iter().any(|rule| rule.words.iter().any(is_it))
    }

    pub(super) fn counters(&self, program: &str) -> Vec<Drop> {
        let mut all = Vec::new();
        for (table, found) in &self.0 {
            for rule in found.rules.values().flatten() {
                let drops = |to: &[String]| to[0] == "-j" && (to[1] == "DROP" || to[1] == "REJECT");
                if rule.words.windows(2).any(drops) && rule.packets.is_some() {
                    all.push(rule.drop(program, &of_table(table)));
                }
            }
        }
        all
    }

    pub(super) fn judge(&self, packet: &Packet, program: &str) -> Dropped {
        const FIRST: &[&str] = &["raw", "mangle", "nat"];
        const INNER: &[&str] = &["mangle", "filter"];
        const LAST: &[&str] = &["mangle", "nat"];
        // Chains in order, each with the tables that have it.
        let chains: &[(&str, &[&str])] = match packet.hook {
            Hook::In => &[("PREROUTING", FIRST), ("INPUT", INNER)],
            Hook::Out => &[("OUTPUT", &["raw", "mangle", "nat", "filter"]), ("POSTROUTING", LAST)],
            Hook::Forward => &[("PREROUTING", FIRST), ("FORWARD", INNER), ("POSTROUTING", LAST)],
            Hook::BridgeIn => {
                &[("BROUTING", &["broute"]), ("PREROUTING", &["nat"]), ("INPUT", &["filter"])]
            }
            Hook::BridgeOut => &[("OUTPUT", &["nat", "filter"]), ("POSTROUTING", &["nat"])],
            Hook::BridgeForward => {
                &[("PREROUTING", &["nat"]), ("FORWARD", &["filter"]), ("POSTROUTING", &["nat"])]
            }
        };
        let mut dropped = Dropped::default();
        let chains =
            chains.iter().flat_map(|(chain, tables)| tables.iter().map(move |it| (*it, *chain)));
        for (table, chain) in chains {
            let of = of_table(table);
            let Some(found) = self.0.get(table) else { continue };
            let rules = |chain: &str| -> Vec<JudgedRule> {
                let rules = found.rules.get(chain).map_or(&[][..], Vec::as_slice);
                rules.iter().map(|rule| rule.judge(packet, program, &of)).collect()
            };
            let shut = found.chains.get(chain) == Some(&Some(false));
            let policy = shut.then(|| Drop {
                rule: format!("the policy of {program}{of} {chain}"),
                fix: match program {
                    "ebtables" => format!("{program}{of} -P {chain} ACCEPT"),
                    _ => format!("{program}{of} -I {chain} {} -j ACCEPT", described(packet)),
                },
                packets: None,
            });
            let mut here = walk(chain, 0, &rules).dropped_by(policy);
            if table == "nat" && program != "ebtables" {
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

fn of_table(table: &str) -> String {
    if table == "filter" { String::new() } else { format!(" -t {table}") }
}

fn described(packet: &Packet) -> String {
    match (packet.hook, packet.protocol) {
        (Hook::Forward, _) => format!("-s {} -d {}", packet.src, packet.dst),
        (_, 17) => match packet.port {
            Some(port) => format!("-p udp --dport {port}"),
            None => "-p udp".to_owned(),
        },
        (_, protocol) => format!("-p {protocol}"),
    }
}

impl Rule {
    fn judge(&self, packet: &Packet, program: &str, table: &str) -> JudgedRule {
        let mut is_for = Match::Yes;
        let mut verdict = Verdict::Continue;
        let mut words = self.words.iter().map(String::as_str);
        let mut negated = false;
        while let Some(word) = words.next() {
            if word == "!" {
                negated = true;
                continue;
            }
            let mut value = || words.next().unwrap_or_default();
            let one = match word {
                "-s" | "-d" | "--ip-src" | "--ip-dst" | "--ip6-src" | "--ip6-dst"
                | "--ip-source" | "--ip-destination" => {
                    let is_source =
                        word == "-s" || word.ends_with("src") || word.ends_with("source");
                    let (ip, value) = (if is_source { packet.src } else { packet.dst }, value());
                    if packet.is_arp { Match::No } else { address(ip, value) }
                }
                "--arp-ip-src" | "--arp-ip-dst" => {
                    let value = value();
                    let ip = if word.ends_with("src") { packet.src } else { packet.dst };
                    if packet.is_arp { address(ip, value) } else { Match::No }
                }
                // A device that comes in is not known of what this host sends, and the other way round.
                "-i" | "--in-interface" => match packet.hook {
                    Hook::Out => Match::of(value().is_empty()),
                    Hook::BridgeIn | Hook::BridgeForward => port(&packet.bridge_ports[0], value()),
                    _ => device(&packet.iif, value()),
                },
                "-o" | "--out-interface" => match packet.hook {
                    Hook::In => Match::of(value().is_empty()),
                    Hook::BridgeOut | Hook::BridgeForward => port(&packet.bridge_ports[1], value()),
                    _ => device(&packet.oif, value()),
                },
                "--logical-in" => device(&packet.iif, value()),
                "--logical-out" => device(&packet.oif, value()),
                "--physdev-in" => port(&packet.bridge_ports[0], value()),
                "--physdev-is-in" => Match::of(packet.bridge_ports[0].is_some()),
                "-p" if program == "ebtables" => {
                    let family = match (packet.is_arp, packet.dst.is_ipv4()) {
                        (true, _) => "ARP",
                        (false, true) => "IPv4",
                        (false, false) => "IPv6",
                    };
                    Match::of(value().eq_ignore_ascii_case(family))
                }
                "-p" | "--ip-proto" | "--ip-protocol" | "--ip6-proto" => {
                    let number = protocol_number(value());
                    number.map_or(Match::Maybe, |number| {
                        Match::of(number == 0 || number == packet.protocol)
                    })
                }
                "--ip-dport" | "--ip6-dport" => ports(packet.port, value()),
                "--length" => {
                    let range = value().split_once(':').and_then(|(low, high)| {
                        Some(low.parse::<u32>().ok()?..=high.parse().ok()?)
                    });
                    range.map_or(Match::Maybe, |range| Match::of(range.contains(&packet.length)))
                }
                "--dport" | "--dports" => ports(packet.port, value()),
                "--ctstate" | "--state" => {
                    let state = |state| packet.host.has_state(packet.conversation, state);
                    value().split(',').map(state).fold(Match::No, Match::or)
                }
                "-m" | "--comment" => {
                    let name = value();
                    let known = word == "--comment" || KNOWN_MODULES.contains(&name);
                    if known { Match::Yes } else { Match::Maybe }
                }
                "-j" | "-g" => {
                    verdict = match (word, value()) {
                        ("-j", "ACCEPT") => Verdict::Accept,
                        ("-j", "DROP" | "REJECT" | "TARPIT") => Verdict::Drop,
                        // What is led to another address does not come where it was sent.
                        ("-j", "DNAT" | "REDIRECT" | "NETMAP") => Verdict::Drop,
                        // A program says what becomes of it; if none does, it is dropped.
                        ("-j", "NFQUEUE") => {
                            is_for = is_for.and(Match::Maybe);
                            Verdict::Drop
                        }
                        ("-j", "RETURN") => Verdict::Return,
                        // Answers to another sender than one of this host do not come back.
                        ("-j", "SNAT") => {
                            let to = words.find(|word| *word == "--to-source");
                            let to = to.and_then(|_| words.next()).unwrap_or_default();
                            match to.parse().is_ok_and(|to| packet.host.loses_answers_to(to)) {
                                true => Verdict::Drop,
                                false => Verdict::Accept,
                            }
                        }
                        ("-j", "MASQUERADE") => Verdict::Accept,
                        // It ends on the way, if it is not for this host.
                        ("-j", "TTL" | "HL") if packet.hook == Hook::Forward => {
                            let set = ["--ttl-set", "--hl-set"];
                            let to = words.find(|word| set.contains(word));
                            let to = to.and_then(|_| words.next()?.parse::<u64>().ok());
                            if to.is_none_or(|to| to > TOO_FEW_HOPS) {
                                break;
                            }
                            is_for = is_for.and(Match::Maybe);
                            Verdict::Drop
                        }
                        // What leaves rules for something else, or only notes.
                        (
                            "-j",
                            "LOG" | "NFLOG" | "MARK" | "mark" | "CONNMARK" | "CT" | "TCPMSS"
                            | "NOTRACK" | "TRACE" | "CONTINUE" | "CHECKSUM" | "TTL" | "HL" | "log"
                            | "nflog",
                        ) => {
                            break;
                        }
                        ("-j", chain) => Verdict::Jump(chain.to_owned()),
                        (_, chain) => Verdict::Goto(chain.to_owned()),
                    };
                    // What follows belongs to the target.
                    break;
                }
                // An option that is not known here, or its value.
                _ => Match::Maybe,
            };
            is_for = is_for.and(if negated { one.not() } else { one });
            negated = false;
        }
        let drop = (verdict == Verdict::Drop).then(|| self.drop(program, table));
        JudgedRule { is_for, verdict, drop }
    }

    fn drop(&self, program: &str, table: &str) -> Drop {
        let text = self.text.trim_end();
        let rule = format!("the rule of {program}{table} `{text}`");
        let names_loopback = self.words.iter().any(|word| is_loopback(word));
        let fix = removal(&rule, names_loopback, format!("{program}{table} -D {text}"));
        Drop { rule, fix, packets: self.packets }
    }
}

fn device(name: &str, written: &str) -> Match {
    Match::of(written.strip_suffix('+').map_or(name == written, |prefix| name.starts_with(prefix)))
}

/// A port of a bridge against a name; it is not always known which it was.
fn port(name: &Option<String>, written: &str) -> Match {
    name.as_deref().map_or(Match::Maybe, |name| device(name, written))
}

/// `80`, `80:90`, `80,443,8000:8100`.
fn ports(port: Option<u16>, written: &str) -> Match {
    let Some(port) = port else { return Match::Maybe };
    let one = |written: &str| {
        let (low, high) = written.split_once(':').unwrap_or((written, written));
        let (low, high) = (low.parse().unwrap_or(0), high.parse().unwrap_or(u16::MAX));
        (low..=high).contains(&port)
    };
    Match::of(written.split(',').any(one))
}

#[cfg(test)]
mod tests {
    use super::super::path::Conversation;
    use super::*;

    fn tunnel() -> Packet {
        Packet {
            port: Some(8472),
            iif: "eth0".to_owned(),
            oif: "eth0".to_owned(),
            ..Packet::first(Hook::In, [192, 0, 2, 2].into(), [192, 0, 2, 1].into(), 17)
        }
    }

    fn dropped(rules: &str) -> Option<Drop> {
        let text = format!("*filter\n:INPUT ACCEPT [0:0]\n:ufw-in - [0:0]\n{rules}\nCOMMIT\n");
        Tables::read(&text).judge(&tunnel(), "iptables").surely
    }

    #[test]
    fn rules_that_drop_the_tunnel_are_found_and_others_are_not() {
        let found = dropped("-A INPUT -p udp -m udp --dport 8472 -j DROP").unwrap();
        assert_eq!(found.fix, "iptables -D INPUT -p udp -m udp --dport 8472 -j DROP");
        for drops in [
            "-A INPUT -i eth0 -j REJECT --reject-with icmp-port-unreachable",
            "-A INPUT -s 192.0.2.0/24 -j DROP",
            "-A INPUT ! -s 10.0.0.0/8 -m comment --comment \"not \\\"ours\\\" -j\" -j DROP",
            "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -j DROP",
            "-A INPUT -j ufw-in\n-A ufw-in -p udp -m multiport --dports 53,8000:9000 -j DROP",
        ] {
            assert!(dropped(drops).is_some(), "{drops}");
        }
        for passes in [
            "",
            "-A INPUT -p tcp -j DROP",
            "-A INPUT -p udp -m udp --dport 8473 -j DROP",
            "-A INPUT -i eth1 -j DROP",
            "-A INPUT -m conntrack --ctstate INVALID -j DROP",
            "-A INPUT -m mark --mark 0x8000/0x8000 -j DROP",
            "-A INPUT -p udp -m udp --dport 8472 -j ACCEPT\n-A INPUT -j DROP",
            "-A INPUT -m set --match-set nodes src -j ACCEPT\n-A INPUT -j DROP",
            "-A INPUT -j LOG --log-prefix \"-j DROP\"",
        ] {
            assert!(dropped(passes).is_none(), "{passes}");
        }
    }

    #[test]
    fn a_policy_that_drops_is_named_with_the_rule_that_lets_the_tunnel_through() {
        let text = "*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp -j ACCEPT\nCOMMIT\n";
        let found = Tables::read(text).judge(&tunnel(), "iptables").surely.unwrap();
        assert_eq!(found.fix, "iptables -I INPUT -p udp --dport 8472 -j ACCEPT");
        let open =
            "*filter\n:INPUT DROP [0:0]\n-A INPUT -p udp -m udp --dport 8472 -j ACCEPT\nCOMMIT\n";
        assert_eq!(Tables::read(open).judge(&tunnel(), "iptables").surely, None);
    }
    #[test]
    fn rules_for_some_packets_are_told_with_their_counters_and_sizes_and_states_are_known() {
        let judged = |rule: &str, packet: &Packet| {
            let text = format!("*raw\n:PREROUTING ACCEPT [0:0]\n[7:9000] {rule}\nCOMMIT\n");
            Tables::read(&text).judge(packet, "iptables")
        };
        let full = Packet { length: 1500, ..tunnel() };
        let long = "-A PREROUTING -m length --length 1000:65535 -j DROP";
        assert_eq!(judged(long, &tunnel()), Dropped::default());
        let found = judged(long, &full).surely.unwrap();
        assert_eq!(
            (found.fix, found.packets),
            (
                "iptables -t raw -D PREROUTING -m length --length 1000:65535 -j DROP".to_owned(),
                Some(7)
            )
        );
        for some in [
            "-A PREROUTING -m statistic --mode random --probability 0.05 -j DROP",
            "-A PREROUTING -m limit --limit 5/sec -j DROP",
            "-A PREROUTING -m mark --mark 0x1 -j DROP",
            "-A PREROUTING -p udp -m hashlimit --hashlimit-above 1/sec --hashlimit-name a -j DROP",
            "-A PREROUTING -p udp -j NFQUEUE --queue-num 0",
        ] {
            let dropped = judged(some, &tunnel());
            assert_eq!(dropped.surely, None, "{some}");
            assert_eq!(dropped.perhaps.first().and_then(|one| one.packets), Some(7), "{some}");
        }
        let begun = Packet { conversation: Conversation::Established, ..tunnel() };
        let state = "-A PREROUTING -m conntrack --ctstate ESTABLISHED -j DROP";
        assert!(
            judged(state, &begun).surely.is_some() && judged(state, &tunnel()).surely.is_none()
        );
    }

    #[test]
    fn rules_of_a_bridge_are_for_frames_of_its_ports() {
        let text = "*filter\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n\
                    [3:90] -A INPUT -p IPv4 -i veth1 --ip-dst 10.244.2.2 -j DROP\n\
                    [0:0] -A OUTPUT -p ARP --arp-ip-dst 10.244.1.2 -j DROP\n";
        let tables = Tables::read(text);
        let (pod, other) = ([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
        let from = |port: &str| Packet {
            bridge_ports: [Some(port.to_owned()), None],
            ..Packet::first(Hook::BridgeIn, pod, other, 6)
        };
        let found = tables.judge(&from("veth1"), "ebtables").surely.unwrap();
        assert_eq!(found.fix, "ebtables -D INPUT -p IPv4 -i veth1 --ip-dst 10.244.2.2 -j DROP");
        assert_eq!(tables.judge(&from("veth2"), "ebtables"), Dropped::default());
        let asked = Packet { is_arp: true, ..Packet::first(Hook::BridgeOut, other, pod, 0) };
        assert!(tables.judge(&asked, "ebtables").surely.is_some());
        assert!(tables.judge(&Packet { is_arp: false, ..asked }, "ebtables").surely.is_none());
    }
}
