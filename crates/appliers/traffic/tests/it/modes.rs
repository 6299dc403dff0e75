//! From one wish to another: what was goes, what shall be comes, and nobody else's is touched.

use flannel_entries::rules::{Mode, NodeRules};
use flannel_traffic::cleanup;

use crate::support::{Node, dual, family, nft_ruleset, picture, rules, run, saved, v6};

/// NodeRules of others in every place where ours may be.
fn settle_strangers() {
    run("iptables -t nat -N KUBE-POSTROUTING
         iptables -t nat -A POSTROUTING -j KUBE-POSTROUTING
         iptables -A FORWARD -s 172.17.0.0/16 -j ACCEPT
         ip6tables -A FORWARD -s fd17::/64 -j ACCEPT
         iptables-legacy -t nat -N LIBVIRT
         iptables-legacy -t nat -A POSTROUTING -j LIBVIRT
         nft add table inet firewalld");
}

#[test]
fn modes_can_be_switched_back_and_forth() {
    let node = Node::new();
    settle_strangers();
    let bare = picture();
    let mut cycles = Vec::new();
    for _ in 0..3 {
        let cycle = [Mode::Nftables, Mode::Iptables].map(|mode| {
            node.set(&dual(mode));
            let now = picture();
            assert_eq!(now.contains("flannel-ipv4"), mode == Mode::Nftables, "{mode:?}: {now}");
            assert_eq!(now.contains("FLANNEL-"), mode == Mode::Iptables, "{mode:?}: {now}");
            now
        });
        cycles.push(cycle);
    }
    assert_eq!(cycles[1], cycles[2]);
    drop(node);
    cleanup(None).unwrap();
    assert_still_there(&bare);
}

/// The tables that iptables has made on our behalf stay, with nothing in them.
#[track_caller]
fn assert_still_there(bare: &str) {
    let now = picture();
    assert!(!now.to_lowercase().contains("flannel"), "{now}");
    for line in bare.lines() {
        assert!(now.contains(line), "{line} is gone");
    }
}

#[test]
fn defect_58_chains_of_iptables_go_with_their_jumps_from_the_right_tables() {
    for variant in ["-nft", "-legacy"] {
        let test = move || {
            let node = Node::new();
            settle_strangers();
            let bare = picture();
            for (program, net) in [("iptables", "10.244.0.0/16"), ("ip6tables", "fd00:244::/56")] {
                let program = format!("{program}{variant}");
                run(&format!(
                    "{program} -t nat -N FLANNEL-POSTRTG && {program} -N FLANNEL-FWD
                     {program} -t nat -A FLANNEL-POSTRTG -s {net} -j MASQUERADE
                     {program} -A FLANNEL-FWD -s {net} -j ACCEPT
                     {program} -t nat -A POSTROUTING -m comment --comment 'flanneld masq' \
                         -j FLANNEL-POSTRTG
                     {program} -A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD"
                ));
            }
            node.set(&rules(Mode::Nftables));
            drop(node);
            run("nft delete table ip flannel-ipv4");
            assert_still_there(&bare);
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn rules_in_the_other_variant_of_iptables_go_too() {
    let node = Node::new();
    run("iptables-legacy -t mangle -N KUBE-KUBELET-CANARY");
    node.set(&rules(Mode::Iptables));
    assert!(saved("iptables-legacy-save", "nat").contains("FLANNEL-POSTRTG"));
    drop(node);
    // kubelet has moved to the other variant.
    run("iptables-legacy -t mangle -X; iptables-nft -t mangle -N KUBE-KUBELET-CANARY");
    let node = Node::here();
    node.set(&rules(Mode::Iptables));
    assert!(!saved("iptables-legacy-save", "nat").contains("FLANNEL"));
    assert!(!saved("iptables-legacy-save", "filter").contains("FLANNEL"));
    assert!(saved("iptables-nft-save", "nat").contains("FLANNEL-POSTRTG"));
    drop(node);
    run("iptables-nft -t mangle -X; iptables-legacy -t mangle -N KUBE-KUBELET-CANARY");
    let node = Node::here();
    node.set(&rules(Mode::Iptables));
    assert!(saved("iptables-legacy-save", "nat").contains("FLANNEL-POSTRTG"));
    assert!(!nft_ruleset().contains("FLANNEL"));
}

#[test]
fn a_family_a_purpose_and_a_network_can_come_and_go() {
    for mode in [Mode::Nftables, Mode::Iptables] {
        let test = move || {
            let node = Node::new();
            node.set(&rules(mode));
            let alone = picture();
            node.set(&dual(mode));
            assert!(picture().contains("fd00:244::/56"));
            node.set(&NodeRules { v4: None, v6: Some(v6()), ..rules(mode) });
            assert!(!picture().contains("10.244"), "{}", picture());
            let other = Some(family("10.9.0.0/16", "10.9.3.0/24"));
            node.set(&NodeRules { v4: other, ..rules(mode) });
            assert!(picture().contains("10.9.3.0/24"));
            assert!(!picture().contains("fd00:244"), "{}", picture());
            node.set(&NodeRules { masquerade: false, ..rules(mode) });
            assert!(!picture().contains("10.9."), "{}", picture());
            assert!(!picture().contains("masquerade "), "{}", picture());
            node.set(&NodeRules { forward: false, ..rules(mode) });
            assert!(!picture().contains("accept\n\t\tip daddr"), "{}", picture());
            node.set(&rules(mode));
            let lines = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.sort();
                lines.dedup();
                lines
            };
            let missing: Vec<_> =
                lines(&alone).into_iter().filter(|l| !lines(&picture()).contains(l)).collect();
            assert!(missing.is_empty(), "{missing:?} not in {}", picture());
            node.set(&NodeRules { masquerade: false, forward: false, ..rules(mode) });
            assert!(!picture().to_lowercase().contains("flannel"), "{}", picture());
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn the_rules_outlive_the_daemon() {
    let node = Node::new();
    node.set(&rules(Mode::Nftables));
    let before = picture();
    drop(node);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(picture(), before);
}

#[test]
fn defect_62_clean_up_removes_all_of_ours_and_nothing_else() {
    let node = Node::new();
    settle_strangers();
    let bare = picture();
    node.set(&dual(Mode::Nftables));
    drop(node);
    assert_eq!(cleanup(Some(Mode::Iptables)).unwrap(), [""; 0]);
    assert!(picture().contains("flannel-ipv4"));
    assert_eq!(cleanup(None).unwrap(), ["IPv4 table flannel-ipv4", "IPv6 table flannel-ipv6"]);
    assert_eq!(picture(), bare);

    let node = Node::here();
    node.set(&rules(Mode::Iptables));
    drop(node);
    run("iptables -t nat -A KUBE-POSTROUTING -j FLANNEL-POSTRTG");
    assert_eq!(
        cleanup(None).unwrap(),
        ["IPv4 chain FLANNEL-POSTRTG of nat", "IPv4 chain FLANNEL-FWD of filter"]
    );
    let left = saved("iptables-save", "nat");
    assert!(left.contains("-A KUBE-POSTROUTING -j FLANNEL-POSTRTG"), "{left}");
    assert!(!left.contains("-A FLANNEL-POSTRTG"), "{left}");
    run("iptables -t nat -F KUBE-POSTROUTING");
    cleanup(None).unwrap();
    assert_still_there(&bare);
    assert_eq!(cleanup(None).unwrap(), [""; 0]);
}

#[test]
fn clean_up_finds_iptables_legacy() {
    let node = Node::new();
    run("iptables-legacy -t mangle -N KUBE-KUBELET-CANARY");
    node.set(&dual(Mode::Iptables));
    drop(node);
    assert_eq!(cleanup(None).unwrap().len(), 4);
    assert!(!picture().contains("FLANNEL"));
}
