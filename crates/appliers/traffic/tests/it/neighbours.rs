//! Two daemons on one node, each with a network of its own, share chains and tables.

use std::time::Duration;

use flannel_entries::rules::{Mode, NodeRules};

use crate::support::{Node, family, picture, rules, run, run_with, saved, wait_until};

fn other(mode: Mode) -> NodeRules {
    NodeRules { v4: Some(family("10.9.0.0/16", "10.9.3.0/24")), ..rules(mode) }
}

fn in_every_kind(test: fn(Mode)) {
    for (canary, mode) in [
        ("", Mode::Nftables),
        ("", Mode::Iptables),
        ("iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", Mode::Iptables),
    ] {
        let case = move || {
            crate::support::enter_new_namespace();
            run(canary);
            test(mode);
        };
        std::thread::spawn(case).join().unwrap();
    }
}

fn stays(what: &str, text: &str) {
    for _ in 0..100 {
        assert_eq!(picture(), text, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn defect_62_two_daemons_agree() {
    in_every_kind(|mode| {
        let (one, two) = (Node::here(), Node::here());
        one.set(&rules(mode));
        two.set(&other(mode));
        let both = picture();
        for subnet in ["10.244.65.0/24", "10.9.3.0/24"] {
            assert!(both.contains(subnet), "{both}");
        }
        stays("neither undoes what the other did", &both);

        drop(one);
        let one = Node::here();
        one.set(&rules(mode));
        stays("nor does one that is restarted", &both);

        one.set(&NodeRules { v4: Some(family("10.77.0.0/16", "10.77.1.0/24")), ..rules(mode) });
        let moved = picture();
        assert!(moved.contains("10.9.3.0/24") && !moved.contains("10.244"), "{moved}");
        one.set(&rules(mode));
        stays("nor one that moves", &both);
    });
}

#[test]
fn those_who_begin_at_the_same_moment_do_not_undo_each_other() {
    in_every_kind(|mode| {
        for round in 0..5 {
            let nodes: Vec<(Node, NodeRules)> = (1..=4)
                .map(|number| {
                    let network = family(
                        &format!("10.{number}.0.0/16"),
                        &format!("10.{number}.{round}.0/24"),
                    );
                    (Node::here(), NodeRules { v4: Some(network), ..rules(mode) })
                })
                .collect();
            std::thread::scope(|scope| {
                for (node, rules) in &nodes {
                    scope.spawn(|| node.set(rules));
                }
            });
            let all = picture();
            for number in 1..=4 {
                assert!(all.contains(&format!("10.{number}.{round}.0/24")), "{all}");
            }
            stays("all of them", &all);
        }
    });
}

#[test]
fn the_rules_of_a_daemon_that_is_gone_are_removed_by_the_next_that_starts() {
    in_every_kind(|mode| {
        let two = Node::here();
        two.set(&other(mode));
        drop(two);
        std::thread::sleep(Duration::from_millis(50));
        Node::here().set(&rules(mode));
        assert!(!picture().contains("10.9."), "{}", picture());
    });
}

/// What a Go flannel with the network 10.9.0.0/16 writes when it finds its rules missing.
const GO_RULES: &str = r#"*nat
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.9.3.0/24 -d 10.9.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.9.0.0/16 -d 10.9.3.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.9.0.0/16 -d 10.9.3.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.9.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.9.0.0/16 -d 10.9.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
-A FLANNEL-FWD -s 10.9.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.9.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
"#;

/// It writes what it misses, time and again, and leaves alone what else it finds.
#[test]
fn a_go_flannel_with_another_network_ends_up_in_peace_beside_us() {
    let node = Node::new();
    node.set(&rules(Mode::Iptables));
    for first in ["true", "iptables -t nat -F FLANNEL-POSTRTG; iptables -F FLANNEL-FWD"] {
        run(first);
        wait_until("the rules of both", Duration::from_secs(10), || {
            let [nat, filter] = ["nat", "filter"].map(|table| saved("iptables-save", table));
            for (now, go) in [&nat, &filter].into_iter().zip(GO_RULES.split_inclusive("COMMIT\n")) {
                if !now.contains("10.9.") {
                    run_with("iptables-restore --noflush", go);
                }
            }
            std::thread::sleep(Duration::from_millis(100));
            nat.matches("-A FLANNEL-POSTRTG").count() == 12
                && filter.matches("-A FLANNEL-FWD").count() == 4
        });
        stays("peace", &picture());
    }
}
