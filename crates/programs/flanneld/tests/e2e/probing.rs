//! Nodes probe each other: each fault is planted alone, named with its layer and what mends it, and not
//! reported when it is not there.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use flannel_lab::{Lab, LabBuilder, LabError, Result};
use serde_json::Value;

use crate::support::{LIMIT, connected_pods, flanneld, go_flanneld, lab, measured, probe};

pub(crate) fn flannelctl(lab: &Lab, node: u16, words: &[&str]) -> (bool, String) {
    let program = flanneld().with_file_name("flannelctl");
    let mut command = vec![program.to_str().unwrap()];
    command.extend(words);
    let output = lab.node(node).output(&command).unwrap();
    (output.status.success(), output.stdout + &output.stderr)
}

fn status(lab: &Lab, node: u16) -> (bool, String) {
    flannelctl(lab, node, &["status"])
}

/// Waits until a node says all of this, and whether its network is healthy.
pub(crate) fn says(lab: &Lab, node: u16, whole: bool, parts: &[&str]) -> Result<String> {
    lab.wait_until(&format!("node {node} to say {parts:?}"), LIMIT, || {
        let (said_whole, said) = status(lab, node);
        let all = said_whole == whole && parts.iter().all(|part| said.contains(part));
        if all { Ok(said) } else { Err(LabError::Spec(said)) }
    })
}

/// All nodes reach all, and nothing is found wrong.
pub(crate) fn all_is_well(lab: &Lab) -> Result<()> {
    let others = lab.nodes().len() - 1;
    for node in lab.nodes() {
        let said =
            says(lab, node.number(), true, &[&format!("probes    {others} reached; round trip")])?;
        assert!(!said.contains("fix: "), "{said}");
        assert!(said.contains("the network is healthy\n"), "{said}");
    }
    Ok(())
}

pub(crate) fn started(builder: LabBuilder) -> Result<Lab> {
    let lab = builder.start()?;
    all_is_well(&lab)?;
    Ok(lab)
}

/// Plants a fault, waits until it is named, and tells how long that took.
pub(crate) fn named(
    lab: &Lab,
    node: u16,
    whole: bool,
    parts: &[&str],
    plant: impl FnOnce(),
) -> Result<String> {
    plant();
    let planted = Instant::now();
    let said = says(lab, node, whole, parts)?;
    measured(format_args!("{parts:?} named after {:?}", planted.elapsed()));
    Ok(said)
}

pub(crate) fn drop_packets(lab: &Lab, node: u16, hook: &str, rule: &str) {
    let table = format!(
        "add table inet planted {{ chain it {{ type filter hook {hook} priority -300; {rule} drop; }}; }}"
    );
    lab.node(node).exec(&["nft", &table]).unwrap();
}

pub(crate) fn drop_no_more(lab: &Lab, node: u16) {
    lab.node(node).exec(&["nft", "delete table inet planted"]).unwrap();
}

fn address(lab: &Lab, node: u16) -> Ipv4Addr {
    lab.node(node).nic().v4.expect("an address").addr()
}

