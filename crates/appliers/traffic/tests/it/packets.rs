//! What the rules do to real packets.

use flannel_entries::rules::{Mode, NodeRules, TunnelGuard, TunnelPackets};

use crate::support::{
    Neighbourhood, Node, dual, picture, rules, run, seen_from, set_mark, socket, try_seen_from, v4,
    v6,
};

/// In every kind of packet filter.
fn in_every_kind(test: impl Fn(&Node, &Neighbourhood, Mode) + Send + Sync) {
    let kinds: [(&str, Mode); 3] = [
        ("", Mode::Nftables),
        ("iptables-nft -t mangle -N KUBE-KUBELET-CANARY", Mode::Iptables),
        ("iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", Mode::Iptables),
    ];
    for (prepare, mode) in kinds {
        std::thread::scope(|scope| {
            let test = &test;
            let done = scope.spawn(move || {
                let node = Node::new();
                run(prepare);
                test(&node, &Neighbourhood::new(), mode);
            });
            assert!(done.join().is_ok(), "in {mode:?} {prepare}");
        });
    }
}

#[test]
fn a_pod_talks_to_the_world_with_its_nodes_address() {
    in_every_kind(|node, near, mode| {
        let (pod, world) = (near.pod.socket("0.0.0.0:0"), near.world.socket("0.0.0.0:0"));
        assert_eq!(seen_from(&pod, &world, "203.0.113.2"), "10.244.65.5", "without rules");
        node.set(&rules(mode));
        let pod = near.pod.socket("0.0.0.0:0");
        assert_eq!(seen_from(&pod, &world, "203.0.113.2"), "203.0.113.1");
    });
}

#[test]
fn a_pod_talks_to_a_pod_of_another_node_with_its_own() {
    in_every_kind(|node, near, mode| {
        node.set(&rules(mode));
        let (pod, other) = (near.pod.socket("0.0.0.0:0"), near.other.socket("0.0.0.0:0"));
        assert_eq!(seen_from(&pod, &other, "10.244.86.5"), "10.244.65.5");
        let (pod, other) = (near.pod.socket("0.0.0.0:0"), near.other.socket("10.244.86.5:0"));
        assert_eq!(seen_from(&other, &pod, "10.244.65.5"), "10.244.86.5");
    });
}

/// Unreachable in the Go flannel's nftables mode.
#[test]
fn defect_59_the_host_talks_to_a_pod_of_another_node_with_the_address_of_that_way() {
    in_every_kind(|node, near, mode| {
        node.set(&rules(mode));
        let (host, other) = (socket("203.0.113.1:0"), near.other.socket("0.0.0.0:0"));
        assert_eq!(seen_from(&host, &other, "10.244.86.5"), "192.168.50.1");
    });
}

#[test]
fn defect_59_what_kube_proxy_has_marked_is_left_to_it_whatever_else_is_marked() {
    in_every_kind(|node, near, mode| {
        node.set(&rules(mode));
        let other = near.other.socket("0.0.0.0:0");
        for (mark, from) in
            [(0x4000, "203.0.113.1"), (0x4001, "203.0.113.1"), (0x8000, "192.168.50.1")]
        {
            let host = socket("203.0.113.1:0");
            set_mark(&host, mark);
            assert_eq!(seen_from(&host, &other, "10.244.86.5"), from, "mark {mark:#x}");
        }
    });
}

#[test]
fn the_world_is_seen_by_our_own_pods_as_it_is() {
    in_every_kind(|node, near, mode| {
        node.set(&rules(mode));
        let (pod, world) = (near.pod.socket("0.0.0.0:0"), near.world.socket("0.0.0.0:0"));
        assert_eq!(seen_from(&world, &pod, "10.244.65.5"), "203.0.113.2");
    });
}

#[test]
fn an_excluded_destination_sees_the_pod_itself() {
    in_every_kind(|node, near, mode| {
        let mut rules = rules(mode);
        rules.v4.as_mut().unwrap().exclude = vec!["198.51.100.0/24".parse().unwrap()];
        node.set(&rules);
        let (pod, world) = (near.pod.socket("0.0.0.0:0"), near.world.socket("0.0.0.0:0"));
        assert_eq!(seen_from(&pod, &world, "198.51.100.7"), "10.244.65.5");
        assert_eq!(seen_from(&pod, &world, "203.0.113.2"), "203.0.113.1");
    });
}

#[test]
fn an_excluded_part_of_the_network_sees_the_host_itself() {
    in_every_kind(|node, near, mode| {
        let mut rules = rules(mode);
        rules.v4.as_mut().unwrap().exclude = vec!["10.244.0.0/16".parse().unwrap()];
        node.set(&rules);
        let (host, other) = (socket("203.0.113.1:0"), near.other.socket("0.0.0.0:0"));
        assert_eq!(seen_from(&host, &other, "10.244.86.5"), "203.0.113.1");
    });
}

#[test]
fn ipv6_is_treated_alike() {
    in_every_kind(|node, near, mode| {
        let v4 = Some(v4("10.244.65.0/24"));
        let mut rules = NodeRules { v4, v6: Some(v6()), ..dual(mode) };
        node.set(&rules);
        let (pod, world) = (near.pod.socket("[::]:0"), near.world.socket("[::]:0"));
        assert_eq!(seen_from(&pod, &world, "fd00:bad::2"), "fd00:bad::1");
        let (pod, other) = (near.pod.socket("[::]:0"), near.other.socket("[::]:0"));
        assert_eq!(seen_from(&pod, &other, "fd00:244:0:86::5"), "fd00:244:0:24::5");
        let (host, other) = (socket("[fd00:bad::1]:0"), near.other.socket("[::]:0"));
        assert_eq!(seen_from(&host, &other, "fd00:244:0:86::5"), "fd00:50::1");
        rules.v6.as_mut().unwrap().exclude = vec!["fd00:bad::/64".parse().unwrap()];
        node.set(&rules);
        let pod = near.pod.socket("[::]:0");
        assert_eq!(seen_from(&pod, &world, "fd00:bad::2"), "fd00:244:0:24::5");
    });
}

