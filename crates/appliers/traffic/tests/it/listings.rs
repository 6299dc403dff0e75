//! What people see: the same as with the Go flannel, recorded in `tests/data`, except where that is wrong.

use flannel_entries::rules::{Mode, NodeRules};

use crate::support::{Node, nft_ruleset, rules, run, run_with, saved, v4, v6};

fn recorded(case: &str) -> String {
    let path = format!("{}/tests/data/go-{case}.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The blocks of `iptables-save` for one table; dual-stack recordings have two.
fn recorded_tables(case: &str, table: &str) -> Vec<String> {
    let text = recorded(case);
    text.split_inclusive("COMMIT\n")
        .filter_map(|block| block.find(&format!("*{table}\n")).map(|at| block[at..].to_owned()))
        .collect()
}

#[track_caller]
fn assert_recorded(case: &str, programs: &[&str]) {
    for table in ["nat", "filter"] {
        let expected = recorded_tables(case, table);
        for (number, program) in programs.iter().enumerate() {
            let shown = saved(program, table);
            match expected.get(number) {
                Some(expected) => assert_eq!(shown, *expected, "{program} -t {table}"),
                None => assert!(!shown.contains("FLANNEL"), "{program} -t {table}: {shown}"),
            }
        }
    }
}

#[test]
fn iptables_save_is_byte_for_byte_the_go_flannels() {
    let node = Node::new();
    node.set(&rules(Mode::Iptables));
    assert_recorded("vxlan-v4-masq-iptables", &["iptables-save", "ip6tables-save"]);
}

#[test]
fn without_random_ports_too() {
    let node = Node::new();
    let v4 = Some(v4("10.244.9.0/24"));
    node.set(&NodeRules { v4, random_fully: false, ..rules(Mode::Iptables) });
    assert_recorded("vxlan-v4-masq-random", &["iptables-save"]);
}

#[test]
fn with_both_families_too() {
    let node = Node::new();
    let v4 = Some(v4("10.244.69.0/24"));
    node.set(&NodeRules { v4, v6: Some(v6()), ..rules(Mode::Iptables) });
    assert_recorded("vxlan-dual", &["iptables-save", "ip6tables-save"]);
}

#[test]
fn without_masquerade_the_nat_table_is_untouched() {
    let node = Node::new();
    node.set(&NodeRules { masquerade: false, ..rules(Mode::Iptables) });
    assert_recorded("alloc-v4", &["iptables-save"]);
    assert!(!nft_ruleset().contains("table ip nat"));
}

#[test]
fn iptables_legacy_holds_the_same_rules() {
    let node = Node::new();
    // A kubelet that uses iptables-legacy.
    run("iptables-legacy -t mangle -N KUBE-KUBELET-CANARY");
    node.set(&rules(Mode::Iptables));
    assert_recorded("vxlan-v4-masq-iptables", &["iptables-legacy-save"]);
    assert!(!nft_ruleset().contains("FLANNEL"));
}

#[test]
fn rules_of_a_former_go_flannel_with_another_subnet_are_replaced() {
    let node = Node::new();
    let case = "vxlan-v4-masq-random";
    for table in ["nat", "filter"] {
        run_with("iptables-restore", &recorded_tables(case, table)[0]);
    }
    node.set(&rules(Mode::Iptables));
    assert_recorded("vxlan-v4-masq-iptables", &["iptables-save"]);
}

/// The Go flannel's nft rules, put right: the mark is masked, the fourth rule is that of iptables, so that
/// the sixth can be reached, and a family that is not in use has no table.
fn recorded_nft() -> String {
    let text = recorded("vxlan-v4-masq-nft");
    let text = text.split_once("## nft list ruleset\n").unwrap().1;
    let text = text.split_once("table ip6 flannel-ipv6").unwrap().0;
    let right = text
        .replace("meta mark 0x00004000 return", "meta mark & 0x00004000 == 0x00004000 return")
        .replace(
            "ip saddr != 10.244.12.0/24 ip daddr 10.244.0.0/16 return",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.12.0/24 return",
        );
    assert_ne!(right, text);
    right
}

#[test]
fn nft_list_is_the_go_flannels_put_right() {
    let node = Node::new();
    node.set(&NodeRules { v4: Some(v4("10.244.12.0/24")), ..rules(Mode::Nftables) });
    assert_eq!(nft_ruleset(), recorded_nft());
}

#[test]
fn nft_rules_of_a_former_go_flannel_are_replaced() {
    let node = Node::new();
    let go = recorded("vxlan-v4-masq-nft");
    run_with("nft -f -", go.split_once("## nft list ruleset\n").unwrap().1);
    assert!(nft_ruleset().contains("flannel-ipv6"));
    node.set(&NodeRules { v4: Some(v4("10.244.12.0/24")), ..rules(Mode::Nftables) });
    assert_eq!(nft_ruleset(), recorded_nft());
}

#[test]
fn ipv6_in_nft_is_the_same_in_its_words() {
    let node = Node::new();
    node.set(&NodeRules { v4: None, v6: Some(v6()), ..rules(Mode::Nftables) });
    let expected = recorded_nft()
        .replace("ip saddr", "ip6 saddr")
        .replace("ip daddr", "ip6 daddr")
        .replace("table ip flannel-ipv4", "table ip6 flannel-ipv6")
        .replace("flannel-ipv4", "flannel-ipv6")
        .replace("10.244.12.0/24", "fd00:244:0:24::/64")
        .replace("10.244.0.0/16", "fd00:244::/56")
        .replace("224.0.0.0/4", "ff00::/8");
    assert_eq!(nft_ruleset(), expected);
}

#[test]
fn exclusions_of_every_length_are_taken_by_every_kind() {
    let node = Node::new();
    for mode in [Mode::Nftables, Mode::Iptables] {
        for length in [0, 1, 12, 31, 32] {
            let mut rules = rules(mode);
            let exclude = vec![format!("172.16.0.1/{length}").parse().unwrap()];
            rules.v4.as_mut().unwrap().exclude = exclude;
            node.set(&rules);
        }
        for length in [0, 1, 12, 127, 128] {
            let mut rules = NodeRules { v4: None, v6: Some(v6()), ..rules(mode) };
            let exclude = vec![format!("fd77::1/{length}").parse().unwrap()];
            rules.v6.as_mut().unwrap().exclude = exclude;
            node.set(&rules);
        }
    }
}
