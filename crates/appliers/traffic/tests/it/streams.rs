//! No packet ever leaves with a pod's address while rules change: not one of thousands of connections
//! that begin during changes, restarts and switches.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flannel_entries::rules::{Mode, NodeRules};

use crate::support::{Neighbourhood, Node, family, rules, run, v4};

/// Sends from ever new ports of the pod to the world while `work` is done. Returns by whom the world
/// believes to have been called, and how often.
fn watched(near: &Neighbourhood, work: impl FnOnce()) -> BTreeMap<String, usize> {
    let world = near.world.socket("203.0.113.2:9");
    world.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            near.pod.enter();
            while !stop.load(Ordering::Relaxed) {
                // Every socket is a connection of its own to the packet filter.
                let socket = UdpSocket::bind("10.244.65.5:0").unwrap();
                let _ = socket.send_to(b"x", "203.0.113.2:9");
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let seen = scope.spawn(|| {
            let mut seen = BTreeMap::new();
            loop {
                match world.recv_from(&mut [0; 8]) {
                    Ok((_, from)) => *seen.entry(from.ip().to_string()).or_default() += 1,
                    Err(_) if stop.load(Ordering::Relaxed) => return seen,
                    Err(_) => {}
                }
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        work();
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        seen.join().unwrap()
    })
}

#[track_caller]
fn assert_masqueraded(seen: &BTreeMap<String, usize>) {
    let of_node = seen.get("203.0.113.1").copied().unwrap_or(0);
    println!("{of_node} connections");
    assert!(of_node > 100, "{seen:?}");
    assert_eq!(seen.len(), 1, "{seen:?}");
}

/// Wishes that differ in everything but that this pod is masqueraded.
fn wishes(mode: Mode) -> Vec<NodeRules> {
    let mut excluding = v4("10.244.65.0/24");
    excluding.exclude = vec!["198.51.100.0/24".parse().unwrap()];
    let plain = rules(mode);
    vec![
        plain.clone(),
        NodeRules { v4: Some(v4("10.244.64.0/22")), ..plain.clone() },
        NodeRules { random_fully: false, ..plain.clone() },
        NodeRules { v4: Some(excluding), ..plain.clone() },
        NodeRules { forward: false, ..plain.clone() },
        NodeRules { v4: Some(family("10.128.0.0/9", "10.244.65.0/24")), ..plain },
    ]
}

fn change_and_restart(mode: Mode) {
    let mut node = Node::here();
    let near = Neighbourhood::new();
    node.set(&rules(mode));
    let seen = watched(&near, || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            for wish in wishes(mode) {
                node.set(&wish);
            }
            drop(std::mem::replace(&mut node, Node::here()));
        }
    });
    assert_masqueraded(&seen);
}

#[test]
fn defect_55_changes_and_restarts_let_no_packet_through_in_nftables() {
    crate::support::enter_new_namespace();
    change_and_restart(Mode::Nftables);
}

#[test]
fn defect_55_nor_in_iptables() {
    crate::support::enter_new_namespace();
    change_and_restart(Mode::Iptables);
}

#[test]
fn defect_55_nor_in_iptables_legacy() {
    crate::support::enter_new_namespace();
    run("iptables-legacy -t mangle -N KUBE-KUBELET-CANARY");
    change_and_restart(Mode::Iptables);
}

#[test]
fn switching_modes_lets_no_packet_through() {
    let node = Node::new();
    let near = Neighbourhood::new();
    node.set(&rules(Mode::Nftables));
    let seen = watched(&near, || {
        for _ in 0..10 {
            node.set(&rules(Mode::Iptables));
            node.set(&rules(Mode::Nftables));
        }
    });
    assert_masqueraded(&seen);
}

/// Otherwise the tests above would prove nothing.
#[test]
fn a_moment_without_rules_would_be_seen() {
    let node = Node::new();
    let near = Neighbourhood::new();
    node.set(&rules(Mode::Iptables));
    drop(node);
    let seen = watched(&near, || {
        run("iptables -t nat -F FLANNEL-POSTRTG");
        Node::here().set(&rules(Mode::Iptables));
    });
    assert!(seen.contains_key("10.244.65.5"), "{seen:?}");
}
