use proptest::prelude::*;

use super::*;
use crate::testing::{Blocks as _, family, net};
use flannel_entries::rules::{FamilyRules, TunnelGuard};

const POSTRTG: &Place = &NAT;

fn masquerade(rules: &FamilyRules) -> Vec<Rule> {
    rules.block(Purpose::Masquerade, true).rules
}

fn node() -> Vec<Rule> {
    masquerade(&family("10.244.0.0/16", "10.244.65.0/24"))
}

/// A table as `iptables-save` shows it once the rules are in.
fn settled(place: &Place, rules: &[Rule]) -> String {
    let mut lines = vec![
        format!("*{}", place.table),
        format!(":{} ACCEPT [0:0]", place.base),
        format!(":{} - [0:0]", place.chain),
        format!("-A {}", jump(place)),
    ];
    lines.extend(rules.iter().map(|rule| line(place, rule)));
    lines.push("COMMIT\n".into());
    lines.join("\n")
}

fn change(now: &str, wanted: &[Rule]) -> Option<String> {
    Saved::parse(POSTRTG, now).change(POSTRTG, wanted)
}

#[test]
fn an_empty_table_gets_chain_rules_and_jump_in_one_block() {
    assert_eq!(
        change("*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n", &node()).unwrap(),
        "*nat
:FLANNEL-POSTRTG - [0:0]
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.65.0/24 -d 10.244.0.0/16 -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.65.0/24 -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.65.0/24 -m comment --comment \"flanneld masq\" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully
-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG
COMMIT
"
    );
}

#[test]
fn ipv6_and_forward_read_as_the_go_flannels() {
    let v6 = family("fd00:244::/56", "fd00:244:0:24::/64");
    let lines: Vec<String> = masquerade(&v6).iter().map(|rule| line(POSTRTG, rule)).collect();
    assert_eq!(
        lines[4],
        "-A FLANNEL-POSTRTG -s fd00:244::/56 ! -d ff00::/8 -m comment --comment \"flanneld masq\" \
         -j MASQUERADE --random-fully"
    );
    let forward = v6.block(Purpose::Forward, true).rules;
    let lines: Vec<String> = forward.iter().map(|rule| line(&FILTER, rule)).collect();
    assert_eq!(
        lines,
        [
            "-A FLANNEL-FWD -s fd00:244::/56 -m comment --comment \"flanneld forward\" -j ACCEPT",
            "-A FLANNEL-FWD -d fd00:244::/56 -m comment --comment \"flanneld forward\" -j ACCEPT",
        ]
    );
}

#[test]
fn guards_read_as_iptables_save_shows_them() {
    let mut rules = family("10.244.0.0/16", "10.244.65.0/24");
    rules.guard.packets = vec![TunnelPackets::Udp(8472), TunnelPackets::Protocol(4)];
    rules.guard.pod_links = vec!["cni0".into()];
    rules.guard.forgeable = true;
    let wanted = rules.block(Purpose::GuardForward, true).rules;
    let comment = "-m comment --comment \"flanneld tunnel\"";
    let lines: Vec<String> = wanted.iter().map(|rule| line(&GUARD_FORWARD, rule)).collect();
    assert_eq!(
        lines[0],
        format!(
            "-A FLANNEL-TUN-OUT -s 10.244.0.0/16 ! -d 10.244.0.0/16 -p udp -m udp --dport 8472 {comment} -j DROP"
        )
    );
    assert_eq!(
        lines[3],
        format!("-A FLANNEL-TUN-OUT ! -d 10.244.0.0/16 -i cni0 -p 4 {comment} -j DROP")
    );
    let saved = settled(&GUARD_FORWARD, &wanted).replace("-p 4", "-p ipencap").replace(
        &format!("-m udp --dport 8472 {comment}"),
        &format!("{comment} -m udp --dport 8472"),
    );
    assert_eq!(Saved::parse(&GUARD_FORWARD, &saved).change(&GUARD_FORWARD, &wanted), None);
}

#[test]
fn nothing_is_written_when_all_is_as_wanted() {
    assert_eq!(change(&settled(POSTRTG, &node()), &node()), None);
}

#[test]
fn another_order_of_options_is_the_same_rule() {
    let text = settled(POSTRTG, &node()).replace(
        "-m mark --mark 0x4000/0x4000 -m comment --comment \"flanneld masq\"",
        "-m comment --comment \"flanneld masq\" -m mark --mark 0x4000/0x4000",
    );
    assert_eq!(change(&text, &node()), None);
}

