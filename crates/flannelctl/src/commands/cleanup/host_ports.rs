//! What the plugin `portmap` leaves in the firewall when the last published port is gone: chains that pods shared, and
//! a table. Where a port is still published, by whichever network, it stays.

use std::fs;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// What the names of its chains in iptables begin with, and the one that has a rule for each published port.
const CHAINS: &str = "CNI-HOSTPORT-";
const ENTRY: &str = "CNI-HOSTPORT-DNAT";
/// Its table in nftables, and the chains in it that have rules of pods.
const TABLE: &str = "cni_hostport";
const OF_PODS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];

/// The programs of iptables, and the file that says whether the kernel has tables of the older kind: asking for them
/// would make them.
const PROGRAMS: [(&str, Option<&str>); 4] = [
    ("iptables-nft", None),
    ("ip6tables-nft", None),
    ("iptables-legacy", Some("/proc/self/net/ip_tables_names")),
    ("ip6tables-legacy", Some("/proc/self/net/ip6_tables_names")),
];

/// In words.
pub(super) fn find() -> anyhow::Result<Vec<String>> {
    Ok(leftovers()?.iter().map(Leftover::words).collect())
}

/// Removes them, and says what that was.
pub(super) fn remove() -> anyhow::Result<Vec<String>> {
    let mut removed = Vec::new();
    for leftover in leftovers()? {
        leftover.remove()?;
        removed.push(leftover.words());
    }
    Ok(removed)
}

enum Leftover {
    /// Chains of one program, and what makes its `-restore` remove them.
    Chains {
        program: &'static str,
        removal: String,
    },
    Table {
        family: &'static str,
    },
}

impl Leftover {
    fn words(&self) -> String {
        match self {
            Self::Chains { program, .. } => format!("{program}: chains {CHAINS}*"),
            Self::Table { family } => format!("nft table {family} {TABLE}"),
        }
    }

    fn remove(&self) -> anyhow::Result<()> {
        match self {
            Self::Chains { program, removal } => {
                run(&format!("{program}-restore"), &["--noflush", "--wait"], removal).map(drop)
            }
            Self::Table { family } => run("nft", &["delete", "table", family, TABLE], "").map(drop),
        }
    }
}

fn leftovers() -> anyhow::Result<Vec<Leftover>> {
    let mut found = Vec::new();
    for (program, tables) in PROGRAMS {
        let has_nat = |file: &str| {
            fs::read_to_string(file).is_ok_and(|tables| tables.lines().any(|it| it == "nat"))
        };
        if !tables.is_none_or(has_nat) {
            continue;
        }
        // Whoever has no such program cannot have made such chains with it.
        let Some(saved) = run(&format!("{program}-save"), &["-t", "nat"], "")? else { continue };
        found.extend(removal(&saved).map(|removal| Leftover::Chains { program, removal }));
    }
    for family in ["ip", "ip6"] {
        let tables = run("nft", &["-j", "list", "tables", family], "")?.unwrap_or_default();
        if !is_listed(&tables) {
            continue;
        }
        let listed = run("nft", &["-j", "list", "table", family, TABLE], "")?.unwrap_or_default();
        if !has_rules_of_pods(&listed) {
            found.push(Leftover::Table { family });
        }
    }
    Ok(found)
}

/// The chains, and what leads to them, as `-restore` removes them. `None`: there are none, or a port is published.
fn removal(saved: &str) -> Option<String> {
    let chains: Vec<&str> = saved
        .lines()
        .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
        .filter(|chain| chain.starts_with(CHAINS))
        .collect();
    let is_used = saved.lines().any(|line| line.starts_with(&format!("-A {ENTRY} ")));
    if chains.is_empty() || is_used {
        return None;
    }
    let leads_there = |line: &&str| line.contains(&format!(" -j {CHAINS}"));
    let rules = saved.lines().filter(leads_there).filter_map(|line| line.strip_prefix("-A "));
    let mut lines = vec!["*nat".to_owned()];
    lines.extend(rules.map(|rule| format!("-D {rule}")));
    lines.extend(chains.iter().map(|chain| format!("-F {chain}")));
    lines.extend(chains.iter().map(|chain| format!("-X {chain}")));
    lines.push("COMMIT\n".to_owned());
    Some(lines.join("\n"))
}

fn is_listed(tables: &str) -> bool {
    objects(tables).iter().any(|object| object["table"]["name"] == TABLE)
}

fn has_rules_of_pods(table: &str) -> bool {
    let of_pods = |object: &Value| OF_PODS.iter().any(|chain| object["rule"]["chain"] == *chain);
    objects(table).iter().any(of_pods)
}

fn objects(listed: &str) -> Vec<Value> {
    let listed: Value = serde_json::from_str(listed).unwrap_or_default();
    listed["nftables"].as_array().cloned().unwrap_or_default()
}

/// What it prints. `None`: there is no such program.
fn run(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<Option<String>> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        child => child.with_context(|| format!("run {program}"))?,
    };
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).with_context(|| format!("tell {program}"))?;
    }
    let output = child.wait_with_output().with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "\
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment \"CNI portfwd\" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
COMMIT
";

    #[test]
    fn chains_without_a_port_go_with_all_that_leads_to_them() {
        let wanted = "\
*nat
-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-D POSTROUTING -m comment --comment \"CNI portfwd\" -j CNI-HOSTPORT-MASQ
-F CNI-HOSTPORT-DNAT
-F CNI-HOSTPORT-MASQ
-X CNI-HOSTPORT-DNAT
-X CNI-HOSTPORT-MASQ
COMMIT
";
        assert_eq!(removal(SAVED).as_deref(), Some(wanted));
        assert_eq!(removal("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"), None);
    }

    #[test]
    fn a_published_port_of_whichever_network_keeps_everything() {
        let rule = "-A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 80 -j CNI-DN-0123456789abcdef\n";
        assert_eq!(removal(&SAVED.replace("COMMIT", &format!("{rule}COMMIT"))), None);
        let rule = |chain: &str| format!(r#"{{"nftables":[{{"rule":{{"chain":"{chain}"}}}}]}}"#);
        assert!(has_rules_of_pods(&rule("hostports")));
        assert!(!has_rules_of_pods(&rule("loopback_guard")));
    }
}
