//! The traffic rules of a node: they follow the network and the flags, and leave nothing behind.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use flannel_lab::{Lab, Node, Place as _, Pod, Result};
use serde_json::{Value, json};

use crate::support::{LIMIT, lab, probe};

/// Where a test pod hears datagrams.
const POD_PORT: u16 = 5005;

const PROGRAMS: [&str; 3] =
    ["/usr/sbin/nft", "/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"];

/// All rules of a node, of every kind. Counters and dates change by themselves.
fn listing(node: &Node) -> Result<String> {
    let commands = "nft list ruleset; iptables-legacy-save; ip6tables-legacy-save";
    let text = node.exec(&["sh", "-c", commands])?;
    let lines = text.lines().filter(|line| !line.starts_with(['#', ':']));
    Ok(lines.map(|line| format!("{}\n", line.trim())).collect())
}

fn config(nftables: bool) -> Value {
    json!({
        "Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:244::/48",
        "EnableNFTables": nftables, "Backend": {"Type": "vxlan"}
    })
}

/// Restarts the daemon as one that wants no rules.
fn want_none(node: &Node) -> Result<()> {
    for flag in ["--ip-masq=false", "--iptables-forward-rules=false"] {
        node.flanneld().add_flag(flag);
    }
    node.flanneld().restart()
}

/// As if no program for packet filter rules were installed on the node.
fn hide_programs(node: &Node) -> Result<()> {
    for program in PROGRAMS {
        node.exec(&["mount", "--bind", "/dev/null", program])?;
    }
    Ok(())
}

/// A daemon that wants no rules at all, after one that had them.
fn the_rules_of_a_former_run_go(nftables: bool) -> Result<()> {
    let lab = lab(1).config_json(&config(nftables).to_string()).flag("--ip-masq").start()?;
    let node = lab.node(1);
    node.exec(&["iptables", "-A", "FORWARD", "-s", "10.99.0.0/16", "-j", "ACCEPT"])?;
    let before = listing(node)?;
    let traces = if nftables {
        ["table ip flannel-ipv4", "table ip6 flannel-ipv6"]
    } else {
        ["FLANNEL-POSTRTG", "FLANNEL-FWD"]
    };
    for trace in traces {
        assert!(before.contains(trace), "no {trace} to begin with:\n{before}");
    }
    // Whoever wants no rules needs no program for them, not even to be rid of old ones.
    hide_programs(node)?;
    want_none(node)?;
    for program in PROGRAMS {
        node.exec(&["umount", program])?;
    }
    let after = listing(node)?;
    assert!(!after.to_lowercase().contains("flannel"), "rules are left:\n{after}");
    assert!(after.contains("10.99.0.0/16"), "somebody else's rule is gone:\n{after}");
    let log = node.flanneld().log();
    assert!(log.contains("removed what nobody wants any more"), "{log}");
    assert!(!log.contains("is not installed"), "{log}");

    // And back again.
    node.flanneld().add_flag("--ip-masq");
    node.flanneld().restart()?;
    let again = listing(node)?;
    assert!(again.contains(traces[0]), "no {} again:\n{again}", traces[0]);
    Ok(())
}

#[test]
fn a_node_that_wants_no_rules_any_more_loses_those_of_nftables() -> Result<()> {
    the_rules_of_a_former_run_go(true)
}

#[test]
fn a_node_that_wants_no_rules_any_more_loses_those_of_iptables() -> Result<()> {
    the_rules_of_a_former_run_go(false)
}

#[test]
fn a_node_that_wants_no_rules_any_more_loses_those_of_iptables_legacy() -> Result<()> {
    let lab =
        lab(1).config_json(&config(false).to_string()).flag("--ip-masq").no_daemons().start()?;
    let node = lab.node(1);
    // As the Go flannel leaves them on a node whose iptables is the older one.
    for arguments in [
        "-t nat -N FLANNEL-POSTRTG",
        "-t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -j MASQUERADE",
        "-t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG",
        "-N FLANNEL-FWD",
        "-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT",
        "-A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD",
    ] {
        node.exec(&["sh", "-c", &format!("iptables-legacy {arguments}")])?;
    }
    want_none(node)?;
    let after = listing(node)?;
    assert!(!after.to_lowercase().contains("flannel"), "rules are left:\n{after}");
    Ok(())
}

/// Writes a config and waits for rules that have all of these parts, and nothing of the others.
fn change(lab: &flannel_lab::Lab, config: &Value, parts: &[&str], gone: &[&str]) -> Result<()> {
    lab.put_config(&config.to_string())?;
    lab.wait_until("the rules", LIMIT, || {
        let text = listing(lab.node(1)).map_err(|error| error.to_string())?;
        let right = parts.iter().all(|part| text.contains(part))
            && !gone.iter().any(|part| text.contains(part));
        if right { Ok(()) } else { Err(format!("{config}:\n{text}")) }
    })
}

