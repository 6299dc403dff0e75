//! Tables of nftables: what is written, what is recognised, and what is replaced.

use flannel_entries::rules::{Mode, NodeRules, TunnelPackets};

use crate::support::{Node, dual, nft_ruleset, rules, run, run_with};

const LISTED: &str = r#"table ip flannel-ipv4 {
	comment "rules for flannel-ipv4"
	chain postrtg {
		comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x00004000 == 0x00004000 return
		ip saddr 10.244.65.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr 10.244.65.0/24 return
		ip saddr != 10.244.0.0/16 ip daddr 10.244.65.0/24 return
		ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
	}

	chain forward {
		comment "chain to accept flannel traffic"
		type filter hook forward priority filter; policy accept;
		ip saddr 10.244.0.0/16 accept
		ip daddr 10.244.0.0/16 accept
	}
}
"#;

/// Number of the last change that anybody has made.
fn generation() -> u32 {
    flannel_nft::Nft::open().unwrap().generation().unwrap()
}

fn guarded() -> NodeRules {
    let mut rules = dual(Mode::Nftables);
    for family in [&mut rules.v4, &mut rules.v6].into_iter().flatten() {
        family.guard.packets = vec![TunnelPackets::Udp(8472), TunnelPackets::Protocol(4)];
        family.guard.pod_links = vec!["cni0".into()];
        family.guard.forgeable = true;
        family.exclude = ["192.0.2.5/32", "10.0.0.0/9", "fd01::5/128", "fd02::/16", "fd00::/7"]
            .map(|net| net.parse().unwrap())
            .to_vec();
    }
    rules
}

#[test]
fn table_is_listed_by_nft_with_its_chains_and_comments() {
    let node = Node::new();
    node.set(&rules(Mode::Nftables));
    assert_eq!(nft_ruleset(), LISTED);
}

#[test]
fn guards_are_chains_of_their_own() {
    let node = Node::new();
    node.set(&guarded());
    let listed = nft_ruleset();
    for line in [
        "chain tunnelin {",
        "type filter hook input priority filter; policy accept;",
        "ip saddr 10.244.0.0/16 udp dport 8472 drop",
        "iifname \"cni0\" udp dport 8472 drop",
        "iifname \"cni0\" meta l4proto ipencap drop",
        "chain tunnelout {",
        "ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 udp dport 8472 drop",
        "iifname \"cni0\" ip6 daddr != fd00:244::/56 udp dport 8472 drop",
        "ip6 saddr fd00:244::/56 ip6 daddr != ff00::/8 masquerade fully-random",
    ] {
        assert!(listed.contains(line), "{line} in {listed}");
    }
}

#[test]
fn rules_written_by_nft_are_the_same_as_those_written_by_netlink() {
    for wanted in [rules(Mode::Nftables), guarded()] {
        let test = move || {
            let node = Node::new();
            node.set(&wanted);
            let listed = nft_ruleset();
            drop(node);
            run_with("nft -f -", &format!("flush ruleset\n{listed}"));
            let before = generation();
            Node::here().set(&wanted);
            assert_eq!(generation(), before, "nothing is written");
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn rules_of_the_go_flannel_are_replaced_and_their_chains_stay() {
    let node = Node::new();
    let go =
        LISTED.replace("meta mark & 0x00004000 == 0x00004000", "meta mark 0x00004000").replace(
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.65.0/24 return",
            "ip saddr != 10.244.65.0/24 ip daddr 10.244.0.0/16 return",
        );
    run_with("nft -f -", &go);
    let handle = |chain: &str| {
        let listed = run("nft -a list ruleset");
        let line = listed.lines().find(|line| line.contains(&format!("chain {chain} {{")));
        line.unwrap().to_owned()
    };
    let before = ["postrtg", "forward"].map(handle);
    node.set(&rules(Mode::Nftables));
    assert_eq!(nft_ruleset(), LISTED);
    assert_eq!(["postrtg", "forward"].map(handle), before);
}

#[test]
fn table_with_anything_that_does_not_belong_there_is_replaced() {
    for odd in [
        LISTED.replace("ip saddr 10.244.0.0/16 accept", "drop"),
        LISTED.replace("filter; policy accept", "filter; policy drop"),
        LISTED.replace("priority srcnat", "priority srcnat + 5"),
        LISTED.replace("\tchain postrtg", "\tset s {\n\t\ttype ipv4_addr\n\t}\n\n\tchain postrtg"),
        LISTED.replace("\tchain postrtg", "\tcounter c {\n\t}\n\n\tchain postrtg"),
        LISTED.replace("\tchain postrtg", "\tchain mine {\n\t}\n\n\tchain postrtg"),
        LISTED.replace("\tcomment \"rules", "\tflags dormant;\n\tcomment \"rules"),
    ] {
        assert_ne!(odd, LISTED);
        let test = move || {
            let node = Node::new();
            run_with("nft -f -", &odd);
            node.set(&rules(Mode::Nftables));
            assert_eq!(nft_ruleset(), LISTED, "after {odd}");
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn chain_nobody_wants_goes_and_missing_one_comes() {
    let node = Node::new();
    node.set(&rules(Mode::Nftables));
    node.set(&NodeRules { forward: false, ..rules(Mode::Nftables) });
    assert_eq!(
        nft_ruleset(),
        format!("{}}}\n", &LISTED[..LISTED.find("\n\tchain forward").unwrap()])
    );
    node.set(&rules(Mode::Nftables));
    assert_eq!(nft_ruleset(), LISTED);
}
