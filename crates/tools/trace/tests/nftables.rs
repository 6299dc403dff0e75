//! Rules that `nft` has written, read back from the kernel and followed by packets, each in a network namespace of its own.

use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use flannel_trace::firewall::{Conversation, Dropped, Hook, Packet, Rules, TCP, UDP};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Takes the calling test into a network namespace with two devices, one of which has the address 192.0.2.1.
fn namespace() {
    // SAFETY: only the network namespace of this test's thread is left; no memory is shared by it.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .expect("these tests make network namespaces: run them as root");
    for arguments in ["link add eth0 type veth peer name eth1", "addr add 192.0.2.1/24 dev eth0"] {
        let ended = Command::new("ip").args(arguments.split(' ')).status().expect("run ip");
        assert!(ended.success(), "ip {arguments}");
    }
}

/// The rules of this text, and no others.
fn rules(text: &str) -> Rules {
    let mut nft =
        Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("run nft");
    let text = format!("flush ruleset\n{text}");
    nft.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("write the rules");
    assert!(nft.wait().expect("nft ends").success(), "{text}");
    Rules::read()
}

fn tunnel() -> Packet {
    Packet {
        port: Some(8472),
        iif: "eth0".to_owned(),
        oif: "eth0".to_owned(),
        ..Packet::first(Hook::In, [192, 0, 2, 2].into(), [192, 0, 2, 1].into(), UDP)
    }
}

/// With one rule in a base chain, beside a chain `shut` that drops and a set.
fn judge(rule: &str, policy: &str, packet: &Packet) -> Dropped {
    let text = format!(
        "table inet t {{
            set nodes {{ type ipv4_addr; elements = {{ 192.0.2.2 }}; }}
            chain shut {{ drop; }}
            chain in {{ type filter hook input priority 0; policy {policy}; {rule}; }}
        }}"
    );
    rules(&text).judge(packet)
}

#[test]
fn rules_that_drop_the_tunnel_are_found_and_others_are_not() {
    namespace();
    let dropped = |rule: &str| judge(rule, "accept", &tunnel()).surely;
    let found = dropped("udp dport 8472 counter drop").unwrap();
    assert!(found.fix.starts_with("nft delete rule inet t in handle "), "{}", found.fix);
    for dropping in [
        "drop",
        "jump shut",
        "th dport { 53, 8000-9000 } drop",
        "ip saddr 192.0.2.0/25 reject",
        "ip saddr 192.0.2.0/24 drop",
        "ip saddr 192.0.2.1-192.0.2.9 drop",
        "ip saddr != 192.0.2.10-192.0.2.19 drop",
        "ip saddr @nodes drop",
        "iifname != \"lo\" drop",
        "iifname \"eth*\" drop",
        "iif eth0 drop",
        "iif != lo drop",
        "oifname != \"eth0\" drop",
        "ip saddr . udp dport { 192.0.2.0/24 . 8000-9000, 192.0.3.1 . 53 } drop",
        "meta l4proto vmap { tcp : accept, udp : goto shut }",
        "udp dport vmap { 53 : accept, 8000-9000 : drop }",
        "udp dport vmap { 53 : accept, * : drop }",
        "udp dport vmap { 8472 : continue, 53 : accept }; drop",
        "ip daddr 192.0.2.1 log meta mark set 1 drop",
        "ct state new drop",
        "ct state vmap { established : accept, new : drop }",
        "meta nfproto ipv4 drop",
        "meta mark set numgen random mod 2 drop",
    ] {
        assert!(dropped(dropping).is_some(), "{dropping}");
    }
    for passing in [
        "tcp dport 8472 drop",
        "th dport { 53, 8473 } drop",
        "udp dport 9000-9999 drop",
        "ip saddr 192.0.2.128/25 drop",
        "ip saddr != @nodes drop",
        "iifname \"lo\" drop",
        "iif eth1 drop",
        "oifname \"eth0\" drop",
        "ip6 saddr fd00::/8 drop",
        "ip saddr . udp dport { 192.0.2.0/24 . 53, 192.0.3.1 . 8472 } drop",
        "udp dport vmap { 53 : drop, * : accept }",
        "meta nfproto ipv6 drop",
        "ct state established,related drop",
        "ct state invalid drop",
        "icmp type echo-request drop",
    ] {
        assert_eq!(judge(passing, "accept", &tunnel()), Dropped::default(), "{passing}");
    }
}

