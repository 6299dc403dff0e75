//! Probing wherever flannel runs: over every backend that the kernel at hand lacks, in each family, behind a NAT, in
//! several networks, and through links that lie about themselves.

use flannel_lab::{Families, LabError, Result};
use serde_json::json;

use crate::probing::{
    all_is_well, drop_no_more, drop_packets, every_backend, flannelctl, named, peer, says, started,
};
use crate::support::{BadCard, LIMIT, connected_pods, lab, reach_each_other};

/// An address of a network that no node is in.
const PUBLIC: &str = "203.0.113.2";

#[test]
#[ignore = "needs a kernel with WireGuard: scripts/vm has one"]
fn the_tunnel_of_the_kernels_wireguard_is_probed() -> Result<()> {
    let builder = lab(2).backend("wireguard").env("WIREGUARD_IMPLEMENTATION", "kernel");
    every_backend(builder, "udp dport 51820", "UDP port 51820 does not")
}

#[test]
#[ignore = "needs a kernel with ipip: scripts/vm has one"]
fn the_tunnel_of_ipip_is_probed() -> Result<()> {
    every_backend(lab(2).backend("ipip"), "ip protocol 4", "IP protocol 4 (IPIP) does not arrive")
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn the_tunnel_of_ipsec_is_probed() -> Result<()> {
    let key = "96-bytes-that-nobody-guesses-7f3a9c51d0e84b26-and-some-more-of-them-2b8e6d4f10a7c953-that-is-it.";
    let builder = lab(2).backend_json(json!({"Type": "ipsec", "PSK": key}));
    every_backend(builder, "ip protocol esp", "IPsec (ESP, and UDP ports 500 and 4500) does not")
}

#[test]
fn in_a_network_of_ipv6_alone_peers_are_probed_and_what_is_cut_is_named() -> Result<()> {
    let builder = lab(2).underlay(Families::Ipv6).overlay(Families::Ipv6);
    every_backend(builder, "udp dport 8472", "UDP port 8472 does not arrive there")
}

/// The other family has nothing but link-local addresses, which mean nothing without their link.
#[test]
fn pods_of_one_family_over_a_card_of_the_other_are_probed_too() -> Result<()> {
    let builder = lab(2).underlay(Families::Ipv4).overlay(Families::Ipv6);
    every_backend(builder, "udp dport 8472", "UDP port 8472 does not arrive there")
}

#[test]
fn of_two_families_ipv4_may_be_the_one_that_is_cut() -> Result<()> {
    let lab = started(lab(2).ipv6(true))?;
    let rule = "meta nfproto ipv4 udp dport 8472";
    let parts = ["(tunnel): IPv4: ", "does not arrive there"];
    named(&lab, 1, false, &parts, || drop_packets(&lab, 2, "input", rule))?;
    drop_no_more(&lab, 2);
    all_is_well(&lab)
}

/// One address of the world's is translated to the node's own, all of it, as clouds do.
#[test]
fn behind_an_address_that_is_translated_the_public_one_is_probed_and_named() -> Result<()> {
    let lab = lab(2).node_flag(2, format!("--public-ip={PUBLIC}")).no_daemons().start()?;
    lab.node(1).ip(&format!("route add {PUBLIC} via 192.168.100.2"))?;
    let nat = format!(
        "add table ip nat {{ chain in {{ type nat hook prerouting priority -100; ip daddr {PUBLIC} dnat to 192.168.100.2; }}; }}"
    );
    lab.node(2).exec(&["nft", &nat])?;
    lab.start_daemons()?;
    all_is_well(&lab)?;
    let seen = flannelctl(&lab, 1, &["peers", PUBLIC]).1;
    assert!(seen.contains("reached") && seen.contains(PUBLIC), "{seen}");
    let there = format!("at {PUBLIC} (tunnel): its daemon answers beside the tunnel");
    let parts = [&*there, "UDP port 8472 does not arrive there", &format!("on {PUBLIC}: ")];
    named(&lab, 1, false, &parts, || drop_packets(&lab, 2, "input", "udp dport 8472"))?;
    drop_no_more(&lab, 2);
    all_is_well(&lab)
}

/// Only the tunnel's port is forwarded: that nothing else answers there is no finding.
#[test]
fn behind_a_nat_that_forwards_the_tunnel_alone_a_peer_is_reached() -> Result<()> {
    let lab = lab(2).node_flag(2, format!("--public-ip={PUBLIC}")).no_daemons().start()?;
    lab.node(1).ip(&format!("route add {PUBLIC} via 192.168.100.2"))?;
    let nat = format!(
        "add table ip nat {{ chain in {{ type nat hook prerouting priority -100; ip daddr {PUBLIC} udp dport 8472 dnat to 192.168.100.2; }}; }}"
    );
    lab.node(2).exec(&["nft", &nat])?;
    lab.node(2).exec(&["sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
    lab.start_daemons()?;
    all_is_well(&lab)?;
    lab.wait_until("a packet of full size to have passed", LIMIT, || {
        let told = flannelctl(&lab, 1, &["peers", PUBLIC, "-o", "json"]).1;
        if told.contains("\"mtu\":1450") { Ok(()) } else { Err(LabError::Spec(told)) }
    })?;
    all_is_well(&lab)
}

#[test]
fn each_of_two_networks_of_a_daemon_is_probed_and_told_apart() -> Result<()> {
    let lab = lab(2).no_daemons().flag("--networks=blue,green").start()?;
    for (name, network, vni) in [("blue", "10.1.0.0/16", 1), ("green", "10.2.0.0/16", 2)] {
        let config = json!({"Network": network, "Backend": {"Type": "vxlan", "VNI": vni}});
        let key = format!("{}/{name}/config", lab.spec().etcd_prefix);
        lab.etcd()?.put(&key, config.to_string())?;
    }
    for node in lab.nodes() {
        node.flanneld().start()?;
    }
    let whole = |node: u16| -> Result<()> {
        let what = format!("node {node} to be whole in both");
        lab.wait_until(&what, LIMIT, || {
            let (is_whole, said) = flannelctl(&lab, node, &["status"]);
            let reached = said.matches("probes    1 reached; round trip").count();
            if is_whole && reached == 2 { Ok(()) } else { Err(LabError::Spec(said)) }
        })
    };
    whole(1)?;
    whole(2)?;
    // The number of the network stands in the tunnel's header.
    drop_packets(&lab, 2, "input", "udp dport 8472 @th,96,24 2");
    let said = says(&lab, 1, false, &["UDP port 8472 does not arrive there", "1 UNREACHABLE"])?;
    let (blue, green) = said.split_once("green").expect("both are told of");
    assert!(blue.contains("probes    1 reached; round trip"), "{said}");
    assert!(green.contains("0 reached, 1 UNREACHABLE"), "{said}");
    drop_no_more(&lab, 2);
    whole(1)?;
    whole(2)
}

/// A link below whose MTU is smaller than it says, and that does not cut packets up: what fits is found, and when
/// that is done, all is well.
#[test]
fn the_mtu_that_is_named_for_a_link_that_carries_less_is_the_one_that_mends_it() -> Result<()> {
    let lab = started(lab(2))?;
    // As a tunnel with 80 bytes of its own would.
    let plant = || drop_packets(&lab, 2, "prerouting", "iifname eth0 meta length > 1420");
    let said = named(&lab, 1, false, &["(underlay): packets of more than 1370 bytes"], plant)?;
    let command = said.split('`').find(|part| part.starts_with("ip link set dev eth0 mtu"));
    let words: Vec<&str> = command.expect("the command that mends it").split(' ').collect();
    assert_eq!(words.last(), Some(&"1420"), "{said}");
    for node in lab.nodes() {
        node.exec(&words)?;
    }
    all_is_well(&lab)?;
    lab.wait_until("packets of the new full size to have passed", LIMIT, || {
        let probe = peer(&lab, 1, 2)["probe"].clone();
        if probe["mtu"] == 1370 { Ok(()) } else { Err(LabError::Spec(probe.to_string())) }
    })
}

/// The real fault, and the real mend: with what the kernel leaves to the card, nothing arrives; when it does it itself,
/// everything does.
#[test]
fn a_card_that_forgets_checksums_inside_of_tunnels_is_found_and_pods_talk_again() -> Result<()> {
    let lab = lab(2).wire(true).start()?;
    all_is_well(&lab)?;
    let (one, two) = connected_pods(&lab)?;
    let _card = BadCard::of(&lab, 1)?;
    lab.wait_until("the offload to be switched off", LIMIT, || {
        let events = flannelctl(&lab, 1, &["events"]).1;
        let is_off = events.contains("the checksum offload of flannel.1 is switched off");
        if is_off { Ok(()) } else { Err(LabError::Spec(events)) }
    })?;
    // Nobody has touched the card: what mends it is what the daemon has done.
    all_is_well(&lab)?;
    reach_each_other(&lab, &one, &two)?;
    let (_, diff) = flannelctl(&lab, 1, &["diff"]);
    assert!(diff.contains("the kernel has all"), "{diff}");
    Ok(())
}
