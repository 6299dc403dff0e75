//! The MTU that pods get: one table for all backends, address families and options.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod support;

use flannel_backend::{Answers, Stack, create};
use flannel_lease::NetworkConfig;

const V4: Stack = Stack::V4;
const V6: Stack = Stack::V6;
const DUAL: Stack = Stack { v4: true, v6: true };

const PSK: &str = "96-bytes-that-nobody-guesses-7f3a9c51d0e84b26-and-some-more-of-them-2b8e6d4f10a7c953-that-is-it.";

/// What a backend takes off the MTU of the node's interface. The Go flannel takes the same off, except where a row
/// says what it does: there packets would not fit, or could be longer.
const TABLE: &[(&str, Stack, u32)] = &[
    // Ethernet 14, IP 20 or 40, UDP 8, vxlan 8. The Go flannel: 50 for IPv6 too.
    (r#""Type":"vxlan""#, V4, 50),
    (r#""Type":"vxlan""#, V6, 70),
    (r#""Type":"vxlan""#, DUAL, 70),
    (r#""Type":"vxlan","DirectRouting":true"#, V4, 50),
    (r#""Type":"vxlan","MTU":1400"#, V4, 150),
    (r#""Type":"vxlan","MTU":1400"#, DUAL, 170),
    (r#""Type":"host-gw""#, V4, 0),
    (r#""Type":"host-gw""#, V6, 0),
    (r#""Type":"host-gw""#, DUAL, 0),
    // IP 20 or 40, UDP 8, WireGuard 32. The Go flannel: 80 for IPv4 too.
    (r#""Type":"wireguard""#, V4, 60),
    (r#""Type":"wireguard""#, V6, 80),
    (r#""Type":"wireguard""#, DUAL, 80),
    (r#""Type":"wireguard","Mode":"ipv4""#, DUAL, 60),
    (r#""Type":"wireguard","Mode":"ipv6""#, DUAL, 80),
    (r#""Type":"wireguard","Mode":"auto""#, V4, 60),
    (r#""Type":"wireguard","Mode":"auto""#, DUAL, 80),
    (r#""Type":"wireguard","MTU":1400"#, V4, 160),
    (r#""Type":"ipip""#, V4, 20),
    (r#""Type":"ipip","DirectRouting":true"#, V4, 20),
    // IP 20, ESP 8, and what the hungriest cipher adds: 16 before, 17 to fill up, 16 behind.
    (r#""Type":"ipsec""#, V4, 77),
    (r#""Type":"ipsec","UDPEncap":true"#, V4, 85),
    // IP 20 or 40, UDP 8.
    (r#""Type":"udp""#, V4, 28),
    (r#""Type":"udp""#, V6, 48),
    (r#""Type":"udp""#, DUAL, 48),
    (r#""Type":"aws-vpc""#, V4, 0),
    (r#""Type":"ali-vpc""#, V4, 0),
    (r#""Type":"gce""#, V4, 0),
    (r#""Type":"tencent-vpc""#, V4, 0),
    (r#""Type":"extension""#, V4, 0),
    (r#""Type":"extension""#, DUAL, 0),
    (r#""Type":"alloc""#, V4, 0),
    (r#""Type":"alloc""#, V6, 0),
];

/// What the outer header is decides it, where packets of one family travel in the other: network, underlay.
const CROSSED: &[(&str, Stack, Stack, u32)] = &[
    (r#""Type":"vxlan""#, V4, V6, 70),
    (r#""Type":"vxlan""#, V6, V4, 50),
    (r#""Type":"vxlan""#, DUAL, V4, 50),
    (r#""Type":"vxlan""#, DUAL, V6, 70),
    (r#""Type":"wireguard""#, V4, V6, 80),
    (r#""Type":"wireguard""#, V6, V4, 60),
    (r#""Type":"wireguard""#, DUAL, V4, 60),
    (r#""Type":"wireguard""#, DUAL, V6, 80),
    (r#""Type":"wireguard","Mode":"auto""#, V4, V6, 80),
    (r#""Type":"wireguard","Mode":"auto""#, V6, V4, 60),
    (r#""Type":"wireguard","Mode":"auto""#, DUAL, V4, 60),
    (r#""Type":"wireguard","Mode":"ipv4""#, V6, V4, 60),
    (r#""Type":"wireguard","Mode":"ipv6""#, V4, V6, 80),
    (r#""Type":"ipip""#, V6, V4, 20),
    (r#""Type":"ipip""#, DUAL, V4, 20),
];

fn mtu(backend: &str, network: Stack, underlay: Stack, mtu: u32) -> u32 {
    found(backend, network, underlay, mtu).0
}

/// With how it was found.
fn found(backend: &str, network: Stack, underlay: Stack, mtu: u32) -> (u32, String) {
    let families = match (network.v4, network.v6) {
        (_, false) => r#""Network":"10.244.0.0/16""#,
        (false, true) => r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/56""#,
        (true, true) => {
            r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/56""#
        }
    };
    let psk = if backend.contains("ipsec") { format!(r#","PSK":"{PSK}""#) } else { String::new() };
    let network =
        NetworkConfig::parse(&format!(r#"{{{families},"Backend":{{{backend}{psk}}}}}"#)).unwrap();
    let mut underlay = support::underlay(1, underlay);
    underlay.mtu = mtu;
    let (backend, node) = support::node_at(underlay, network, Answers::default());
    backend.check(&node).unwrap();
    (backend.mtu(&node), backend.mtu_why(&node))
}

#[test]
fn every_backend_takes_off_what_it_adds_to_packets_and_no_more() {
    let classic =
        TABLE.iter().map(|(backend, stack, overhead)| (*backend, *stack, *stack, *overhead));
    for (backend, network, underlay, overhead) in classic.chain(CROSSED.iter().copied()) {
        let of = |card| mtu(backend, network, underlay, card);
        assert_eq!(of(1500), 1500 - overhead, "{backend} {network:?} over {underlay:?}");
        // Whatever the card carries.
        if !backend.contains("MTU") {
            for card in [1400, 9000] {
                assert_eq!(of(card), card - overhead, "{backend} {network:?} over {underlay:?}");
            }
        }
    }
}

#[test]
fn how_an_mtu_was_found_is_said_in_words() {
    for (backend, mtu, why) in [
        (r#""Type":"vxlan""#, 1450, "eth0 has 1500, vxlan takes 50"),
        (r#""Type":"vxlan","MTU":1400"#, 1350, "the network config asks for 1400, vxlan takes 50"),
        // More than the card carries is not possible.
        (r#""Type":"vxlan","MTU":9000"#, 1450, "eth0 has 1500, vxlan takes 50"),
        (
            r#""Type":"wireguard","MTU":1400"#,
            1340,
            "the network config asks for 1400, wireguard takes 60",
        ),
        (r#""Type":"host-gw""#, 1500, "eth0 has 1500, host-gw takes nothing of it"),
        (r#""Type":"udp""#, 1472, "eth0 has 1500, udp takes 28"),
    ] {
        assert_eq!(found(backend, V4, V4, 1500), (mtu, why.to_owned()), "{backend}");
    }
}

#[test]
fn the_table_names_every_backend() {
    let unknown =
        NetworkConfig::parse(r#"{"Network":"10.1.0.0/16","Backend":{"Type":"?"}}"#).unwrap();
    let known = create(&unknown.backend).err().unwrap().to_string();
    let known = known.rsplit_once("use one of ").unwrap().1;
    for kind in known.split(", ") {
        let named = |(backend, ..): &(&str, Stack, u32)| backend.contains(&format!("\"{kind}\""));
        assert!(TABLE.iter().any(named), "{kind} is not in the table");
    }
}
