//! Whatever is done to the rules, they are soon as they were.

use std::time::Duration;

use flannel_common::SearchPath;
use flannel_entries::rules::Mode;
use flannel_traffic::TrafficApplier;
use flannel_wanted::Applier as _;

use crate::support::{Node, dual, enter_new_namespace, picture, rules, run, run_with, wait_until};

const LIMIT: Duration = Duration::from_secs(20);

/// A node that never looks at its rules of its own accord while a test lasts: what it repairs, it was
/// told of.
fn node_that_is_told() -> Node {
    enter_new_namespace();
    let path = SearchPath::of_environment();
    Node::with(TrafficApplier::new(Duration::from_secs(3600), path, &[], 1))
}

/// Vandalises, and waits for the repair.
#[track_caller]
fn assert_repaired(vandalism: &[&str]) {
    let before = picture();
    for command in vandalism {
        run(command);
        let time = wait_until(command, LIMIT, || picture() == before);
        println!("{time:8.1?}  {command}");
    }
}

#[test]
fn every_kind_of_vandalism_to_nftables_is_repaired_at_once() {
    let node = node_that_is_told();
    node.set(&dual(Mode::Nftables));
    let table = "ip flannel-ipv4";
    assert_repaired(&[
        "nft flush ruleset",
        &format!("nft delete table {table}"),
        &format!("nft flush table {table}"),
        &format!("nft flush chain {table} postrtg"),
        &format!("nft insert rule {table} postrtg accept"),
        &format!("nft add rule {table} postrtg drop"),
        &format!("nft 'add chain {table} forward {{ policy drop; }}'"),
        &format!("nft 'delete chain {table} forward'"),
        &format!("nft 'add chain {table} mine; add rule {table} mine accept'"),
    ]);
    assert_repaired(&[
        "nft delete table ip6 flannel-ipv6",
        "nft 'add table ip6 flannel-ipv6 { flags dormant; }'",
    ]);
}

const IPTABLES_VANDALISM: &[&str] = &[
    "iptables -t nat -F",
    "iptables -t nat -F FLANNEL-POSTRTG",
    "iptables -t nat -D FLANNEL-POSTRTG 5",
    "iptables -t nat -I FLANNEL-POSTRTG -j ACCEPT",
    "iptables -t nat -I FLANNEL-POSTRTG 3 -s 1.2.3.4 -j RETURN",
    "iptables -t nat -D POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG",
    "iptables -t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG",
    "iptables -F",
    "iptables -R FLANNEL-FWD 1 -j DROP",
];

#[test]
fn every_kind_of_vandalism_to_iptables_is_repaired_at_once() {
    let node = node_that_is_told();
    node.set(&dual(Mode::Iptables));
    assert_repaired(IPTABLES_VANDALISM);
}

#[test]
fn nft_flush_ruleset_and_a_firewalls_reload_are_repaired_in_iptables_too() {
    let node = Node::new();
    node.set(&dual(Mode::Iptables));
    assert_repaired(&[
        "nft flush ruleset",
        // A repair may come between two of them.
        "iptables -F -t nat; iptables -X -t nat; iptables -F; iptables -X; true",
        "ip6tables -t nat -F; ip6tables -F FLANNEL-FWD",
    ]);
}

#[test]
fn vandalism_to_iptables_legacy_is_repaired_at_the_next_look() {
    let node = Node::new();
    run("iptables-legacy -t mangle -N KUBE-KUBELET-CANARY");
    node.set(&dual(Mode::Iptables));
    let vandalism: Vec<String> =
        IPTABLES_VANDALISM.iter().map(|line| line.replace("iptables", "iptables-legacy")).collect();
    let vandalism: Vec<&str> = vandalism.iter().map(String::as_str).collect();
    assert_repaired(&vandalism[..4]);
    assert_repaired(&["ip6tables-legacy -t nat -F FLANNEL-POSTRTG"]);
}

#[test]
fn changes_elsewhere_in_the_same_tables_stay() {
    let node = Node::new();
    node.set(&rules(Mode::Iptables));
    run_with(
        "iptables-restore --noflush",
        "*nat\n:KUBE-POSTROUTING - [0:0]\n-I POSTROUTING -j KUBE-POSTROUTING\n\
         -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\nCOMMIT\n",
    );
    run("nft add table inet firewalld");
    let before = picture();
    run("iptables -t nat -F FLANNEL-POSTRTG");
    wait_until("the repair", LIMIT, || picture() == before);
    for stranger in ["jump KUBE-POSTROUTING", "ip saddr 172.17.0.0/16", "table inet firewalld"] {
        assert!(before.contains(stranger), "no {stranger} in {before}");
    }
}

#[test]
fn who_undoes_the_rules_again_and_again_is_reported() {
    let node = Node::new();
    node.set(&rules(Mode::Nftables));
    let mut status = node.traffic.watch_status();
    let before = picture();
    wait_until("a pause", Duration::from_secs(20), || {
        if picture() == before {
            // Long enough for it to have seen its work done.
            std::thread::sleep(Duration::from_millis(50));
            run("nft delete table ip flannel-ipv4");
        }
        !status.borrow_and_update().is_settled()
    });
    let why = status.borrow().problems[0].reason.clone();
    assert!(why.contains("again and again (last changed by nft, process "), "{why}");
    wait_until("peace", LIMIT, || status.borrow_and_update().is_settled());
    assert_eq!(picture(), before);
}
