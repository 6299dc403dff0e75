//! The MTU that pods get: one table for all backends, address families and options.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use flannel_backend::{Node, Underlay, create};
use flannel_kernel::{IfName, KernelVersion};
use flannel_lease::NetworkConfig;

#[derive(Clone, Copy, Debug)]
enum Stack {
    V4,
    V6,
    Dual,
}

use Stack::{Dual, V4, V6};

const PSK: &str = "96-bytes-that-nobody-guesses-7f3a9c51d0e84b26-and-some-more-of-them-2b8e6d4f10a7c953-that-is-it.";

/// What a backend takes off the MTU of the node's interface. The Go flannel takes the same off, except where a row
/// says what it does: there packets would not fit, or could be longer.
const TABLE: &[(&str, Stack, u32)] = &[
    // Ethernet 14, IP 20 or 40, UDP 8, vxlan 8. The Go flannel: 50 for IPv6 too.
    (r#""Type":"vxlan""#, V4, 50),
    (r#""Type":"vxlan""#, V6, 70),
    (r#""Type":"vxlan""#, Dual, 70),
    (r#""Type":"vxlan","DirectRouting":true"#, V4, 50),
    (r#""Type":"vxlan","MTU":1400"#, V4, 150),
    (r#""Type":"vxlan","MTU":1400"#, Dual, 170),
    (r#""Type":"host-gw""#, V4, 0),
    (r#""Type":"host-gw""#, V6, 0),
    (r#""Type":"host-gw""#, Dual, 0),
    // IP 20 or 40, UDP 8, WireGuard 32. The Go flannel: 80 for IPv4 too.
    (r#""Type":"wireguard""#, V4, 60),
    (r#""Type":"wireguard""#, V6, 80),
    (r#""Type":"wireguard""#, Dual, 80),
    (r#""Type":"wireguard","Mode":"ipv4""#, Dual, 60),
    (r#""Type":"wireguard","Mode":"ipv6""#, Dual, 80),
    (r#""Type":"wireguard","Mode":"auto""#, V4, 60),
    (r#""Type":"wireguard","Mode":"auto""#, Dual, 80),
    (r#""Type":"wireguard","MTU":1400"#, V4, 160),
    (r#""Type":"ipip""#, V4, 20),
    (r#""Type":"ipip","DirectRouting":true"#, V4, 20),
    // IP 20, ESP 8, and what the hungriest cipher adds: 16 before, 17 to fill up, 16 behind.
    (r#""Type":"ipsec""#, V4, 77),
    (r#""Type":"ipsec","UDPEncap":true"#, V4, 85),
    // IP 20 or 40, UDP 8.
    (r#""Type":"udp""#, V4, 28),
    (r#""Type":"udp""#, V6, 48),
    (r#""Type":"udp""#, Dual, 48),
    (r#""Type":"aws-vpc""#, V4, 0),
    (r#""Type":"ali-vpc""#, V4, 0),
    (r#""Type":"gce""#, V4, 0),
    (r#""Type":"tencent-vpc""#, V4, 0),
    (r#""Type":"extension""#, V4, 0),
    (r#""Type":"extension""#, Dual, 0),
    (r#""Type":"alloc""#, V4, 0),
    (r#""Type":"alloc""#, V6, 0),
];

fn mtu(backend: &str, stack: Stack, underlay: u32) -> u32 {
    let families = match stack {
        V4 => r#""Network":"10.244.0.0/16""#,
        V6 => r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/56""#,
        Dual => r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/56""#,
    };
    let psk = if backend.contains("ipsec") { format!(r#","PSK":"{PSK}""#) } else { String::new() };
    let network =
        NetworkConfig::parse(&format!(r#"{{{families},"Backend":{{{backend}{psk}}}}}"#)).unwrap();
    let backend = create(&network.backend).unwrap();
    let v4 = Some([192, 168, 100, 1].into()).filter(|_| network.v4.is_some());
    let v6 = Some("fd00:100::1".parse().unwrap()).filter(|_| network.v6.is_some());
    let link = IfName::new("eth0").unwrap();
    let underlay =
        Underlay { link, mtu: underlay, v4, v6, public_v4: v4, public_v6: v6, why: String::new() };
    let node = Node {
        underlay,
        network,
        kernel: KernelVersion { major: 6, minor: 1 },
        paths: Default::default(),
        connected: Vec::new(),
        answers: Default::default(),
    };
    backend.check(&node).unwrap();
    backend.mtu(&node)
}

#[test]
fn every_backend_takes_off_what_it_adds_to_packets_and_no_more() {
    for (backend, stack, overhead) in TABLE {
        assert_eq!(mtu(backend, *stack, 1500), 1500 - overhead, "{backend} {stack:?}");
        // Whatever the card carries.
        if !backend.contains("MTU") {
            for underlay in [1400, 9000] {
                let fits = mtu(backend, *stack, underlay);
                assert_eq!(fits, underlay - overhead, "{backend} {stack:?} of {underlay}");
            }
        }
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
