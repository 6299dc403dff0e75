//! Beside the Go flannel, and in its place: one network, two implementations, and nodes that change
//! from one to the other.

use std::time::Duration;

use flannel_lab::{Lab, LabBuilder, Result, SUBNET_ENV};
use serde_json::json;

use crate::support::{
    Kernel, LIMIT, both_ways, connected_pods, flanneld, go_flanneld, lab, measured,
};

const TRANSFER: u64 = 4 << 20;

/// Starts node after node: the Go flannel does not see that another took the same subnet at the same
/// time, and gives up or keeps it.
fn one_by_one(builder: LabBuilder) -> Result<Lab> {
    let lab = builder.no_daemons().start()?;
    for node in lab.nodes() {
        node.flanneld().start()?;
        node.flanneld().wait_ready()?;
    }
    Ok(lab)
}

/// Nodes 1 and 3 are ours, node 2 is Go's.
pub(crate) fn talk(builder: LabBuilder) -> Result<()> {
    let lab = one_by_one(builder.node_flanneld(2, go_flanneld()))?;
    let pods = lab.pod_on_every_node()?;
    let all_reach_all = || {
        lab.wait_until("all pods to reach each other", LIMIT, || {
            lab.matrix(Duration::from_secs(1))?.check()
        })
    };
    all_reach_all()?;
    for (from, to) in [(0, 1), (1, 0)] {
        lab.tcp_transfer(&pods[from], &pods[to], TRANSFER)?;
    }

    for (who, node) in [("ours", 1), ("Go's", 2)] {
        let daemon = lab.node(node).flanneld();
        let ways: [(&str, &dyn Fn() -> Result<()>); 2] = [
            ("stopped", &|| daemon.stop()),
            ("killed", &|| {
                daemon.kill9();
                Ok(())
            }),
        ];
        for (name, end) in ways {
            let traffic = both_ways(&lab, &pods[0], &pods[1])?;
            end()?;
            daemon.restart()?;
            traffic.flow(&lab)?;
            let reports = traffic.stop();
            measured(format_args!("{who} {name} and started: {reports}"));
            reports.nothing_is_lost();
        }
    }
    all_reach_all()?;
    for (from, to) in [(0, 1), (1, 0)] {
        lab.tcp_transfer(&pods[from], &pods[to], TRANSFER)?;
    }
    Ok(())
}

#[test]
fn pods_of_both_talk_over_vxlan() -> Result<()> {
    talk(lab(3))
}

#[test]
fn pods_of_both_talk_over_a_dual_stack_of_vxlan() -> Result<()> {
    talk(lab(3).ipv6(true))
}

#[test]
fn pods_of_both_talk_over_host_gw() -> Result<()> {
    talk(lab(3).backend("host-gw"))
}

#[test]
fn pods_of_both_talk_over_a_dual_stack_of_host_gw() -> Result<()> {
    talk(lab(3).backend("host-gw").ipv6(true))
}

#[test]
fn pods_of_both_talk_over_commands() -> Result<()> {
    talk(lab(3).backend_json(json!({
        "Type": "extension",
        "SubnetAddCommand": "ip route replace $SUBNET via $PUBLIC_IP",
    })))
}

#[test]
fn pods_of_both_talk_over_direct_routes_and_the_tunnel() -> Result<()> {
    // Nodes 1 and 2 share a segment, node 3 is behind the router.
    let direct = json!({"Type": "vxlan", "DirectRouting": true});
    talk(lab(3).segments(2).segment_of(2, 0).backend_json(direct))
}

/// The leases, byte for byte, since other tools read them too; but without where ours answers probes and
/// which machine it is, which the Go flannel passes over.
pub(crate) fn leases_for_both(lab: &Lab) -> Result<Vec<(String, String)>> {
    let without = |value: String| {
        let value = value.replace(",\"ProbePort\":8475", "");
        match value.split_once(",\"Machine\":\"") {
            Some((rest, _)) => format!("{rest}}}"),
            None => value,
        }
    };
    Ok(lab.leases()?.into_iter().map(|(key, value)| (key, without(value))).collect())
}

/// What must be the same whoever runs the node.
fn identity(lab: &Lab, kernel: &mut Kernel, devices: &[&str]) -> Result<String> {
    let devices: Vec<String> = devices
        .iter()
        .map(|name| {
            let device = kernel.device(name).unwrap();
            format!("{name}: index {} address {}\n", device.index, device.mac)
        })
        .collect();
    let leases = leases_for_both(lab)?.into_iter().map(|(key, value)| format!("{key} {value}\n"));
    Ok(devices.concat() + &leases.collect::<String>())
}

