//! wireguard where the kernel has none: a process of ours speaks it, on any kernel.

use std::time::Duration;

use flannel_lab::{Lab, LabBuilder, Node, Result, Vandalism};
use flannel_tunnel::Client;
use serde_json::json;

use crate::restart::nothing_is_lost;
use crate::support::{
    Capture, Kernel, LIMIT, both_ways, connected_pods, flanneld, lab, lease_path, measured,
    reach_each_other,
};
use crate::udp::{kill9, tunnel_pid};

const MB: u64 = 1 << 20;
const PSK: &str = "3Kx1+1vLQf4tq1mMdcqkLMgMeZAtzuWB3Pb5CFL0wXs=";
pub(crate) const KEY_FILE: &str = "/run/flannel/wgkey";

fn in_user_space(builder: LabBuilder) -> LabBuilder {
    builder.backend("wireguard").env("WIREGUARD_IMPLEMENTATION", "userspace").realtime()
}

fn status(node: &Node, device: &str) -> flannel_tunnel::TunnelStatus {
    let socket = format!(
        "/proc/{}/root/run/flannel/tunnel-{device}.sock",
        node.flanneld().pid().expect("a daemon")
    );
    let (client, _) = Client::find(socket.as_ref()).expect("it answers").expect("a process");
    client.status().expect("a status")
}

#[test]
fn pods_ping_and_stream_over_wireguard_in_user_space() -> Result<()> {
    let lab = in_user_space(lab(3)).start()?;
    let pods = lab.pod_on_every_node()?;
    crate::udp::reach_each_other(&lab)?;
    lab.tcp_transfer(&pods[0], &pods[1], 20 * MB)?;
    lab.tcp_transfer(&pods[2], &pods[0], 20 * MB)?;
    let node = lab.node(1);
    assert_eq!(node.subnet_env()?.mtu, 1440);
    let device = node.ip("-d addr show dev flannel-wg")?;
    assert!(device.contains("mtu 1440") && device.contains("tun type tun"), "{device}");
    let log = node.flanneld().log();
    assert!(log.contains("WireGuard runs in user space"), "it says which one runs: {log}");
    let key = node.read_file(KEY_FILE)?;
    assert!(!log.contains(key.trim()), "a secret is in the log");
    Ok(())
}

#[test]
fn defect_44_a_peer_that_comes_while_the_config_cannot_be_read_is_reached() -> Result<()> {
    let lab = in_user_space(lab(2)).start()?;
    let (one, two) = connected_pods(&lab)?;
    let before = lab.node(1).flanneld().pid();
    lab.put_config("{")?;
    let value = json!({
        "PublicIP": "192.168.100.200", "PublicIPv6": null, "BackendType": "wireguard",
        "BackendData": {"PublicKey": "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=", "Port": 51820},
    });
    let path = lease_path(&lab, "10.244.200.0-24");
    lab.etcd()?.put_many(&[(path, value.to_string())])?;
    lab.wait_until("a route to the new peer", LIMIT, || {
        let routes = lab.node(1).ip("route show dev flannel-wg");
        routes.is_ok_and(|routes| routes.contains("10.244.200.0/24"))
    })?;
    reach_each_other(&lab, &one, &two)?;
    assert_eq!(lab.node(1).flanneld().pid(), before, "it goes on");
    Ok(())
}

#[test]
fn restarts_lose_nothing_with_wireguard_in_user_space() -> Result<()> {
    nothing_is_lost(in_user_space(lab(2).ipv6(true)), &["flannel-wg", "flannel-wg-v6"])
}

#[test]
fn one_device_in_user_space_carries_both_families() -> Result<()> {
    let backend = json!({"Type": "wireguard", "Mode": "auto", "PSK": PSK});
    let lab = in_user_space(lab(2).ipv6(true)).backend_json(backend).start()?;
    let (one, two) = connected_pods(&lab)?;
    reach_each_other(&lab, &one, &two)?;
    assert!(Kernel::of(lab.node(1))?.device("flannel-wg-v6").is_none());
    Ok(())
}

#[test]
fn nothing_of_wireguard_in_user_space_is_readable_whatever_is_killed_or_removed() -> Result<()> {
    let backend = json!({"Type": "wireguard", "PSK": PSK, "PersistentKeepaliveInterval": 20});
    let lab = in_user_space(lab(2)).backend_json(backend).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;
    let held = kernel.held();
    let capture = Capture::start(&lab, &one, &two)?;
    let traffic = both_ways(&lab, &one, &two)?;
    for deed in [
        "link del flannel-wg",
        "link set flannel-wg down",
        "addr flush dev flannel-wg",
        "route flush dev flannel-wg",
    ] {
        // `ip addr flush` gives up if what it flushes comes back ten times while it looks.
        node.output(&["sh", "-c", &format!("ip {deed}")])?;
        lab.wait_until("a repair", LIMIT, || kernel.held() == held)?;
        traffic.flow(&lab)?;
    }
    let pid = tunnel_pid(node).expect("a tunnel process");
    kill9(node, pid);
    lab.wait_until("another tunnel process", LIMIT, || {
        tunnel_pid(node).is_some_and(|now| now != pid)
    })?;
    traffic.flow(&lab)?;
    node.flanneld().kill9();
    node.vandalize(&Vandalism::LinkDelete("flannel-wg".into()))?;
    std::thread::sleep(Duration::from_millis(500));
    node.flanneld().restart()?;
    traffic.flow(&lab)?;
    measured(traffic.stop());
    let (frames, readable) = capture.stop();
    measured(format_args!("{readable} of {frames} frames readable"));
    assert!(frames > 100 && readable == 0, "{readable} of {frames}");
    Ok(())
}