#[test]
fn rules_for_some_packets_are_told_with_their_counters() {
    namespace();
    for some in [
        "meta mark 1",
        "ct mark 1",
        "numgen random mod 100 < 5",
        "limit rate over 10/second",
        "udp sport 53",
        "ip ttl 1",
        "ip dscp cs1",
        "fib daddr type local",
        "ether saddr 02:00:00:00:00:01",
        "ip saddr . meta mark { 192.0.2.2 . 1 }",
        "udp length 100-200",
        "add @nodes { ip saddr }",
        "@ih,0,8 1",
    ] {
        let dropped = judge(&format!("{some} counter packets 3 bytes 9 drop"), "accept", &tunnel());
        assert_eq!(dropped.surely, None, "{some}");
        assert_eq!(dropped.perhaps.first().and_then(|one| one.packets), Some(3), "{some}");
    }
    let by_map = judge("meta mark vmap { 1 : accept, 2 : jump shut }", "accept", &tunnel());
    assert_eq!((by_map.surely, by_map.perhaps.len()), (None, 1));
    let any_port = Packet { port: None, ..tunnel() };
    assert_eq!(judge("udp dport 53 drop", "accept", &any_port).perhaps.len(), 1);
}

#[test]
fn sizes_and_states_of_connections_are_known() {
    namespace();
    let full = Packet { length: 1500, ..tunnel() };
    for long in ["ip length > 1000", "meta length >= 1000", "meta length 1000-65535"] {
        let rule = format!("{long} drop");
        assert_eq!(judge(&rule, "accept", &tunnel()), Dropped::default(), "{long}");
        assert!(judge(&rule, "accept", &full).surely.is_some(), "{long}");
    }
    let begun = Packet { conversation: Conversation::Established, ..tunnel() };
    assert!(judge("ct state established,related drop", "accept", &begun).surely.is_some());
    assert!(judge("ct state untracked drop", "accept", &begun).perhaps.is_empty());
    let untracking = judge("udp dport 1 notrack; ct state untracked drop", "accept", &begun);
    assert_eq!(untracking.perhaps.len(), 1);
}

#[test]
fn a_policy_that_drops_is_named_with_the_rule_that_lets_the_tunnel_through() {
    namespace();
    let found = judge("counter", "drop", &tunnel()).surely.unwrap();
    assert_eq!(found.fix, "nft insert rule inet t in udp dport 8472 accept");
    assert_eq!(judge("udp dport 8472 accept", "drop", &tunnel()), Dropped::default());
    let dormant =
        "table inet t { flags dormant; chain in { type filter hook input priority 0; drop; }; }";
    assert_eq!(rules(dormant).judge(&tunnel()), Dropped::default());
}

