//! The Go flannel in the lab: what a lab is for.

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::path::PathBuf;
use std::time::Duration;

use flannel_lab::{Lab, LabError, Result, Vandalism};
use serde_json::json;

fn go_flanneld() -> PathBuf {
    flannel_lab::find_go_flanneld().unwrap_or_else(|error| panic!("{error}"))
}

fn pods_reach_each_other(backend: &str) -> Result<()> {
    let lab = Lab::builder().nodes(2).backend(backend).flanneld(go_flanneld()).start()?;
    lab.pod_on_every_node()?;
    lab.matrix(Duration::from_secs(10))?.check()?;
    let leases = lab.leases()?;
    assert_eq!(leases.len(), 2, "{leases:?}");
    assert!(leases[0].1.contains(backend), "{leases:?}");
    Ok(())
}

#[test]
fn pods_reach_each_other_over_vxlan() -> Result<()> {
    pods_reach_each_other("vxlan")
}

#[test]
fn pods_reach_each_other_over_host_gw() -> Result<()> {
    pods_reach_each_other("host-gw")
}

#[test]
fn pods_of_a_dual_stack_network_reach_each_other_in_both_families() -> Result<()> {
    let lab = Lab::builder().nodes(2).ipv6(true).flanneld(go_flanneld()).start()?;
    let pods = lab.pod_on_every_node()?;
    assert!(pods.iter().all(|pod| pod.v4().is_some() && pod.v6().is_some()));
    lab.matrix(Duration::from_secs(10))?.check()
}

#[test]
fn direct_routing_is_used_on_the_own_segment_only() -> Result<()> {
    let lab = Lab::builder()
        .nodes(3)
        .segments(2)
        .segment_of(2, 0)
        .backend_json(json!({"Type": "vxlan", "DirectRouting": true}))
        .flanneld(go_flanneld())
        .start()?;
    lab.pod_on_every_node()?;
    lab.matrix(Duration::from_secs(10))?.check()?;
    let route_to = |node: u16| -> Result<String> {
        let subnet = lab.node(node).subnet_env()?.subnet.expect("a subnet").trunc();
        lab.node(1).ip(&format!("route show {subnet}"))
    };
    assert!(route_to(2)?.contains("via 192.168.100.2 dev eth0"), "{}", route_to(2)?);
    assert!(route_to(3)?.contains("dev flannel.1"), "{}", route_to(3)?);
    Ok(())
}

#[test]
fn flags_and_variables_reach_the_daemons_they_are_for() -> Result<()> {
    let lab = Lab::builder()
        .nodes(2)
        .flanneld(go_flanneld())
        .node_env(1, "FLANNELD_IP_MASQ", "true")
        .node_flag(2, "--subnet-file=/run/flannel/subnet.env")
        .start()?;
    assert_eq!(lab.node(1).subnet_env()?.file.ip_masq, Some(true));
    assert_eq!(lab.node(2).subnet_env()?.file.ip_masq, Some(false));
    Ok(())
}

#[test]
fn traffic_survives_a_killed_and_restarted_daemon() -> Result<()> {
    let lab = Lab::builder().nodes(2).flanneld(go_flanneld()).start()?;
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    lab.wait_until("the pods to reach each other", Duration::from_secs(5), || {
        lab.ping(&one, &two)
    })?;
    let before = lab.node(2).subnet_env()?;
    let stream = lab.stream(&one, &two, 500)?;
    lab.node(2).flanneld().kill9();
    assert!(!lab.node(2).flanneld().is_running());
    lab.node(2).flanneld().restart()?;
    lab.node(2).flanneld().pause()?;
    lab.node(2).flanneld().resume()?;
    let report = stream.stop();
    assert!(report.sent > 50, "{report:?}");
    assert_eq!(report.lost, 0, "{report:?}");
    assert_eq!(lab.node(2).subnet_env()?, before);
    assert!(lab.node(2).flanneld().log().contains("Running backend"));
    Ok(())
}

#[test]
fn a_daemon_that_cannot_start_shows_the_end_of_its_log() -> Result<()> {
    let lab = Lab::builder().nodes(1).no_daemons().flanneld(go_flanneld()).start()?;
    let daemon = lab.node(1).flanneld();
    daemon.set_flags(vec!["--iface=nonsense0".into()]);
    daemon.add_flag(format!("--etcd-endpoints={}", lab.etcd()?.endpoints()));
    let error = lab.start_daemons().unwrap_err().to_string();
    assert!(error.contains("node1") && error.contains("nonsense0"), "{error}");
    Ok(())
}

#[test]
fn every_deed_that_can_be_done_to_a_node_is_possible_and_seen() -> Result<()> {
    let lab = Lab::builder().nodes(2).flanneld(go_flanneld()).start()?;
    let node = lab.node(1);
    lab.wait_until("the peer's route", Duration::from_secs(5), || {
        let routes = node.ip("route show dev flannel.1")?;
        if routes.is_empty() { Err(LabError::Spec("none".into())) } else { Ok(()) }
    })?;
    // Nobody shall repair what is done.
    node.flanneld().kill9();
    let deeds = node.possible_deeds()?;
    let kinds: BTreeSet<_> = deeds.iter().map(|deed| format!("{:?}", discriminant(deed))).collect();
    // Route, neighbour, FDB entry, address; MAC, MTU, deletion, down, held down, bounce, another name, a
    // master and no ARP of the device.
    assert_eq!(kinds.len(), 13, "{deeds:?}");
    let mut rest: Vec<_> =
        deeds.into_iter().filter(|deed| !matches!(deed, Vandalism::LinkDelete(_))).collect();
    // What is done to the device takes entries along, so that comes last; after all others what leaves
    // no device of that name.
    rest.sort_by_key(|deed| match deed {
        Vandalism::SetMac { .. } | Vandalism::SetMtu { .. } => 1,
        Vandalism::Enslave(_) | Vandalism::ArpOff(_) => 2,
        Vandalism::LinkBounce(_) => 3,
        Vandalism::LinkDown(_) | Vandalism::ProtoDown(_) => 4,
        Vandalism::Rename { .. } => 5,
        _ => 0,
    });
    for deed in rest {
        let state = || -> Result<String> {
            if !node.ip("-o link")?.contains("flannel.1") {
                return Ok("there is no such device".to_owned());
            }
            Ok([
                node.ip("-d addr show dev flannel.1")?,
                node.ip("route show dev flannel.1")?,
                node.ip("neigh show dev flannel.1")?,
                node.exec(&["bridge", "fdb", "show", "dev", "flannel.1"])?,
            ]
            .concat())
        };
        let before = state()?;
        node.vandalize(&deed)?;
        assert_ne!(state()?, before, "{deed} changed nothing");
    }
    node.vandalize(&Vandalism::LinkDelete("renamed0".into()))?;
    assert!(node.ip("link show dev renamed0").is_err());
    Ok(())
}

#[test]
fn a_random_deed_is_told() -> Result<()> {
    let lab = Lab::builder().nodes(2).flanneld(go_flanneld()).start()?;
    let deed = lab.node(2).vandalize_at_random(&mut fastrand::Rng::with_seed(1))?;
    assert!(deed.to_string().contains("flannel.1") || deed.to_string().contains("route"), "{deed}");
    Ok(())
}
