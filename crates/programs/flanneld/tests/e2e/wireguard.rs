//! wireguard, in a kernel that has it: `scripts/vm` runs these.

use std::time::Duration;

use flannel_lab::{Lab, LabBuilder, LabError, Pod, Result, Vandalism};
use serde_json::{Value, json};

use crate::mixed::leases_for_both;
use crate::restart::nothing_is_lost;
use crate::support::{
    Capture, Kernel, LIMIT, both_ways, connected_pods, flanneld, go_flanneld, lab, measured,
    own_key, reach_each_other,
};
use crate::vandalism::every_deed;
use crate::wireguard_userspace::{behind_one_address, rotated_without_a_loss};

const PSK: &str = "3Kx1+1vLQf4tq1mMdcqkLMgMeZAtzuWB3Pb5CFL0wXs=";
/// Where every node of the lab has its own.
const KEY_FILE: &str = "/run/flannel/wgkey";

fn dual() -> LabBuilder {
    lab(2).backend("wireguard").ipv6(true)
}

fn config(backend: Value) -> String {
    json!({"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:244::/48", "Backend": backend})
        .to_string()
}

/// The public keys of a node's peers on a device.
fn peers(lab: &Lab, node: u16, device: &str) -> Vec<String> {
    let text = lab.node(node).exec(&["wg", "show", device, "peers"]).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn defect_45_restarts_keep_the_devices_and_their_sessions_and_lose_nothing() -> Result<()> {
    nothing_is_lost(dual(), &["flannel-wg", "flannel-wg-v6"])
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn everything_removed_or_altered_comes_back_with_wireguard() -> Result<()> {
    every_deed(dual(), |lab| {
        let peer = &peers(lab, 1, "flannel-wg")[0];
        let other_key = format!("{}AQE=\n", "AQEB".repeat(10));
        lab.node(1).write_file("/run/other-key", &other_key).unwrap();
        let stranger = PSK;
        let v4 = lab.node(2).subnet_env().unwrap().subnet.unwrap().trunc();
        vec![
            format!("wg set flannel-wg peer {peer} remove"),
            format!("wg set flannel-wg-v6 peer {peer} remove"),
            format!("wg set flannel-wg peer {peer} allowed-ips 10.99.0.0/16"),
            format!("wg set flannel-wg peer {peer} persistent-keepalive 7"),
            format!("wg set flannel-wg peer {stranger} allowed-ips 10.244.199.0/24"),
            "wg set flannel-wg private-key /run/other-key".to_owned(),
            "wg set flannel-wg listen-port 1234".to_owned(),
            "wg set flannel-wg-v6 fwmark 7".to_owned(),
            format!("ip route replace {v4} via 192.168.100.254 dev eth0"),
            "ip route del blackhole 10.244.0.0/16".to_owned(),
            "ip route add 10.244.250.0/24 dev flannel-wg".to_owned(),
            "ip route flush dev flannel-wg".to_owned(),
            "ip -6 route flush dev flannel-wg-v6".to_owned(),
            "ip addr flush dev flannel-wg".to_owned(),
        ]
    })
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn whoever_listens_on_the_underlay_can_read_nothing_at_no_moment() -> Result<()> {
    let backend = json!({"Type": "wireguard", "PSK": PSK, "PersistentKeepaliveInterval": 20});
    let lab = dual().backend_json(backend).start()?;
    let (one, two) = connected_pods(&lab)?;
    let (node, mut kernel) = (lab.node(1), Kernel::of(lab.node(1))?);
    let held = kernel.held();
    assert!(held.iter().any(|line| line.contains("psk true") && line.contains("keepalive 20")));
    let capture = Capture::start(&lab, &one, &two)?;
    let traffic = both_ways(&lab, &one, &two)?;
    node.flanneld().restart()?;
    node.flanneld().kill9();
    node.flanneld().restart()?;
    for device in ["flannel-wg", "flannel-wg-v6"] {
        node.vandalize(&Vandalism::LinkDelete(device.into()))?;
        lab.wait_until("a repair", LIMIT, || kernel.held() == held)?;
    }
    traffic.flow(&lab)?;
    // While nobody is there to repair it.
    node.flanneld().kill9();
    node.ip("link del flannel-wg")?;
    std::thread::sleep(Duration::from_secs(1));
    node.flanneld().restart()?;
    traffic.flow(&lab)?;
    measured(traffic.stop());
    let (frames, readable) = capture.stop();
    measured(format_args!("{readable} of {frames} frames readable"));
    assert!(frames > 100 && readable == 0, "{readable} of {frames}");

    // What is looked for would be found.
    lab.put_config(&config(json!({"Type": "vxlan"})))?;
    lab.wait_until("wireguard to go", LIMIT, || kernel.device("flannel-wg").is_none())?;
    let capture = Capture::start(&lab, &one, &two)?;
    reach_each_other(&lab, &one, &two)?;
    assert!(capture.stop().1 > 0);

    let log = lab.node(1).flanneld().log() + &lab.node(2).flanneld().log();
    let key = lab.node(1).read_file(KEY_FILE)?;
    assert!(!log.contains(PSK) && !log.contains(key.trim()), "a secret is in the log");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn one_device_carries_both_families_in_every_mode_but_separate() -> Result<()> {
    let lab = dual().backend_json(json!({"Type": "wireguard", "Mode": "auto"})).start()?;
    let (one, two) = connected_pods(&lab)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    assert!(kernel.device("flannel-wg-v6").is_none());
    let endpoint = |kernel: &mut Kernel, wanted: &str| {
        let held = kernel.held();
        let line = held.iter().find(|line| line.contains("wireguard peer")).cloned();
        line.filter(|line| line.contains(wanted)).ok_or(format!("{held:?}"))
    };
    for (mode, wanted) in [("ipv6", "[fd00:100::2]:51820"), ("ipv4", "192.168.100.2:51820")] {
        lab.put_config(&config(json!({"Type": "wireguard", "Mode": mode})))?;
        lab.wait_until("the other way", LIMIT, || endpoint(&mut kernel, wanted))?;
        reach_each_other(&lab, &one, &two)?;
    }
    // A device for each, and back.
    lab.put_config(&config(json!({"Type": "wireguard"})))?;
    lab.wait_until("two", LIMIT, || kernel.device("flannel-wg-v6").is_some())?;
    reach_each_other(&lab, &one, &two)?;
    lab.put_config(&config(json!({"Type": "wireguard", "Mode": "auto"})))?;
    lab.wait_until("one", LIMIT, || kernel.device("flannel-wg-v6").is_none())?;
    reach_each_other(&lab, &one, &two)
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn defect_42_a_single_device_in_a_network_of_one_family_takes_nothing_else() -> Result<()> {
    let lab = lab(2).backend_json(json!({"Type": "wireguard", "Mode": "auto"})).start()?;
    connected_pods(&lab)?;
    let routes = lab.node(1).ip("route show dev flannel-wg")?
        + &lab.node(1).ip("-6 route show dev flannel-wg")?;
    assert_eq!(routes.lines().count(), 1, "{routes}");
    assert!(routes.starts_with("10.244."), "{routes}");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn defect_46_a_peer_with_a_new_key_leaves_nothing_of_the_old_one() -> Result<()> {
    let lab = dual().start()?;
    let (one, two) = connected_pods(&lab)?;
    let old = peers(&lab, 1, "flannel-wg");
    lab.node(2).flanneld().stop()?;
    lab.node(2).exec(&["rm", KEY_FILE])?;
    lab.node(2).flanneld().restart()?;
    for device in ["flannel-wg", "flannel-wg-v6"] {
        lab.wait_until("the new key alone", LIMIT, || match peers(&lab, 1, device).as_slice() {
            [new] if *new != old[0] => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
    }
    reach_each_other(&lab, &one, &two)?;
    let mode = lab.node(2).exec(&["stat", "-c", "%a", KEY_FILE])?;
    assert_eq!(mode.trim(), "600");

    let node = lab.node(1);
    node.flanneld().stop()?;
    let flannelctl = flanneld().with_file_name("flannelctl");
    node.exec(&[flannelctl.to_str().unwrap(), "cleanup", "--yes"])?;
    assert!(Kernel::of(node)?.held().is_empty());
    assert!(node.read_file(KEY_FILE).is_err());
    Ok(())
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn pods_of_both_talk_over_wireguard_and_a_killed_go_flannel_is_followed_without_a_loss()
-> Result<()> {
    let lab = dual().flanneld(go_flanneld()).no_daemons().start()?;
    for node in lab.nodes() {
        node.flanneld().start()?;
        node.flanneld().wait_ready()?;
    }
    let (one, two) = connected_pods(&lab)?;
    let (node, mut kernel) = (lab.node(1), Kernel::of(lab.node(1))?);
    let devices = ["flannel-wg", "flannel-wg-v6"];
    let indices = |kernel: &mut Kernel| devices.map(|name| kernel.device(name).unwrap().index);
    let (before, leases) = (indices(&mut kernel), leases_for_both(&lab)?);

    let traffic = both_ways(&lab, &one, &two)?;
    node.flanneld().kill9();
    node.flanneld().restart_with(flanneld())?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(format_args!("from a killed Go to ours: {reports}"));
    reports.nothing_is_lost();
    assert_eq!((indices(&mut kernel), leases_for_both(&lab)?), (before, leases.clone()));

    // Go's own end takes the device along, for which ours has no remedy; but it comes back.
    for (who, number) in [("ours", 1), ("Go's", 2)] {
        lab.node(number).flanneld().restart()?;
        reach_each_other(&lab, &one, &two)?;
        measured(format_args!("{who} restarted"));
    }
    node.flanneld().restart_with(&go_flanneld())?;
    reach_each_other(&lab, &one, &two)?;
    node.flanneld().stop()?;
    node.flanneld().restart_with(flanneld())?;
    reach_each_other(&lab, &one, &two)?;
    assert_eq!(leases_for_both(&lab)?, leases);
    Ok(())
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn a_rotated_key_loses_no_packet_and_leaves_nothing_of_the_old_one() -> Result<()> {
    let lab = dual().start()?;
    let (one, two) = connected_pods(&lab)?;
    let before = peers(&lab, 2, "flannel-wg");
    rotated_without_a_loss(&lab, &one, &two)?;
    for device in ["flannel-wg", "flannel-wg-v6"] {
        let now = peers(&lab, 2, device);
        assert!(now.len() == 1 && now != before, "{device}: {before:?}, then {now:?}");
    }
    reach_each_other(&lab, &one, &two)
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn a_go_peer_follows_a_rotated_key_like_any_other() -> Result<()> {
    let lab = dual().node_flanneld(2, go_flanneld()).start()?;
    let (one, two) = connected_pods(&lab)?;
    let flannelctl = flanneld().with_file_name("flannelctl");
    lab.node(1).exec(&[flannelctl.to_str().unwrap(), "key", "rotate"])?;
    reach_each_other(&lab, &one, &two)
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn user_space_and_kernel_speak_the_same_wireguard() -> Result<()> {
    let backend = json!({"Type": "wireguard", "PSK": PSK});
    let lab = dual()
        .backend_json(backend)
        .node_env(2, "WIREGUARD_IMPLEMENTATION", "userspace")
        .start()?;
    let (one, two) = connected_pods(&lab)?;
    lab.tcp_transfer(&one, &two, 20 << 20)?;
    lab.tcp_transfer(&two, &one, 20 << 20)?;
    let (kernel, user) = (lab.node(1).flanneld().log(), lab.node(2).flanneld().log());
    assert!(kernel.contains("WireGuard runs in the kernel"), "{kernel}");
    assert!(user.contains("WireGuard runs in user space"), "{user}");
    rotated_without_a_loss(&lab, &one, &two)?;
    // From one to the other, with the same key, and back.
    let node = lab.node(2);
    for implementation in ["kernel", "userspace"] {
        node.flanneld().set_env("WIREGUARD_IMPLEMENTATION", implementation);
        node.flanneld().restart()?;
        reach_each_other(&lab, &one, &two)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn two_nodes_behind_one_public_address_are_reached_by_kernels_too() -> Result<()> {
    behind_one_address(lab(3).backend("wireguard"))
}

/// Daemons that are away while the config is written change one after the other, each when it is started.
fn node_by_node(lab: &Lab, pods: &[Pod], from: &str, to: &str) -> Result<()> {
    let device = |kind: &str| if kind == "vxlan" { "flannel.1" } else { "flannel-wg" };
    for node in lab.nodes() {
        node.flanneld().stop()?;
    }
    lab.put_config(&config(json!({"Type": to})))?;
    // Pods go on over what the daemons have left in place.
    reach_each_other(lab, &pods[0], &pods[2])?;
    let words = format!("it uses the backend '{from}', we use '{to}'");
    for (number, changed) in (1..=3).zip(1..) {
        let node = lab.node(number);
        node.flanneld().start()?;
        node.flanneld().wait_ready()?;
        // It begins with the network that works, and changes from there.
        lab.wait_until(&format!("{to} on node {number}"), LIMIT, || {
            let kernel = &mut Kernel::of(node)?;
            let has = |kernel: &mut Kernel, kind| kernel.device(device(kind)).is_some();
            match (has(kernel, from), has(kernel, to)) {
                (false, true) => Ok(()),
                other => Err(LabError::Spec(format!("{from} and {to}: {other:?}"))),
            }
        })?;
        if changed < 3 {
            lab.wait_until(&words, LIMIT, || node.flanneld().log().contains(&words))?;
        }
        // Those that have changed reach each other, and so do those that have not.
        for (one, two) in [(0, 1), (1, 2), (0, 2)] {
            if (one < changed) == (two < changed) {
                reach_each_other(lab, &pods[one], &pods[two])?;
            }
        }
    }
    let same = "Every peer uses the same backend as this node now";
    lab.wait_until("the first to say that all is the same", LIMIT, || {
        lab.node(1).flanneld().log().contains(same)
    })
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn a_live_network_changes_from_vxlan_to_wireguard_node_by_node_and_back() -> Result<()> {
    let lab = lab(3).ipv6(true).start()?;
    let pods = lab.pod_on_every_node()?;
    for (one, two) in [(0, 1), (1, 2), (0, 2)] {
        reach_each_other(&lab, &pods[one], &pods[two])?;
    }
    let keys: Vec<String> = (1..=3).map(|node| own_key(&lab, node)).collect::<Result<_>>()?;
    node_by_node(&lab, &pods, "vxlan", "wireguard")?;
    node_by_node(&lab, &pods, "wireguard", "vxlan")?;
    let after: Vec<String> = (1..=3).map(|node| own_key(&lab, node)).collect::<Result<_>>()?;
    assert_eq!(after, keys, "every node keeps its subnet");
    Ok(())
}
