//! IPv6 of pods over an underlay that has none.

use flannel_lab::{Families, LabBuilder, Result};
use serde_json::json;

use crate::support::{connected_pods, lab, reach_each_other};

fn over_ipv4_alone(builder: LabBuilder) -> Result<()> {
    let lab = builder.underlay(Families::Ipv4).overlay(Families::Dual).no_daemons().start()?;
    for node in lab.nodes() {
        // Not even addresses of the link.
        node.ip("-6 addr flush dev eth0")?;
    }
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    reach_each_other(&lab, &one, &two)?;
    let log = lab.node(1).flanneld().log();
    assert!(log.contains("IPv6 of pods travels over IPv4"), "{log}");
    lab.node(1).flanneld().restart()?;
    reach_each_other(&lab, &one, &two)
}

fn one_node_without_ipv6(builder: LabBuilder) -> Result<()> {
    let lab = builder.ipv6(true).no_daemons().start()?;
    lab.node(2).ip("-6 addr flush dev eth0")?;
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn ipv6_of_pods_travels_over_ipv4_with_vxlan() -> Result<()> {
    over_ipv4_alone(lab(2))
}

#[test]
fn a_node_without_ipv6_is_reached_by_those_that_have_it_with_vxlan() -> Result<()> {
    one_node_without_ipv6(lab(2))
}

#[test]
fn ipv6_of_pods_travels_over_ipv4_with_wireguard() -> Result<()> {
    for mode in ["auto", "ipv4"] {
        over_ipv4_alone(lab(2).backend_json(json!({"Type": "wireguard", "Mode": mode})))?;
    }
    Ok(())
}

#[test]
fn a_node_without_ipv6_is_reached_by_those_that_have_it_with_wireguard() -> Result<()> {
    one_node_without_ipv6(lab(2).backend_json(json!({"Type": "wireguard", "Mode": "auto"})))
}