/// What a node knows of a peer.
pub(crate) fn peer(lab: &Lab, node: u16, of: u16) -> Value {
    let (_, said) = flannelctl(lab, node, &["peers", &address(lab, of).to_string(), "-o", "json"]);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn peers_are_probed_through_the_overlay_and_that_is_told() -> Result<()> {
    let lab = started(lab(3))?;
    let (_, lease) = lab.leases()?.remove(0);
    assert!(lease.contains("\"ProbePort\":8475"), "{lease}");
    lab.wait_until("a packet of full size to have passed", LIMIT, || {
        let probe = peer(&lab, 1, 2)["probe"].clone();
        let full = probe["verdict"] == "reached" && probe["mtu"] == 1450;
        if full { Ok(()) } else { Err(LabError::Spec(probe.to_string())) }
    })?;
    let (_, peers) = flannelctl(&lab, 1, &["peers"]);
    assert_eq!(peers.matches("reached ").count(), 2, "{peers}");
    let (_, events) = flannelctl(&lab, 1, &["events"]);
    assert_eq!(events.matches("peer-reached").count(), 2, "{events}");
    assert!(!events.contains("peer-unreachable"), "{events}");
    Ok(())
}

#[test]
fn a_closed_tunnel_port_is_named_on_both_sides() -> Result<()> {
    let lab = started(lab(3))?;
    let there = format!("at {} (tunnel)", address(&lab, 2));
    let parts =
        [&*there, "UDP port 8472 does not arrive there", "`flannelctl check` names what drops it"];
    let said = named(&lab, 1, false, &parts, || drop_packets(&lab, 2, "input", "udp dport 8472"))?;
    assert!(said.contains("probes    1 reached, 1 UNREACHABLE"), "node 3 is: {said}");
    let back = ["UDP port 8472 does not come back", "`flannelctl check` names what drops it"];
    says(&lab, 2, false, &back)?;
    assert_eq!(probe(&lab, 1, "/readyz")?.unwrap().0, 200, "one peer away is no fault of ours");
    assert_eq!(peer(&lab, 1, 2)["probe"]["verdict"], "tunnel-blocked");
    drop_no_more(&lab, 2);
    all_is_well(&lab)?;
    let (_, events) = flannelctl(&lab, 1, &["events"]);
    assert!(events.contains("peer-unreachable") && events.contains("is reached again"), "{events}");
    Ok(())
}

#[test]
fn an_underlay_that_carries_less_than_its_card_says_is_named_with_what_fits() -> Result<()> {
    let lab = started(lab(3))?;
    let plant = || drop_packets(&lab, 2, "prerouting", "iifname eth0 meta length > 1400");
    let parts = ["(underlay): packets of more than 1350 bytes vanish", "eth0 mtu 1400"];
    let said = named(&lab, 1, false, &parts, plant)?;
    assert!(said.contains("probes    1 reached, 1 UNREACHABLE"), "{said}");
    says(&lab, 3, false, &parts)?;
    // It gets none of them, and is told so.
    says(&lab, 2, false, &parts)?;
    assert_eq!(peer(&lab, 1, 2)["probe"]["mtu"], 1350);
    assert_eq!(peer(&lab, 2, 1)["probe"]["mtu"], 1350);
    drop_no_more(&lab, 2);
    all_is_well(&lab)
}

/// A router on the way, as a tunnel below would, cuts the tunnel's packets up and lets them through.
#[test]
fn packets_that_are_fragmented_on_the_way_are_named_with_what_fits() -> Result<()> {
    let lab = started(lab(2).segments(2).segment_of(2, 1))?;
    let there = address(&lab, 2).to_string();
    let route = lab.switch().exec(&["ip", "-o", "route", "get", &there])?;
    let device = route.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap();
    let set = |mtu: &str| {
        lab.switch().exec(&["ip", "link", "set", "dev", device, "mtu", mtu]).unwrap();
    };
    let parts = ["(underlay): packets arrive, but the largest are cut up", "eth0 mtu 1400"];
    let said = named(&lab, 1, true, &parts, || set("1400"))?;
    assert!(said.contains("the network is healthy, with warnings:"), "{said}");
    set("1500");
    all_is_well(&lab)
}

#[test]
fn a_daemon_that_is_down_is_told_from_a_node_that_is() -> Result<()> {
    let lab = started(lab(3))?;
    let (_, _) = connected_pods(&lab)?;
    let there = format!("at {} (daemon)", address(&lab, 2));
    let parts = [&*there, "packets get there and back", "systemctl restart flanneld"];
    let said = named(&lab, 1, true, &parts, || lab.node(2).flanneld().kill9())?;
    assert!(said.contains("the network is healthy, with warnings:"), "{said}");
    lab.node(2).flanneld().start()?;
    all_is_well(&lab)
}

#[test]
fn a_node_cut_off_from_one_other_is_named_by_these_two_alone() -> Result<()> {
    let lab = started(lab(3))?;
    let there = format!("at {} (underlay): nothing comes back", address(&lab, 2));
    let said = named(&lab, 1, false, &[&there], || lab.partition(&[1], &[2]).unwrap())?;
    assert!(said.contains("probes    1 reached, 1 UNREACHABLE"), "{said}");
    says(&lab, 2, false, &["nothing comes back", "1 reached, 1 UNREACHABLE"])?;
    says(&lab, 3, true, &["probes    2 reached; round trip"])?;
    lab.heal()?;
    all_is_well(&lab)
}

#[test]
fn a_go_flannel_is_not_probed_and_never_down() -> Result<()> {
    let lab = lab(3).node_flanneld(2, go_flanneld()).no_daemons().start()?;
    for node in lab.nodes() {
        node.flanneld().start()?;
        node.flanneld().wait_ready()?;
    }
    let whole = ["the network is healthy\n", "probes    1 reached, 1 not probed"];
    says(&lab, 1, true, &whole)?;
    lab.node(2).flanneld().kill9();
    std::thread::sleep(Duration::from_secs(5));
    says(&lab, 1, true, &whole)?;
    assert_eq!(peer(&lab, 1, 2)["probe"]["verdict"], "not-probed");
    Ok(())
}

#[test]
fn of_two_families_the_one_that_is_cut_is_named() -> Result<()> {
    let lab = started(lab(2).ipv6(true))?;
    let rule = "meta nfproto ipv6 udp dport 8472";
    let parts = ["(tunnel): IPv6: ", "does not arrive there"];
    named(&lab, 1, false, &parts, || drop_packets(&lab, 2, "input", rule))?;
    drop_no_more(&lab, 2);
    all_is_well(&lab)
}

#[test]
fn a_node_that_the_peer_does_not_know_of_is_told_so() -> Result<()> {
    let lab = lab(3).no_daemons().start()?;
    for number in [1, 2] {
        lab.node(number).flanneld().start()?;
        lab.node(number).flanneld().wait_ready()?;
    }
    lab.partition_from_store(&[2])?;
    lab.node(3).flanneld().start()?;
    lab.node(3).flanneld().wait_ready()?;
    let there = format!("at {} (entries)", address(&lab, 2));
    says(&lab, 3, false, &[&there, "does not know this node's lease", "flannelctl status"])?;
    lab.heal()?;
    all_is_well(&lab)
}

#[test]
fn a_firewall_that_drops_probes_alone_is_named_and_no_peer_is_called_away() -> Result<()> {
    let lab = started(lab(2))?;
    let rule = "iifname flannel.1 udp dport 8475";
    let parts = ["(probe): ", "a firewall drops probes on UDP port 8475", "--dport 8475 -j ACCEPT"];
    named(&lab, 1, true, &parts, || drop_packets(&lab, 2, "input", rule))?;
    drop_no_more(&lab, 2);
    all_is_well(&lab)
}

#[test]
fn what_this_nodes_own_firewall_does_not_let_out_is_named_on_this_node() -> Result<()> {
    let lab = started(lab(2))?;
    let parts = [
        "(host): ",
        "packets to it do not leave this node: this node's own firewall does not let them out",
        "`flannelctl check`, on this node",
    ];
    let rule = "oifname flannel.1 udp dport 8475";
    named(&lab, 1, false, &parts, || drop_packets(&lab, 1, "output", rule))?;
    assert_eq!(peer(&lab, 1, 2)["probe"]["verdict"], "not-sent");
    drop_no_more(&lab, 1);
    all_is_well(&lab)
}

/// What a broken offload does is planted at its end: the peer gets nothing that has a checksum.
#[test]
fn a_broken_checksum_offload_is_found_and_switched_off() -> Result<()> {
    let lab = started(lab(2))?;
    // An entry more than before, and the kernel has it: it is read back.
    let entries = || {
        let (_, said) = flannelctl(&lab, 1, &["status", "-o", "json"]);
        let state: Value = serde_json::from_str(&said).unwrap();
        let entries = &state["networks"][0]["entries"];
        (entries["wanted"].as_u64().unwrap(), entries["missing"].as_u64().unwrap())
    };
    let (wanted, _) = entries();
    let rule = "iifname flannel.1 udp dport 8475 udp checksum != 0";
    let parts = ["(offload): ", "packets leave here with wrong checksums"];
    named(&lab, 1, false, &parts, || drop_packets(&lab, 2, "input", rule))?;
    lab.wait_until("the offload to be off", LIMIT, || entries() == (wanted + 1, 0))?;
    let (_, events) = flannelctl(&lab, 1, &["events"]);
    assert!(events.contains("the checksum offload of flannel.1 is switched off"), "{events}");
    drop_no_more(&lab, 2);
    all_is_well(&lab)
}

#[test]
fn nobody_is_probed_where_the_flag_says_so() -> Result<()> {
    let lab = lab(2).node_flag(2, "--peer-probe-port=0").start()?;
    says(&lab, 1, true, &["probes    0 reached, 1 not probed"])?;
    let (_, said) = status(&lab, 2);
    assert!(!said.contains("probes"), "{said}");
    assert!(peer(&lab, 2, 1)["probe"].is_null());
    let listening = lab.node(2).exec(&["ss", "-lunH", "sport = :8475"])?;
    assert_eq!(listening, "", "nobody listens");
    Ok(())
}

pub(crate) fn every_backend(builder: LabBuilder, rule: &str, name: &str) -> Result<()> {
    let lab = started(builder)?;
    named(&lab, 1, false, &[name, "UNREACHABLE"], || drop_packets(&lab, 2, "input", rule))?;
    drop_no_more(&lab, 2);
    all_is_well(&lab)
}

#[test]
fn the_tunnel_of_the_udp_backend_is_probed() -> Result<()> {
    every_backend(lab(2).backend("udp"), "udp dport 8285", "UDP port 8285 does not arrive")
}

#[test]
fn the_tunnel_of_wireguard_is_probed() -> Result<()> {
    let builder = lab(2).backend("wireguard").env("WIREGUARD_IMPLEMENTATION", "userspace");
    every_backend(builder, "udp dport 51820", "UDP port 51820 does not")
}

#[test]
fn where_there_is_no_tunnel_the_underlay_is_probed() -> Result<()> {
    let all = "ip protocol { udp, icmp }";
    every_backend(lab(2).backend("host-gw"), all, "(underlay): nothing comes back")
}