#[test]
fn chains_of_devices_and_bridges_see_the_frames_of_theirs() {
    namespace();
    let at = |family: &str, hook: &str, rule: &str| {
        rules(&format!(
            "table {family} t {{ chain c {{ type filter hook {hook} priority 0; {rule}; }}; }}"
        ))
    };
    let sent = Packet { hook: Hook::Out, ..tunnel() };
    let counted = "ip daddr 192.0.2.1 counter packets 4 bytes 9 drop";
    let egress = at("netdev", "egress devices = { eth0, eth1 }", counted);
    assert_eq!(egress.judge(&sent).surely.and_then(|drop| drop.packets), Some(4));
    assert_eq!(egress.judge(&tunnel()), Dropped::default(), "what comes in");
    let other = Packet { oif: "eth2".to_owned(), ..sent };
    assert_eq!(egress.judge(&other), Dropped::default());
    assert!(at("netdev", "ingress device eth0", "drop").judge(&tunnel()).surely.is_some());
    assert!(at("inet", "ingress device eth0", "drop").judge(&tunnel()).surely.is_some());
    assert_eq!(at("netdev", "ingress device eth1", "drop").judge(&tunnel()), Dropped::default());

    let bridge = at("bridge", "postrouting", counted);
    assert_eq!(bridge.judge(&tunnel()), Dropped::default(), "not a frame of a bridge");
    let frame = Packet { hook: Hook::BridgeOut, ..tunnel() };
    assert!(bridge.judge(&frame).surely.is_some());
    let asking = Packet { is_arp: true, ..frame.clone() };
    let bridge = at("bridge", "output", "ether type arp arp daddr ip 192.0.2.1 drop");
    assert!(bridge.judge(&frame).surely.is_none());
    assert!(bridge.judge(&asking).surely.is_some());
    let arp = Packet { is_arp: true, hook: Hook::Out, ..tunnel() };
    assert!(at("arp", "output", "arp saddr ip 192.0.2.2 drop").judge(&arp).surely.is_some());
}

/// Whether a pod's packet is dropped, and how many rules may do so.
fn forwarded(rules: &Rules) -> (bool, usize) {
    let (one, two): (IpAddr, IpAddr) = ([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
    let dropped = rules.judge(&Packet::first(Hook::Forward, one, two, TCP));
    (dropped.surely.is_some(), dropped.perhaps.len())
}

#[test]
fn rules_that_write_what_no_packet_survives_are_as_those_that_drop() {
    namespace();
    let by = |kind: &str, rule: &str| {
        forwarded(&rules(&format!("table ip t {{ chain c {{ type {kind}; {rule}; }}; }}")))
    };
    let source = |rule: &str| by("nat hook postrouting priority 100", rule);
    assert_eq!(source("snat to 192.0.2.7"), (true, 0));
    assert_eq!(source("snat to 192.0.2.1"), (false, 0));
    assert_eq!(source("masquerade"), (false, 0));
    let destination = |rule: &str| by("nat hook prerouting priority -100", rule);
    assert_eq!(destination("dnat to 10.99.0.1"), (true, 0));
    assert_eq!(destination("tcp dport 80 redirect to :8080"), (false, 0), "a published port");
    let write = |rule: &str| by("filter hook prerouting priority 0", rule);
    assert_eq!(write("ip daddr set 10.99.0.1"), (true, 0));
    assert_eq!(write("ip saddr set 10.99.0.1"), (true, 0));
    assert_eq!(write("ip ttl set 1"), (false, 1));
    assert_eq!(write("ip ttl set 64"), (false, 0));
    assert_eq!(write("ip dscp set cs1"), (false, 0));
}

#[test]
fn nobody_is_told_to_delete_a_guard() {
    namespace();
    let fix = |table: &str, rule: &str| {
        let chain = format!("chain c {{ type filter hook forward priority 0; {rule}; }}");
        let rules = rules(&format!("table ip {table} {{ {chain}; }}"));
        let packet =
            Packet::first(Hook::Forward, [127, 0, 0, 1].into(), [10, 244, 2, 2].into(), TCP);
        let other = Packet { src: [10, 244, 1, 2].into(), ..packet.clone() };
        let found = rules.judge(&packet).surely.or(rules.judge(&other).surely);
        found.unwrap().fix
    };
    assert!(fix("t", "ip saddr 127.0.0.0/8 drop").starts_with("leave this rule"));
    assert!(fix("t", "ip saddr { 127.0.0.1, 10.1.0.1 } drop").starts_with("leave this rule"));
    assert!(fix("flannel-ipv4", "ip daddr 10.244.2.0/24 drop").starts_with("leave this rule"));
    assert!(fix("t", "ip saddr 10.244.1.0/24 drop").starts_with("nft delete rule ip t c handle "));
}
