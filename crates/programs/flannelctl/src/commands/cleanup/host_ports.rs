//! Chains and table that the plugin `portmap` leaves when the last published port, of any network, is gone.

use std::fs;
use std::io;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use flannel_common::run_program;
use flannel_nft::{Batch, Nft, SavedLine, TableFamily, read_saved};

use super::Report;

/// What the names of its chains in iptables begin with, and the one that has a rule for each published port.
const CHAINS: &str = "CNI-HOSTPORT-";
const ENTRY: &str = "CNI-HOSTPORT-DNAT";
/// Its table in nftables, and the chains in it that have rules of pods.
const TABLE: &str = "cni_hostport";
const OF_PODS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];

/// Programs of iptables, and the file that says whether the older tables exist: asking for them would make them.
const PROGRAMS: [(&str, Option<&str>); 4] = [
    ("iptables-nft", None),
    ("ip6tables-nft", None),
    ("iptables-legacy", Some("/proc/self/net/ip_tables_names")),
    ("ip6tables-legacy", Some("/proc/self/net/ip6_tables_names")),
];

/// Longer than a program waits for the lock of the firewall on a busy host.
const FIREWALL_PROGRAM_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn clean(report: &mut Report) -> anyhow::Result<()> {
    for (program, tables) in PROGRAMS {
        let has_nat = |file: &str| {
            fs::read_to_string(file).is_ok_and(|tables| tables.lines().any(|it| it == "nat"))
        };
        if !tables.is_none_or(has_nat) {
            continue;
        }
        // Whoever has no such program cannot have made such chains with it.
        let Some(saved) = run(&format!("{program}-save"), &["-t", "nat"], "")? else { continue };
        let Some(removal) = removal(&saved) else { continue };
        report.clean(format!("{program}: chains {CHAINS}*"), || {
            run(&format!("{program}-restore"), &["--noflush", "--wait"], &removal).map(drop)
        });
    }
    // A kernel without nftables has nothing of it.
    let Ok(mut nft) = Nft::open() else { return Ok(()) };
    for family in [TableFamily::Ipv4, TableFamily::Ipv6] {
        let is_of_pod = |rule: &flannel_nft::Rule| OF_PODS.contains(&rule.chain.as_str());
        if nft.table(family, TABLE)?.is_none()
            || nft.all_rules(family, TABLE)?.iter().any(is_of_pod)
        {
            continue;
        }
        report.clean(format!("nft table {} {TABLE}", family.name()), || {
            let mut batch = Batch::new(family, TABLE);
            batch.delete_table();
            Ok(nft.commit(&batch)?)
        });
    }
    Ok(())
}

/// The chains, and what leads to them, as `-restore` removes them. `None`: there are none, or a port is published.
fn removal(saved: &str) -> Option<String> {
    let (mut chains, mut rules) = (Vec::new(), Vec::new());
    for line in read_saved(saved) {
        match line {
            SavedLine::Chain { name, .. } if name.starts_with(CHAINS) => chains.push(name),
            SavedLine::Rule(rule) if rule.chain == ENTRY => return None,
            SavedLine::Rule(rule) if rule.option("-j").is_some_and(|to| to.starts_with(CHAINS)) => {
                rules.push(rule.text);
            }
            _ => {}
        }
    }
    if chains.is_empty() {
        return None;
    }
    let mut lines = vec!["*nat".to_owned()];
    lines.extend(rules.iter().map(|rule| format!("-D {rule}")));
    lines.extend(chains.iter().map(|chain| format!("-F {chain}")));
    lines.extend(chains.iter().map(|chain| format!("-X {chain}")));
    lines.push("COMMIT\n".to_owned());
    Some(lines.join("\n"))
}

fn run(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<Option<String>> {
    run_within(FIREWALL_PROGRAM_TIMEOUT, program, arguments, input)
}

fn run_within(
    limit: Duration,
    program: &str,
    arguments: &[&str],
    input: &str,
) -> anyhow::Result<Option<String>> {
    let mut output = Vec::new();
    let mut command = Command::new(program);
    let ended = run_program(command.args(arguments), input.as_bytes(), limit, |piece| {
        output.extend_from_slice(piece);
    });
    match ended {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            bail!(
                "{program} has not ended after {limit:?}: another program may hold the lock of the firewall"
            )
        }
        ended => {
            let ended = ended.with_context(|| format!("run {program}"))?;
            let errors = String::from_utf8_lossy(&ended.errors);
            anyhow::ensure!(ended.status.success(), "{program}: {}", errors.trim());
        }
    }
    Ok(Some(String::from_utf8_lossy(&output).into_owned()))
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
    fn a_program_that_hangs_is_ended_and_named() {
        let limit = Duration::from_millis(50);
        let error =
            run_within(limit, "sleep", &["600"], "").expect_err("it does not end by itself");
        assert!(error.to_string().starts_with("sleep has not ended after 50ms"), "{error}");
        assert!(matches!(run("flannel-no-such-program", &[], ""), Ok(None)));
    }

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
    }
}