/// Moves node 1 from Go to ours and back under traffic with a node of Go.
pub(crate) fn move_there_and_back(builder: LabBuilder, devices: &[&str]) -> Result<()> {
    let lab = one_by_one(builder.flanneld(go_flanneld()))?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;
    let before = identity(&lab, &mut kernel, devices)?;
    let go_env = node.read_file(SUBNET_ENV)?;
    let dual = lab.spec().overlay == flannel_lab::Families::Dual;

    let traffic = both_ways(&lab, &one, &two)?;
    node.flanneld().restart_with(flanneld())?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(format_args!("from Go to ours: {reports}"));
    reports.nothing_is_lost();
    assert_eq!(identity(&lab, &mut kernel, devices)?, before);
    let env = node.read_file(SUBNET_ENV)?;
    if dual && !devices.is_empty() {
        // Pods have one MTU for both families, and the IPv6 tunnel takes 20 bytes more.
        assert_eq!(env, go_env.replace("FLANNEL_MTU=1450", "FLANNEL_MTU=1430"));
    } else {
        assert_eq!(env, go_env);
    }
    let unmarked: Vec<_> =
        kernel.held().into_iter().filter(|line| line.contains("proto")).collect();
    assert!(unmarked.is_empty(), "routes of Go are taken over: {unmarked:?}");

    let traffic = both_ways(&lab, &one, &two)?;
    node.flanneld().restart_with(&go_flanneld())?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(format_args!("from ours back to Go: {reports}"));
    assert_eq!(identity(&lab, &mut kernel, devices)?, before);
    assert_eq!(node.read_file(SUBNET_ENV)?, go_env);

    // And once more, with what a change of mind has left in the kernel.
    let traffic = both_ways(&lab, &one, &two)?;
    node.flanneld().restart_with(flanneld())?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(format_args!("from Go to ours again: {reports}"));
    reports.nothing_is_lost();
    assert_eq!(identity(&lab, &mut kernel, devices)?, before);
    Ok(())
}

#[test]
fn a_node_moves_from_go_to_ours_and_back_with_vxlan() -> Result<()> {
    move_there_and_back(lab(2), &["flannel.1"])
}

#[test]
fn a_node_moves_from_go_to_ours_and_back_with_a_dual_stack_of_vxlan() -> Result<()> {
    move_there_and_back(lab(2).ipv6(true), &["flannel.1", "flannel-v6.1"])
}

#[test]
fn a_node_moves_from_go_to_ours_and_back_with_host_gw() -> Result<()> {
    move_there_and_back(lab(2).backend("host-gw"), &[])
}

#[test]
fn a_node_moves_from_go_to_ours_and_back_with_a_dual_stack_of_host_gw() -> Result<()> {
    move_there_and_back(lab(2).backend("host-gw").ipv6(true), &[])
}

/// Peers leave while the Go flannel of node 1 is down; ours takes over and cleans up after it.
pub(crate) fn leavers_leave_nothing(builder: LabBuilder) -> Result<()> {
    let lab = one_by_one(builder.flanneld(go_flanneld()))?;
    lab.pod_on_every_node()?;
    lab.matrix(Duration::from_secs(10))?.check()?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;
    let gone = lab.node(3).subnet_env()?.subnet.unwrap().trunc();
    let of_the_gone = |kernel: &mut Kernel| -> Vec<String> {
        let (route, vtep) = (format!("route {gone}"), format!("neighbour {}", gone.network()));
        let of_it = |line: &String| {
            line.starts_with(&route)
                || line.starts_with(&vtep)
                || line.contains("fdb") && line.contains("dst 192.168.100.3 ")
        };
        kernel.held().into_iter().filter(of_it).collect()
    };
    assert!(!of_the_gone(&mut kernel).is_empty(), "{:?}", kernel.held());

    node.flanneld().stop()?;
    lab.node(3).flanneld().stop()?;
    let key = format!("{}/subnets/{}", lab.spec().etcd_prefix, gone.to_string().replace('/', "-"));
    assert!(lab.etcd()?.delete(&key)?, "no {key}");
    node.flanneld().restart_with(flanneld())?;
    assert_eq!(of_the_gone(&mut kernel), [""; 0]);
    // Who stayed is still reached.
    let pods = lab.pods();
    lab.ping(&pods[0], &pods[1])?;
    Ok(())
}

#[test]
fn flannel_2554_what_go_left_of_peers_that_left_is_removed_with_vxlan() -> Result<()> {
    leavers_leave_nothing(lab(3))
}

#[test]
fn flannel_2554_what_go_left_of_peers_that_left_is_removed_with_host_gw() -> Result<()> {
    leavers_leave_nothing(lab(3).backend("host-gw"))
}

#[test]
fn flannel_2554_what_go_left_of_peers_that_left_is_removed_with_direct_routing() -> Result<()> {
    leavers_leave_nothing(lab(3).backend_json(json!({"Type": "vxlan", "DirectRouting": true})))
}
