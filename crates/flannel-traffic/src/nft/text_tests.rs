use super::*;
use crate::FamilyRules;
use crate::rule::Block;
use crate::rules::samples::{family, net};

const FULL: Features = Features { comments: true, random: true };

fn both(rules: &FamilyRules) -> Vec<(Purpose, Vec<Rule>)> {
    [Purpose::Masquerade, Purpose::Forward]
        .map(|purpose| (purpose, Block::new(purpose, rules, true).rules))
        .to_vec()
}

fn node() -> Vec<(Purpose, Vec<Rule>)> {
    both(&family("10.244.0.0/16", "10.244.12.0/24"))
}

const SETTLED: &str = r#"table ip flannel-ipv4 {
	comment "rules for flannel-ipv4"
	chain postrtg {
		comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x00004000 == 0x00004000 return
		ip saddr 10.244.12.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr 10.244.12.0/24 return
		ip saddr != 10.244.0.0/16 ip daddr 10.244.12.0/24 return
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

fn change(now: &str) -> Option<String> {
    Listing::parse(Family::V4, now).change(Family::V4, &node(), FULL)
}

#[test]
fn a_table_is_made_with_its_chains_in_one_script() {
    assert_eq!(
        change("").unwrap(),
        r#"add table ip flannel-ipv4 { comment "rules for flannel-ipv4"; }
add chain ip flannel-ipv4 postrtg { type nat hook postrouting priority srcnat; policy accept; comment "chain to manage traffic masquerading by flannel"; }
add rule ip flannel-ipv4 postrtg meta mark & 0x00004000 == 0x00004000 return
add rule ip flannel-ipv4 postrtg ip saddr 10.244.12.0/24 ip daddr 10.244.0.0/16 return
add rule ip flannel-ipv4 postrtg ip saddr 10.244.0.0/16 ip daddr 10.244.12.0/24 return
add rule ip flannel-ipv4 postrtg ip saddr != 10.244.0.0/16 ip daddr 10.244.12.0/24 return
add rule ip flannel-ipv4 postrtg ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
add rule ip flannel-ipv4 postrtg ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
add chain ip flannel-ipv4 forward { type filter hook forward priority filter; policy accept; comment "chain to accept flannel traffic"; }
add rule ip flannel-ipv4 forward ip saddr 10.244.0.0/16 accept
add rule ip flannel-ipv4 forward ip daddr 10.244.0.0/16 accept
"#
    );
}

#[test]
fn defect_59_mark_is_masked_and_the_last_rule_can_be_reached() {
    let script = change("").unwrap();
    assert!(script.contains("meta mark & 0x00004000 == 0x00004000 return"));
    assert!(script.contains("ip saddr != 10.244.0.0/16 ip daddr 10.244.12.0/24 return"));
    assert!(!script.contains("ip saddr != 10.244.12.0/24"));
}

#[test]
fn guards_are_chains_of_their_own_and_are_read_back() {
    let mut rules = family("10.244.0.0/16", "10.244.12.0/24");
    rules.guard.packets = vec![TunnelPackets::Udp(8472), TunnelPackets::Protocol(4)];
    rules.guard.pod_links = vec!["cni0".into()];
    let mut wanted = node();
    wanted.extend(
        [Purpose::GuardInput, Purpose::GuardForward]
            .map(|purpose| (purpose, Block::new(purpose, &rules, true).rules)),
    );
    let script = Listing::parse(Family::V4, SETTLED).change(Family::V4, &wanted, FULL).unwrap();
    assert_eq!(
        script,
        r#"add chain ip flannel-ipv4 tunnelin { type filter hook input priority filter; policy accept; comment "chain to keep packets of pods out of the tunnel of this node"; }
add rule ip flannel-ipv4 tunnelin ip saddr 10.244.0.0/16 udp dport 8472 drop
add rule ip flannel-ipv4 tunnelin iifname "cni0" udp dport 8472 drop
add rule ip flannel-ipv4 tunnelin ip saddr 10.244.0.0/16 meta l4proto 4 drop
add rule ip flannel-ipv4 tunnelin iifname "cni0" meta l4proto 4 drop
add chain ip flannel-ipv4 tunnelout { type filter hook forward priority filter; policy accept; comment "chain to keep packets of pods out of the tunnels of other nodes"; }
add rule ip flannel-ipv4 tunnelout ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 udp dport 8472 drop
add rule ip flannel-ipv4 tunnelout iifname "cni0" ip daddr != 10.244.0.0/16 udp dport 8472 drop
add rule ip flannel-ipv4 tunnelout ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 meta l4proto 4 drop
add rule ip flannel-ipv4 tunnelout iifname "cni0" ip daddr != 10.244.0.0/16 meta l4proto 4 drop
"#
    );
    for (_, rules) in &wanted {
        for rule in rules {
            assert_eq!(parse_rule(Family::V4, &line(Family::V4, rule)).as_ref(), Some(rule));
        }
    }
}

#[test]
fn nothing_is_written_when_all_is_as_wanted() {
    assert_eq!(change(SETTLED), None);
    let numeric = SETTLED.replace("srcnat", "100").replace("priority filter", "priority 0");
    assert_eq!(change(&numeric), None);
    let uncommented: String = SETTLED
        .lines()
        .filter(|line| !line.contains("comment"))
        .map(|l| format!("{l}\n"))
        .collect();
    assert_eq!(change(&uncommented), None, "older kernels do not keep comments");
    let short = SETTLED.replace("0x00004000", "0x4000");
    assert_eq!(change(&short), None);
}

#[test]
fn what_the_go_flannel_wrote_is_replaced_without_remaking_its_chains() {
    let go =
        SETTLED.replace("meta mark & 0x00004000 == 0x00004000", "meta mark 0x00004000").replace(
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.12.0/24 return",
            "ip saddr != 10.244.12.0/24 ip daddr 10.244.0.0/16 return",
        );
    let script = change(&go).unwrap();
    assert!(script.starts_with("flush chain ip flannel-ipv4 postrtg\nadd rule"), "{script}");
    assert!(!script.contains("add chain") && !script.contains(" forward "), "{script}");
}

#[test]
fn a_chain_or_table_that_was_changed_in_kind_is_made_anew() {
    let filled = SETTLED.replace("ip saddr 10.244.0.0/16 accept", "drop");
    let script = change(&filled).unwrap();
    assert!(script.starts_with("flush chain ip flannel-ipv4 forward\n"), "{script}");
    for odd in [
        SETTLED.replace("filter; policy accept", "filter; policy drop"),
        SETTLED.replace("priority srcnat", "priority srcnat + 5"),
        SETTLED.replace("\tchain postrtg", "\tset s {\n\t\ttype ipv4_addr\n\t}\n\n\tchain postrtg"),
        SETTLED.replace("\tchain postrtg", "\tchain mine {\n\t}\n\n\tchain postrtg"),
        SETTLED.replace("\tcomment \"rules", "\tflags dormant\n\tcomment \"rules"),
    ] {
        assert_ne!(odd, SETTLED);
        let script = change(&odd).unwrap();
        let expected = format!("delete table ip flannel-ipv4\n{}", change("").unwrap());
        assert_eq!(script, expected, "after {odd}");
    }
}

#[test]
fn a_chain_nobody_wants_goes_and_a_missing_one_comes() {
    let masquerade_only = &node()[..1];
    let now = Listing::parse(Family::V4, SETTLED);
    assert_eq!(
        now.change(Family::V4, masquerade_only, FULL).unwrap(),
        "flush chain ip flannel-ipv4 forward\ndelete chain ip flannel-ipv4 forward\n"
    );
    let start = SETTLED.find("\n\tchain forward").unwrap();
    let without_forward = format!("{}}}\n", &SETTLED[..start]);
    let script = change(&without_forward).unwrap();
    assert!(script.starts_with("add chain ip flannel-ipv4 forward {"), "{script}");
}

#[test]
fn without_comments_there_are_none() {
    let plain = Features { comments: false, random: true };
    let script = Listing::default().change(Family::V4, &node(), plain).unwrap();
    assert!(!script.contains("comment"));
    assert!(
        script
            .starts_with("add table ip flannel-ipv4\nadd chain ip flannel-ipv4 postrtg { type nat")
    );
}

#[test]
fn exclusions_are_read_back_in_every_length() {
    let mut rules = family("fd00:244::/56", "fd00:244:0:24::/64");
    rules.exclude = vec![net("fd01::5/128"), net("fd02::/16"), net("::/0")];
    let wanted = both(&rules);
    let text = format!(
        "table ip6 flannel-ipv6 {{\n\tchain postrtg {{\n\t\t{}\n{}\t}}\n}}\n",
        POSTRTG.hook,
        wanted[0]
            .1
            .iter()
            .map(|rule| format!("\t\t{}\n", line(Family::V6, rule)))
            .collect::<String>()
    );
    let listed = text.replace("fd01::5/128", "fd01::5");
    assert_eq!(Listing::parse(Family::V6, &listed).change(Family::V6, &wanted[..1], FULL), None);
    assert!(text.contains("ip6 saddr fd00:244::/56 ip6 daddr != ff00::/8 masquerade"));
}