/// What Docker does to a node. In nftables an acceptance does not overrule another table's drop, so this
/// is a matter of iptables.
#[test]
fn pods_are_forwarded_even_if_the_node_forwards_nothing() {
    let variants = ["iptables-nft", "iptables-legacy"];
    for variant in variants {
        let test = move || {
            let node = Node::new();
            run(&format!("{variant} -t mangle -N KUBE-KUBELET-CANARY; {variant} -P FORWARD DROP"));
            let near = Neighbourhood::new();
            let (pod, world) = (near.pod.socket("0.0.0.0:0"), near.world.socket("0.0.0.0:0"));
            world.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
            assert_eq!(try_seen_from(&pod, &world, "203.0.113.2"), None);
            node.set(&rules(Mode::Iptables));
            assert_eq!(seen_from(&pod, &world, "203.0.113.2"), "203.0.113.1");
            node.set(&NodeRules { forward: false, ..rules(Mode::Iptables) });
            assert_eq!(try_seen_from(&pod, &world, "203.0.113.2"), None);
        };
        std::thread::spawn(test).join().unwrap();
    }
}

/// A guard of a tunnel with this UDP port, whose pods are behind `pod0`.
fn guarded(mode: Mode, port: u16, forgeable: bool) -> NodeRules {
    let mut rules = NodeRules { v6: Some(v6()), ..rules(mode) };
    for family in [&mut rules.v4, &mut rules.v6].into_iter().flatten() {
        let packets = vec![TunnelPackets::Udp(port), TunnelPackets::Protocol(4)];
        let pod_links = vec!["pod0".to_owned()];
        family.guard = TunnelGuard { pods: family.network, pod_links, packets, forgeable };
    }
    rules
}

#[test]
fn pods_reach_no_nodes_end_of_the_tunnel_and_everybody_else_does() {
    in_every_kind(|node, near, mode| {
        let world = near.world.socket("[::]:0");
        let port = world.local_addr().unwrap().port();
        let address = |ip: &str| format!("{ip}:{port}");
        let here = socket(&address("[::]"));
        let other = near.other.socket(&address("[::]"));
        let pod = near.pod.socket("[::]:0");
        let wait = |socket: &std::net::UdpSocket, millis| {
            socket.set_read_timeout(Some(std::time::Duration::from_millis(millis))).unwrap();
        };
        let ends = [
            (&here, "::ffff:203.0.113.1"),
            (&here, "::ffff:10.244.65.1"),
            (&here, "fd00:bad::1"),
            (&world, "::ffff:203.0.113.2"),
            (&world, "fd00:bad::2"),
        ];
        for (end, to) in ends {
            assert!(try_seen_from(&pod, end, to).is_some(), "without a guard: {to}");
        }
        node.set(&guarded(mode, port, true));
        for (end, to) in ends {
            wait(end, 50);
            assert_eq!(try_seen_from(&pod, end, to), None, "{to}");
        }
        // One that pretends to be another node.
        near.pod.run(|| {
            run("ip addr add 192.168.50.2/32 dev eth0; ip addr add fd00:50::2/128 dev eth0 nodad");
        });
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
        std::fs::write("/proc/sys/net/ipv4/conf/pod0/rp_filter", "0").unwrap();
        for (from, to) in [("192.168.50.2:0", "203.0.113.1"), ("[fd00:50::2]:0", "fd00:bad::1")] {
            assert_eq!(try_seen_from(&near.pod.socket(from), &here, to), None, "as {from}");
        }
        for end in [&here, &world, &other] {
            wait(end, 2000);
        }
        // A pod of another node by its own address, which is what comes out of the tunnel.
        wait(&here, 50);
        let by_overlay = near.other.socket("10.244.86.5:0");
        assert_eq!(try_seen_from(&by_overlay, &here, "203.0.113.1"), None);
        wait(&here, 2000);
        // The other node itself, this node itself, and pods among each other.
        seen_from(&near.other.socket("192.168.50.2:0"), &here, "192.168.50.1");
        seen_from(&near.other.socket("[fd00:50::2]:0"), &here, "fd00:50::1");
        seen_from(&socket("192.168.50.1:0"), &other, "192.168.50.2");
        seen_from(&socket("0.0.0.0:0"), &here, "203.0.113.1");
        let pod = near.pod.socket("10.244.65.5:0");
        seen_from(&pod, &other, "10.244.86.5");
        seen_from(&near.world.socket("203.0.113.2:0"), &other, "192.168.50.2");

        // What no pod can forge is kept from the node alone: pods use such ports elsewhere.
        node.set(&guarded(mode, port, false));
        wait(&here, 50);
        assert_eq!(try_seen_from(&pod, &here, "203.0.113.1"), None);
        seen_from(&pod, &world, "203.0.113.2");

        let before = picture();
        node.set(&guarded(mode, port, true));
        node.set(&guarded(mode, port, false));
        assert_eq!(picture(), before);
        node.set(&rules(mode));
        assert!(!picture().to_lowercase().contains("tun"), "{}", picture());
    });
}