#[test]
fn the_rules_follow_the_network_its_families_its_exclusions_and_the_mode() -> Result<()> {
    let lab = lab(1).config_json(&config(false).to_string()).flag("--ip-masq").start()?;
    let mut config = config(false);
    change(&lab, &config, &["FLANNEL-POSTRTG", "10.244.0.0/16", "fd00:244::/48"], &["10.99."])?;

    config["MasqueradeExclude"] = json!(["172.16.0.0/12"]);
    change(&lab, &config, &["172.16.0.0/12", "fd00:244::/48"], &[])?;

    config["Network"] = json!("10.99.0.0/16");
    config["Replaces"] = json!(["10.0.0.0/8", "fd00::/8"]);
    change(&lab, &config, &["10.99.0.0/16", "172.16.0.0/12", "fd00:244::/48"], &["10.244."])?;

    config["EnableIPv6"] = json!(false);
    change(&lab, &config, &["10.99.0.0/16"], &["10.244.", "fd00:"])?;
    let chains = lab.node(1).exec(&["ip6tables-save"])?;
    assert!(!chains.contains("FLANNEL"), "{chains}");

    config["EnableNFTables"] = json!(true);
    change(
        &lab,
        &config,
        &["table ip flannel-ipv4", "10.99.0.0/16"],
        &["FLANNEL", "flannel-ipv6"],
    )?;

    config["MasqueradeExclude"] = json!([]);
    config["EnableIPv6"] = json!(true);
    change(&lab, &config, &["flannel-ipv6", "fd00:244::/48"], &["FLANNEL", "172.16."])?;

    config["EnableNFTables"] = json!(false);
    change(&lab, &config, &["FLANNEL-FWD", "10.99.0.0/16", "fd00:244::/48"], &["flannel-ipv"])
}

#[test]
fn rules_that_somebody_flushes_are_back_and_the_log_says_so() -> Result<()> {
    let lab = lab(1).flag("--ip-masq").start()?;
    let node = lab.node(1);
    let rules = || -> Result<Vec<String>> {
        let text = node.exec(&["iptables-save"])?;
        Ok(text.lines().filter(|line| line.contains("FLANNEL")).map(String::from).collect())
    };
    let before = rules()?;
    assert_eq!(before.len(), 4 + 4 + 6 + 2 + 2, "chains, jumps, and rules: {before:?}");
    node.exec(&["nft", "flush", "ruleset"])?;
    lab.wait_until("the rules again", LIMIT, || {
        let mut now = rules().map_err(|error| error.to_string())?;
        now.sort();
        let mut wanted = before.clone();
        wanted.sort();
        if now == wanted { Ok(()) } else { Err(format!("{now:?}")) }
    })?;
    lab.wait_until("a word about it", LIMIT, || {
        node.flanneld().log().contains("restored the IPv4 traffic rules (last changed by nft")
    })?;
    let (_, text) = probe(&lab, 1, "/metrics")?.expect("it answers");
    let restored = "flannel_traffic_rules_repaired_total{network=\"_\",family=\"ipv4\"} 1";
    assert!(text.contains(restored), "{text}");
    let restored = "{network=\"_\",applier=\"traffic-rules\",kind=\"masquerade\"} 1";
    assert!(text.contains(&format!("flannel_entries_repaired_total{restored}")), "{text}");
    Ok(())
}

#[test]
fn without_any_program_for_rules_a_node_that_must_masquerade_says_what_to_do() -> Result<()> {
    let lab = lab(1).flag("--ip-masq").no_daemons().start()?;
    let node = lab.node(1);
    hide_programs(node)?;
    node.flanneld().start()?;
    lab.wait_until("its end", LIMIT, || !node.flanneld().is_running())?;
    let log = node.flanneld().log();
    assert!(log.contains("iptables is not installed: install the package iptables"), "{log}");
    assert!(log.contains("or use nftables (\"EnableNFTables\": true"), "{log}");
    Ok(())
}

#[test]
fn without_any_program_for_rules_a_node_that_need_not_masquerade_goes_on() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let node = lab.node(1);
    hide_programs(node)?;
    node.flanneld().restart()?;
    let log = node.flanneld().log();
    let told = "Cannot keep the IPv4 rules (forward, tunnel guard input, tunnel guard forward): iptables is not installed";
    assert!(log.contains(told), "{log}");
    Ok(())
}

