//! Rules as `iptables-save` writes them.

use std::collections::BTreeMap;

use super::path::{Drop, Hook, Judged, Match, Packet, Verdict, address, protocol_number, walk};

#[derive(Debug, Default)]
pub(super) struct Tables(BTreeMap<String, Table>);

#[derive(Debug, Default)]
struct Table {
    /// Chains with their policy; none for those that are jumped to.
    chains: BTreeMap<String, Option<bool>>,
    rules: BTreeMap<String, Vec<Rule>>,
}

#[derive(Debug)]
struct Rule {
    /// As it was written, without `-A`.
    text: String,
    words: Vec<String>,
}

impl Tables {
    pub(super) fn read(text: &str) -> Self {
        let (mut tables, mut current) = (BTreeMap::<String, Table>::new(), String::new());
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                current = name.trim().to_owned();
                tables.entry(current.clone()).or_default();
                continue;
            }
            let Some(table) = tables.get_mut(&current) else { continue };
            if let Some(chain) = line.strip_prefix(':') {
                let mut words = chain.split(' ');
                let name = words.next().unwrap_or_default().to_owned();
                // `-` means that the chain has no policy; `true` is ACCEPT.
                let policy =
                    words.next().filter(|policy| *policy != "-").map(|policy| policy == "ACCEPT");
                table.chains.insert(name, policy);
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let words = words(rule);
                let chain = words.first().cloned().unwrap_or_default();
                let words = words.into_iter().skip(1).collect();
                table.rules.entry(chain).or_default().push(Rule { text: rule.to_owned(), words });
            }
        }
        Self(tables)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn drops(&self, packet: &Packet, program: &str) -> Option<Drop> {
        let chains: &[(&str, &str)] = match packet.hook {
            Hook::In => &[
                ("raw", "PREROUTING"),
                ("mangle", "PREROUTING"),
                ("mangle", "INPUT"),
                ("filter", "INPUT"),
            ],
            Hook::Out => &[
                ("raw", "OUTPUT"),
                ("mangle", "OUTPUT"),
                ("filter", "OUTPUT"),
                ("mangle", "POSTROUTING"),
            ],
            Hook::Forward => &[
                ("raw", "PREROUTING"),
                ("mangle", "PREROUTING"),
                ("mangle", "FORWARD"),
                ("filter", "FORWARD"),
                ("mangle", "POSTROUTING"),
            ],
        };
        chains.iter().find_map(|(table, chain)| {
            let of = if *table == "filter" { String::new() } else { format!(" -t {table}") };
            let found = self.0.get(*table)?;
            let rules = |chain: &str| -> Vec<Judged> {
                let rules = found.rules.get(chain).map_or(&[][..], Vec::as_slice);
                rules.iter().map(|rule| rule.judge(packet, program, &of)).collect()
            };
            let shut = found.chains.get(*chain) == Some(&Some(false));
            let policy = shut.then(|| Drop {
                rule: format!("the policy of {program}{of} {chain}"),
                fix: format!("{program}{of} -I {chain} {} -j ACCEPT", described(packet)),
            });
            walk(chain, 0, &rules).surely_dropped(policy)
        })
    }
}

/// In the words of a rule.
fn described(packet: &Packet) -> String {
    match (packet.hook, packet.protocol) {
        (Hook::Forward, _) => format!("-s {} -d {}", packet.src, packet.dst),
        (_, 17) => format!("-p udp --dport {}", packet.port),
        (_, protocol) => format!("-p {protocol}"),
    }
}

impl Rule {
    fn judge(&self, packet: &Packet, program: &str, table: &str) -> Judged {
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
                "-s" => address(packet.src, value()),
                "-d" => address(packet.dst, value()),
                // A device that comes in is not known of what this host sends, and the other way round.
                "-i" => match packet.hook {
                    Hook::Out => Match::of(value().is_empty()),
                    _ => device(&packet.iif, value()),
                },
                "-o" => match packet.hook {
                    Hook::In => Match::of(value().is_empty()),
                    _ => device(&packet.oif, value()),
                },
                "-p" => {
                    let number = protocol_number(value());
                    number.map_or(Match::Maybe, |number| {
                        Match::of(number == 0 || number == packet.protocol)
                    })
                }
                "--dport" | "--dports" => ports(packet.port, value()),
                "--ctstate" | "--state" => Match::of(
                    value().split(',').any(|state| state == "NEW" || state == "UNTRACKED"),
                ),
                "-m" | "--comment" => {
                    let known = ["udp", "tcp", "comment", "conntrack", "state", "multiport"];
                    let name = value();
                    if word == "--comment" || known.contains(&name) {
                        Match::Yes
                    } else {
                        Match::Maybe
                    }
                }
                "-j" | "-g" => {
                    verdict = match (word, value()) {
                        ("-j", "ACCEPT") => Verdict::Accept,
                        ("-j", "DROP" | "REJECT") => Verdict::Drop,
                        ("-j", "RETURN") => Verdict::Return,
                        // What leaves rules for something else, or only notes.
                        (
                            "-j",
                            "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "CT" | "TCPMSS" | "NOTRACK"
                            | "TRACE",
                        ) => {
                            break;
                        }
                        ("-j", chain) => Verdict::Jump(chain.to_owned()),
                        (_, chain) => Verdict::Goto(chain.to_owned()),
                    };
                    // What follows belongs to the target.
                    break;
                }
                other if other.starts_with('-') => {
                    // An option that is not known here, with or without a value.
                    Match::Maybe
                }
                _ => Match::Maybe,
            };
            is_for = is_for.and(if negated { one.not() } else { one });
            negated = false;
        }
        let drop = (verdict == Verdict::Drop).then(|| Drop {
            rule: format!("the rule of {program}{table} `{}`", self.text),
            fix: format!("{program}{table} -D {}", self.text),
        });
        Judged { is_for, verdict, drop }
    }
}

fn device(name: &str, written: &str) -> Match {
    Match::of(written.strip_suffix('+').map_or(name == written, |prefix| name.starts_with(prefix)))
}

/// `80`, `80:90`, `80,443,8000:8100`.
fn ports(port: u16, written: &str) -> Match {
    let one = |written: &str| {
        let (low, high) = written.split_once(':').unwrap_or((written, written));
        let (low, high) = (low.parse().unwrap_or(0), high.parse().unwrap_or(u16::MAX));
        (low..=high).contains(&port)
    };
    Match::of(written.split(',').any(one))
}

/// As a shell would part them.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
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

    fn dropped(rules: &str) -> Option<Drop> {
        let text = format!("*filter\n:INPUT ACCEPT [0:0]\n:ufw-in - [0:0]\n{rules}\nCOMMIT\n");
        Tables::read(&text).drops(&tunnel(), "iptables")
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
        let found = Tables::read(text).drops(&tunnel(), "iptables").unwrap();
        assert_eq!(found.fix, "iptables -I INPUT -p udp --dport 8472 -j ACCEPT");
        let open =
            "*filter\n:INPUT DROP [0:0]\n-A INPUT -p udp -m udp --dport 8472 -j ACCEPT\nCOMMIT\n";
        assert_eq!(Tables::read(open).drops(&tunnel(), "iptables"), None);
    }
}
