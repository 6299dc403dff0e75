//! The traffic rules of a node: they follow the network and the flags, and leave nothing behind.

use flannel_lab::{Node, Result};
use serde_json::{Value, json};

use crate::support::{LIMIT, lab};

const PROGRAMS: [&str; 3] =
    ["/usr/sbin/nft", "/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"];

/// All rules of a node, of every kind. Counters and dates change by themselves.
fn listing(node: &Node) -> Result<String> {
    let commands = "nft list ruleset; iptables-legacy-save; ip6tables-legacy-save";
    let text = node.exec(&["sh", "-c", commands])?;
    let lines = text.lines().filter(|line| !line.starts_with(['#', ':']));
    Ok(lines.map(|line| format!("{}\n", line.trim())).collect())
}

fn config(nftables: bool) -> Value {
    json!({
        "Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:244::/48",
        "EnableNFTables": nftables, "Backend": {"Type": "vxlan"}
    })
}

/// Restarts the daemon as one that wants no rules.
fn want_none(node: &Node) -> Result<()> {
    for flag in ["--ip-masq=false", "--iptables-forward-rules=false"] {
        node.flanneld().add_flag(flag);
    }
    node.flanneld().restart()
}

/// As if no program for packet filter rules were installed on the node.
fn hide_programs(node: &Node) -> Result<()> {
    for program in PROGRAMS {
        node.exec(&["mount", "--bind", "/dev/null", program])?;
    }
    Ok(())
}

/// A daemon that wants no rules at all, after one that had them.
fn the_rules_of_a_former_run_go(nftables: bool) -> Result<()> {
    let lab = lab(1).config_json(&config(nftables).to_string()).flag("--ip-masq").start()?;
    let node = lab.node(1);
    node.exec(&["iptables", "-A", "FORWARD", "-s", "10.99.0.0/16", "-j", "ACCEPT"])?;
    let before = listing(node)?;
    let traces = if nftables {
        ["table ip flannel-ipv4", "table ip6 flannel-ipv6"]
    } else {
        ["FLANNEL-POSTRTG", "FLANNEL-FWD"]
    };
    for trace in traces {
        assert!(before.contains(trace), "no {trace} to begin with:\n{before}");
    }
    // Whoever wants no rules needs no program for them, not even to be rid of old ones.
    hide_programs(node)?;
    want_none(node)?;
    for program in PROGRAMS {
        node.exec(&["umount", program])?;
    }
    let after = listing(node)?;
    assert!(!after.to_lowercase().contains("flannel"), "rules are left:\n{after}");
    assert!(after.contains("10.99.0.0/16"), "somebody else's rule is gone:\n{after}");
    let log = node.flanneld().log();
    assert!(log.contains("removed what nobody wants any more"), "{log}");
    assert!(!log.contains("is not installed"), "{log}");

    // And back again.
    node.flanneld().add_flag("--ip-masq");
    node.flanneld().restart()?;
    let again = listing(node)?;
    assert!(again.contains(traces[0]), "no {} again:\n{again}", traces[0]);
    Ok(())
}

#[test]
fn a_node_that_wants_no_rules_any_more_loses_those_of_nftables() -> Result<()> {
    the_rules_of_a_former_run_go(true)
}

#[test]
fn a_node_that_wants_no_rules_any_more_loses_those_of_iptables() -> Result<()> {
    the_rules_of_a_former_run_go(false)
}

#[test]
fn a_node_that_wants_no_rules_any_more_loses_those_of_iptables_legacy() -> Result<()> {
    let lab =
        lab(1).config_json(&config(false).to_string()).flag("--ip-masq").no_daemons().start()?;
    let node = lab.node(1);
    // As the Go flannel leaves them on a node whose iptables is the older one.
    for arguments in [
        "-t nat -N FLANNEL-POSTRTG",
        "-t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -j MASQUERADE",
        "-t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG",
        "-N FLANNEL-FWD",
        "-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT",
        "-A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD",
    ] {
        node.exec(&["sh", "-c", &format!("iptables-legacy {arguments}")])?;
    }
    want_none(node)?;
    let after = listing(node)?;
    assert!(!after.to_lowercase().contains("flannel"), "rules are left:\n{after}");
    Ok(())
}