/// A datagram to a pod's [`POD_PORT`] inside an IPv4 packet, with its header's checksum.
fn datagram(from: Ipv4Addr, to: Ipv4Addr, text: &[u8]) -> Vec<u8> {
    let length = |header: usize| u16::try_from(header + text.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(length(28));
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.octets().into_iter().chain(to.octets()));
    let sum: u32 = packet.chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]]))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend([POD_PORT.to_be_bytes(), POD_PORT.to_be_bytes(), length(8), [0, 0]].concat());
    packet.extend(text);
    packet
}

/// What a node's vxlan device takes for a frame of another node.
fn vxlan_frame(node: &Node, packet: &[u8]) -> Result<Vec<u8>> {
    let link = node.ip("-o link show dev flannel.1")?;
    let mac = link.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let mac = mac.split(':').map(|part| u8::from_str_radix(part, 16).unwrap());
    let mut frame = vec![8, 0, 0, 0, 0, 0, 1, 0];
    frame.extend(mac);
    frame.extend([2, 0, 0, 0, 0, 9, 8, 0]);
    frame.extend(packet);
    Ok(frame)
}

fn pod_socket(pod: &Pod, port: u16) -> Result<UdpSocket> {
    let socket = pod.in_netns(|| UdpSocket::bind(("0.0.0.0", port)).unwrap())?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    Ok(socket)
}

/// Has a pod of node 1 forge a packet of the tunnel to its own node and to node 2, and says whether each got
/// into a pod. A true datagram of the other node's pod comes behind, so that nobody waits for what does not come.
fn forged_packets_arrive(lab: &Lab, pods: &[Pod], in_tunnel: Tunnel) -> Result<[bool; 2]> {
    let forger = pod_socket(&pods[0], 0)?;
    let mut arrived = [false; 2];
    for (at, pod) in pods.iter().enumerate() {
        let node = lab.node(pod.node());
        let (to, pretended) = (pod.v4().unwrap(), pods[1 - at].v4().unwrap());
        let packet = datagram(pretended, to, b"forged");
        let (payload, port) = match in_tunnel {
            Tunnel::Vxlan => (vxlan_frame(node, &packet)?, 8472),
            Tunnel::Udp => (packet, 8285),
        };
        let end = node.addresses().into_iter().find(IpAddr::is_ipv4).unwrap();
        let hearer = pod_socket(pod, POD_PORT)?;
        forger.send_to(&payload, SocketAddr::new(end, port)).unwrap();
        let sender = pod_socket(&pods[1 - at], 0)?;
        sender.send_to(b"true", (to, POD_PORT)).unwrap();
        let mut bytes = [0; 16];
        let heard = |bytes: &mut [u8]| hearer.recv(bytes).map(|length| bytes[..length].to_vec());
        let first = heard(&mut bytes).expect("pods reach each other");
        arrived[at] = first == b"forged";
    }
    Ok(arrived)
}

#[derive(Clone, Copy)]
enum Tunnel {
    Vxlan,
    Udp,
}

/// As anybody, into the pods of its own node and of another.
fn no_pod_puts_packets_into(tunnel: Tunnel, nftables: bool) -> Result<()> {
    let backend = match tunnel {
        Tunnel::Vxlan => "vxlan",
        Tunnel::Udp => "udp",
    };
    let config = json!({
        "Network": "10.244.0.0/16", "EnableNFTables": nftables, "Backend": {"Type": backend}
    });
    let lab = lab(2).config_json(&config.to_string()).start()?;
    let pods = lab.pod_on_every_node()?;
    lab.wait_until("pods that reach each other", LIMIT, || lab.ping(&pods[0], &pods[1]).is_ok())?;
    let node = lab.node(1);
    lab.wait_until("rules that know where pods are", LIMIT, || {
        listing(node).is_ok_and(|rules| rules.contains("cni0"))
    })?;
    assert_eq!(forged_packets_arrive(&lab, &pods, tunnel)?, [false, false]);

    if matches!(tunnel, Tunnel::Vxlan) {
        // A network without rules has what the kernel gives it: this is what they are for.
        want_none(lab.node(1))?;
        want_none(lab.node(2))?;
        assert_eq!(forged_packets_arrive(&lab, &pods, tunnel)?, [true, true]);
    }
    Ok(())
}

#[test]
fn no_pod_puts_packets_into_the_vxlan_tunnel_with_iptables() -> Result<()> {
    no_pod_puts_packets_into(Tunnel::Vxlan, false)
}

#[test]
fn no_pod_puts_packets_into_the_vxlan_tunnel_with_nftables() -> Result<()> {
    no_pod_puts_packets_into(Tunnel::Vxlan, true)
}

#[test]
fn no_pod_puts_packets_into_the_udp_tunnel() -> Result<()> {
    no_pod_puts_packets_into(Tunnel::Udp, false)
}