#[test]
fn defect_57_order_doubles_and_foreign_rules_are_seen() {
    let good = settled(POSTRTG, &node());
    let rules: Vec<&str> = good.lines().filter(|l| l.starts_with("-A FLANNEL")).collect();
    let swapped = good.replace(rules[4], "§").replace(rules[5], rules[4]).replace('§', rules[5]);
    let doubled = good.replace(rules[1], &format!("{0}\n{0}", rules[1]));
    let foreign = good.replace(rules[2], &format!("-A FLANNEL-POSTRTG -j ACCEPT\n{}", rules[2]));
    let altered = good.replace(rules[4], &rules[4].replace("! -d 224.0.0.0/4", "-o eth0"));
    let missing = good.replace(&format!("{}\n", rules[3]), "");
    let uncommented =
        good.replace(rules[3], &rules[3].replace(" -m comment --comment \"flanneld masq\"", ""));
    for vandalised in [swapped, doubled, foreign, altered, missing, uncommented] {
        assert_ne!(vandalised, good);
        let script = change(&vandalised, &node()).expect("a repair");
        assert!(!script.contains("POSTROUTING"), "the jump is good as it is:\n{script}");
    }
}

#[test]
fn jumps_are_made_one_and_strangers_are_left_alone() {
    let jump = "-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG";
    let good = settled(POSTRTG, &node());
    let without = change(&good.replace(&format!("{jump}\n"), ""), &node()).unwrap();
    assert!(without.contains(jump));

    let twice = change(&good.replace(jump, &format!("{jump}\n{jump}")), &node()).unwrap();
    assert_eq!(twice.matches(&jump.replace("-A", "-D")).count(), 1);
    assert!(!twice.contains(jump));

    let narrowed = jump.replace("-m", "-o eth0 -m");
    let script = change(&good.replace(jump, &narrowed), &node()).unwrap();
    assert!(script.contains(&narrowed.replace("-A", "-D")) && script.contains(jump));

    let foreign = "-A MINE -j FLANNEL-POSTRTG\n-A POSTROUTING -s 1.2.3.4/32 -g FLANNEL-POSTRTG";
    assert_eq!(change(&good.replace(jump, &format!("{jump}\n{foreign}")), &node()), None);
}

#[test]
fn defect_55_the_rules_of_another_subnet_are_replaced_in_the_same_block() {
    let old = masquerade(&family("10.244.0.0/16", "10.244.7.0/24"));
    let script = change(&settled(POSTRTG, &old), &node()).unwrap();
    assert!(script.starts_with("*nat\n:FLANNEL-POSTRTG - [0:0]\n-A FLANNEL-POSTRTG"));
    assert_eq!(script.matches("COMMIT").count(), 1);
    assert!(!script.contains("10.244.7.0"));
}

#[test]
fn removal_takes_jumps_and_chain() {
    let now = Saved::parse(POSTRTG, &settled(POSTRTG, &node()));
    assert_eq!(
        now.removal(POSTRTG).unwrap(),
        "*nat\n-D POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n\
         -F FLANNEL-POSTRTG\n-X FLANNEL-POSTRTG\nCOMMIT\n"
    );
    assert_eq!(Saved::parse(POSTRTG, "*nat\nCOMMIT\n").removal(POSTRTG), None);
}

#[test]
fn a_chain_that_others_refer_to_is_emptied_and_stays() {
    let text = settled(POSTRTG, &node()) + "-A MINE -j FLANNEL-POSTRTG\n";
    let script = Saved::parse(POSTRTG, &text).removal(POSTRTG).unwrap();
    assert!(script.contains("-F FLANNEL-POSTRTG") && !script.contains("-X"));
}

prop_compose! {
    fn any_family()(address: [u8; 4], len in 1u8..=31, exclude in prop::collection::vec((any::<[u8; 4]>(), 0u8..=32), 0..4))
        -> FamilyRules {
        let cidr = |[a, b, c, d]: [u8; 4], len: u8| net(&format!("{a}.{b}.{c}.{d}/{len}")).trunc();
        FamilyRules {
            network: cidr(address, len),
            subnet: cidr(address, len + 1),
            exclude: exclude.into_iter().map(|(address, len)| cidr(address, len)).collect(),
            guard: TunnelGuard {
                pods: cidr(address, len),
                pod_links: vec!["cni0".into()],
                packets: vec![TunnelPackets::Udp(8472), TunnelPackets::Protocol(41)],
                forgeable: true,
            },
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_as_the_same(rules in any_family(), random: bool) {
        for purpose in Purpose::ALL {
            let place = Place::of(purpose);
            let rules = rules.block(purpose, random).rules;
            let saved = Saved::parse(place, &settled(place, &rules));
            prop_assert_eq!(saved.change(place, &rules), None);
        }
    }

    #[test]
    fn no_text_is_too_strange_to_read(text in "(-A FLANNEL-POSTRTG|:|[ -~]|\n|\"){0,40}") {
        let saved = Saved::parse(POSTRTG, &text);
        prop_assert!(saved.change(POSTRTG, &node()).is_some());
    }
}