#[test]
fn a_key_rotated_in_user_space_loses_no_packet() -> Result<()> {
    let lab = in_user_space(lab(3)).start()?;
    let (one, two) = connected_pods(&lab)?;
    rotated_without_a_loss(&lab, &one, &two)?;
    let status = status(lab.node(2), "flannel-wg");
    assert_eq!(status.wireguard.len(), 2, "nothing of the old key is left: {:?}", status.wireguard);
    Ok(())
}

/// Gives node 1 a new key under traffic. Returns both, the old one first.
pub(crate) fn rotated_without_a_loss(
    lab: &Lab,
    one: &flannel_lab::Pod,
    two: &flannel_lab::Pod,
) -> Result<(String, String)> {
    let node = lab.node(1);
    let old = node.read_file(KEY_FILE)?;
    let capture = Capture::start(lab, one, two)?;
    let traffic = both_ways(lab, one, two)?;
    let flannelctl = flanneld().with_file_name("flannelctl");
    let flannelctl = flannelctl.to_str().expect("a path");
    let said = node.exec(&[flannelctl, "key", "rotate"])?;
    traffic.flow(lab)?;
    let reports = traffic.stop();
    measured(format_args!("key rotated: {reports}"));
    let new = node.read_file(KEY_FILE)?;
    assert_ne!(old, new);
    let (frames, readable) = capture.stop();
    assert!(frames > 50 && readable == 0, "{readable} of {frames}");
    reports.nothing_is_lost();
    let told = said + &node.flanneld().log();
    assert!(!told.contains(new.trim()) && !told.contains(old.trim()), "a secret is shown");
    assert!(told.contains("new WireGuard key"), "{told}");
    let mode = node.exec(&["stat", "-c", "%a", KEY_FILE])?;
    assert_eq!(mode.trim(), "600");
    assert!(node.read_file(format!("{KEY_FILE}.next")).is_err());
    Ok((old, new))
}

#[test]
fn a_key_rotation_waits_for_a_store_that_is_away_and_goes_on_after_a_kill() -> Result<()> {
    let lab = in_user_space(lab(2)).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let old = node.read_file(KEY_FILE)?;
    let next = "kKY9iXFtPVaaMbl8JBS2Tj9vlLOjFFyFIHTGdD3oNWs=";
    let traffic = both_ways(&lab, &one, &two)?;
    lab.etcd()?.stop()?;
    node.write_file(format!("{KEY_FILE}.next"), next)?;
    lab.wait_until("word of it", LIMIT, || {
        node.flanneld().log().contains("no peer can be told of it")
    })?;
    assert_eq!(node.read_file(KEY_FILE)?, old, "nobody can be told of a new key");
    lab.etcd()?.restart()?;
    let has = |key: &str| node.read_file(KEY_FILE).is_ok_and(|now| now.trim() == key);
    lab.wait_until("the new key", LIMIT, || has(next))?;
    // Killed before it could take the next one.
    let last = "aPxGwq8zERHQ3Q1cOZFdJ+cvJX5Ka4mLN38AyYKYF10=";
    node.flanneld().kill9();
    node.write_file(format!("{KEY_FILE}.next"), last)?;
    node.flanneld().restart()?;
    lab.wait_until("the last key", LIMIT, || has(last))?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    Ok(())
}

/// The address of the switch, behind which nodes 2 and 3 are: it forwards a port to each.
const NAT: &str = "192.168.100.254";

fn forward_ports(lab: &Lab) -> Result<()> {
    let rules = [
        "add table ip home".to_owned(),
        "add chain ip home in { type nat hook prerouting priority -100; }".to_owned(),
        "add chain ip home out { type nat hook postrouting priority 100; }".to_owned(),
        format!("add rule ip home in ip daddr {NAT} udp dport 52002 dnat to 192.168.101.2:51820"),
        format!("add rule ip home in ip daddr {NAT} udp dport 52003 dnat to 192.168.101.3:51820"),
        "add rule ip home out ip saddr 192.168.101.0/24 masquerade".to_owned(),
    ];
    for rule in rules {
        let status = lab.switch().run(|| std::process::Command::new("nft").arg(&rule).status())?;
        assert!(status.expect("nft").success(), "{rule}");
    }
    Ok(())
}

pub(crate) fn behind_one_address(builder: LabBuilder) -> Result<()> {
    let mut builder = builder.segments(2).segment_of(1, 0).no_daemons();
    for (node, port) in [(2, "52002"), (3, "52003")] {
        builder = builder
            .segment_of(node, 1)
            .node_flag(node, format!("--public-ip={NAT}"))
            .node_env(node, "WIREGUARD_PUBLIC_PORT", port);
    }
    let lab = builder.start()?;
    forward_ports(&lab)?;
    lab.start_daemons()?;
    lab.pod_on_every_node()?;
    crate::udp::reach_each_other(&lab)?;
    let leases = lab.leases()?;
    assert_eq!(leases.len(), 3, "{leases:?}");
    for port in ["52002", "52003"] {
        assert!(leases.iter().any(|(_, lease)| lease.contains(port)), "{port}: {leases:?}");
    }
    // Each knows its own lease again.
    for node in [2, 3] {
        lab.node(node).flanneld().kill9();
        lab.node(node).flanneld().restart()?;
    }
    crate::udp::reach_each_other(&lab)?;
    assert_eq!(lab.leases()?, leases);
    Ok(())
}

#[test]
fn two_nodes_behind_one_public_address_are_reached_at_their_ports() -> Result<()> {
    behind_one_address(in_user_space(lab(3)))
}