/// Writes a config and waits for rules that have all of these parts, and nothing of the others.
fn change(lab: &flannel_lab::Lab, config: &Value, parts: &[&str], gone: &[&str]) -> Result<()> {
    lab.put_config(&config.to_string())?;
    lab.wait_until("the rules", LIMIT, || {
        let text = listing(lab.node(1)).map_err(|error| error.to_string())?;
        let right = parts.iter().all(|part| text.contains(part))
            && !gone.iter().any(|part| text.contains(part));
        if right { Ok(()) } else { Err(format!("{config}:\n{text}")) }
    })
}

#[test]
fn the_rules_follow_the_network_its_families_its_exclusions_and_the_mode() -> Result<()> {
    let lab = lab(1).config_json(&config(false).to_string()).flag("--ip-masq").start()?;
    let mut config = config(false);
    change(&lab, &config, &["FLANNEL-POSTRTG", "10.244.0.0/16", "fd00:244::/48"], &["10.99."])?;

    config["MasqueradeExclude"] = json!(["172.16.0.0/12"]);
    change(&lab, &config, &["172.16.0.0/12", "fd00:244::/48"], &[])?;

    config["Network"] = json!("10.99.0.0/16");
    change(&lab, &config, &["10.99.0.0/16", "172.16.0.0/12", "fd00:244::/48"], &["10.244."])?;

    config["EnableIPv6"] = json!(false);
    change(&lab, &config, &["10.99.0.0/16"], &["10.244.", "fd00:"])?;
    let chains = lab.node(1).exec(&["ip6tables-save"])?;
    assert!(!chains.contains("FLANNEL"), "{chains}");

    config["EnableNFTables"] = json!(true);
    change(
        &lab,
        &config,
        &["table ip flannel-ipv4", "10.99.0.0/16"],
        &["FLANNEL", "flannel-ipv6"],
    )?;

    config["MasqueradeExclude"] = json!([]);
    config["EnableIPv6"] = json!(true);
    change(&lab, &config, &["flannel-ipv6", "fd00:244::/48"], &["FLANNEL", "172.16."])?;

    config["EnableNFTables"] = json!(false);
    change(&lab, &config, &["FLANNEL-FWD", "10.99.0.0/16", "fd00:244::/48"], &["flannel-ipv"])
}

#[test]
fn rules_that_somebody_flushes_are_back_and_the_log_says_so() -> Result<()> {
    let lab = lab(1).flag("--ip-masq").start()?;
    let node = lab.node(1);
    let rules = || -> Result<Vec<String>> {
        let text = node.exec(&["iptables-save"])?;
        Ok(text.lines().filter(|line| line.contains("FLANNEL")).map(String::from).collect())
    };
    let before = rules()?;
    assert_eq!(before.len(), 2 + 2 + 6 + 2, "chains, jumps, masquerade, forward: {before:?}");
    node.exec(&["nft", "flush", "ruleset"])?;
    lab.wait_until("the rules again", LIMIT, || {
        let mut now = rules().map_err(|error| error.to_string())?;
        now.sort();
        let mut wanted = before.clone();
        wanted.sort();
        if now == wanted { Ok(()) } else { Err(format!("{now:?}")) }
    })?;
    lab.wait_until("a word about it", LIMIT, || {
        node.flanneld().log().contains("restored the IPv4 traffic rules (last changed by nft")
    })
}

#[test]
fn without_any_program_for_rules_a_node_that_must_masquerade_says_what_to_install() -> Result<()> {
    let lab = lab(1).flag("--ip-masq").no_daemons().start()?;
    let node = lab.node(1);
    hide_programs(node)?;
    node.flanneld().start()?;
    lab.wait_until("its end", LIMIT, || !node.flanneld().is_running())?;
    let log = node.flanneld().log();
    assert!(log.contains("neither iptables nor any other program"), "{log}");
    assert!(log.contains("install the package nftables"), "{log}");
    Ok(())
}

#[test]
fn without_any_program_for_rules_a_node_that_need_not_masquerade_goes_on() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let node = lab.node(1);
    hide_programs(node)?;
    node.flanneld().restart()?;
    let log = node.flanneld().log();
    assert!(log.contains("Cannot set up the forward rules: neither iptables"), "{log}");
    Ok(())
}
