//! Packets of one family in those of the other: networks over an underlay that lacks one of their families.

use flannel_lab::{Families, LabBuilder, PingOptions, Result};
use serde_json::json;

use crate::support::{Kernel, LIMIT, connected_pods, lab, probe, reach_each_other};

/// Every network over every underlay that lacks a family of it, and what the log then says.
const CROSSED: [(Families, Families, &str); 4] = [
    (Families::Dual, Families::Ipv4, "IPv6 of pods travels over IPv4"),
    (Families::Ipv6, Families::Ipv4, "IPv6 of pods travels over IPv4"),
    (Families::Dual, Families::Ipv6, "IPv4 of pods travels over IPv6"),
    (Families::Ipv4, Families::Ipv6, "IPv4 of pods travels over IPv6"),
];

fn crossed(builder: LabBuilder, overlay: Families, underlay: Families, word: &str) -> Result<()> {
    let lab = builder.underlay(underlay).overlay(overlay).no_daemons().start()?;
    if underlay == Families::Ipv4 {
        for node in lab.nodes() {
            // Not even addresses of the link.
            node.ip("-6 addr flush dev eth0")?;
        }
    }
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    let log = lab.node(1).flanneld().log();
    assert!(log.contains(word), "{overlay:?} over {underlay:?}: {log}");
    // This node's own packets to pods come from the pod network: what is elsewhere may not lead back.
    let own = lab.node(1).subnet_env()?;
    let (v4, v6) = (two.v4().zip(own.subnet), two.v6().zip(own.subnet6));
    let v4 = v4.map(|(pod, net)| (pod.to_string(), net.network().to_string()));
    let v6 = v6.map(|(pod, net)| (pod.to_string(), net.network().to_string()));
    for (pod, source) in v4.into_iter().chain(v6) {
        let route = lab.node(1).ip(&format!("route get {pod}"))?;
        assert!(
            route.contains(&format!("src {source} ")),
            "{overlay:?} over {underlay:?}: {route}"
        );
    }
    lab.node(1).flanneld().restart()?;
    reach_each_other(&lab, &one, &two)
}

fn every_pairing(builder: impl Fn() -> LabBuilder) -> Result<()> {
    for (overlay, underlay, word) in CROSSED {
        crossed(builder(), overlay, underlay, word)?;
    }
    Ok(())
}

fn wireguard(mode: &str) -> LabBuilder {
    lab(2).backend_json(json!({"Type": "wireguard", "Mode": mode}))
}

fn one_node_without_ipv6(builder: LabBuilder) -> Result<()> {
    let lab = builder.ipv6(true).no_daemons().start()?;
    lab.node(2).ip("-6 addr flush dev eth0")?;
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn either_family_of_pods_travels_over_the_other_with_vxlan() -> Result<()> {
    every_pairing(|| lab(2))
}

#[test]
fn either_family_of_pods_travels_over_the_other_with_a_device_of_wireguard_for_each() -> Result<()>
{
    every_pairing(|| wireguard("separate"))
}

#[test]
fn either_family_of_pods_travels_over_the_other_with_one_device_of_wireguard() -> Result<()> {
    every_pairing(|| wireguard("auto"))?;
    let [(overlay, underlay, word), .., (other_overlay, other_underlay, other_word)] = CROSSED;
    crossed(wireguard("ipv4"), overlay, underlay, word)?;
    crossed(wireguard("ipv6"), other_overlay, other_underlay, other_word)
}

#[test]
#[ignore = "needs a kernel with WireGuard: scripts/vm has one"]
fn either_family_of_pods_travels_over_the_other_with_the_kernels_wireguard() -> Result<()> {
    for (overlay, underlay, word) in [CROSSED[0], CROSSED[3]] {
        crossed(wireguard("separate"), overlay, underlay, word)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs a kernel with ipip and sit: scripts/vm has one"]
fn ipv6_of_pods_travels_over_ipv4_with_ipip_and_what_is_removed_or_altered_comes_back() -> Result<()>
{
    let [dual, v6, ..] = CROSSED;
    crossed(lab(2).backend("ipip"), v6.0, v6.1, "")?;
    let lab = lab(2).backend("ipip").overlay(dual.0).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    for deed in [
        "ip link del flannel.sit",
        "ip link set flannel.sit mtu 1300",
        "ip link set flannel.sit type sit local 192.168.100.77 remote any",
        "ip -6 route flush dev flannel.sit",
        "ip -6 addr flush dev flannel.sit",
    ] {
        node.exec(&deed.split_whitespace().collect::<Vec<_>>())?;
        reach_each_other(&lab, &one, &two)?;
    }
    let kernel = &mut Kernel::of(node)?;
    assert_eq!(node.subnet_env()?.mtu, 1480);
    lab.put_config(
        r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"host-gw"}}"#,
    )?;
    for device in ["flannel.ipip", "flannel.sit"] {
        lab.wait_until("the devices to go", LIMIT, || kernel.device(device).is_none())?;
    }
    reach_each_other(&lab, &one, &two)
}

#[test]
#[ignore = "needs a kernel with ipip and sit: scripts/vm has one"]
fn a_node_without_ipv6_is_reached_by_those_that_have_it_with_ipip() -> Result<()> {
    one_node_without_ipv6(lab(2).backend("ipip"))
}

#[test]
fn a_node_without_ipv6_is_reached_by_those_that_have_it_with_vxlan() -> Result<()> {
    one_node_without_ipv6(lab(2))
}

#[test]
fn a_node_without_ipv6_is_reached_by_those_that_have_it_with_wireguard() -> Result<()> {
    for mode in ["separate", "auto"] {
        one_node_without_ipv6(wireguard(mode))?;
    }
    Ok(())
}

#[test]
fn udp_carries_ipv4_where_cards_have_no_ipv6_address_but_the_links_own() -> Result<()> {
    let lab = lab(2).backend("udp").underlay(Families::Ipv4).overlay(Families::Dual).start()?;
    let pods = lab.pod_on_every_node()?;
    let v4 = pods[1].v4().expect("an address").into();
    lab.wait_until("pods to reach each other over IPv4", LIMIT, || {
        lab.ping_address(&pods[0], v4, PingOptions::default())
    })?;
    let log = lab.node(1).flanneld().log();
    assert!(log.contains("eth0 has no IPv6 address") && log.contains("IPv4 is carried"), "{log}");
    Ok(())
}

#[test]
fn a_backend_that_needs_the_networks_own_family_names_those_that_do_not() -> Result<()> {
    for (kind, overlay, underlay, words) in [
        (
            "host-gw",
            Families::Ipv4,
            Families::Ipv6,
            "which need only IPv6, while host-gw needs more",
        ),
        ("ipip", Families::Ipv6, Families::Ipv6, "which need only IPv6, while ipip needs more"),
        ("udp", Families::Dual, Families::Ipv4, "which need only IPv4, while udp needs more"),
    ] {
        let lab = lab(1).backend(kind).underlay(underlay).overlay(overlay).no_daemons().start()?;
        if !underlay.v6() {
            lab.node(1).ip("-6 addr flush dev eth0")?;
        }
        lab.node(1).flanneld().start()?;
        lab.wait_until("the reason", LIMIT, || lab.node(1).flanneld().log().contains(words))?;
        let ready = probe(&lab, 1, "/readyz")?;
        assert!(!matches!(ready, Ok((200, _))), "{ready:?}");
    }
    Ok(())
}
