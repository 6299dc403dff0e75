//! The life of a node: what it writes for others to read, when it calls itself ready, what it finds
//! when it comes back, and what it makes of the networks it is put into.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flannel_lab::{Families, LabBuilder, LabError, PingOptions, Result, SUBNET_ENV};
use rustix::process::Signal;
use serde_json::json;

use crate::support::{
    Kernel, LIMIT, Repairs, ask_etcd, both_ways, connected_pods, lab, lease_path, measured,
    own_key, peer, probe, put_peers, reach_each_other,
};

fn direct() -> serde_json::Value {
    json!({"Type": "vxlan", "DirectRouting": true})
}

#[test]
fn the_subnet_file_is_what_container_runtimes_expect() -> Result<()> {
    let lab = lab(1).ipv6(true).flag("--ip-masq").start()?;
    let leases = lab.leases()?;
    let (v4, v6) = leases[0].0.split_once('&').unwrap();
    let (v4, v6) = (v4.strip_suffix("0-24").unwrap(), v6.strip_suffix("-64").unwrap());
    assert_eq!(
        lab.node(1).read_file(SUBNET_ENV)?,
        format!(
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET={v4}1/24\n\
             FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET={v6}1/64\n\
             FLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"
        )
    );
    assert_eq!(lab.node(1).exec(&["stat", "-c", "%a %F", SUBNET_ENV])?, "644 regular file\n");
    // Beside it, where CNI plugins and operators ask.
    let files = lab.node(1).exec(&["ls", "-A", "/run/flannel"])?;
    assert_eq!(files, "cni.sock\nflanneld.sock\nsubnet.env\n");
    for socket in ["/run/flannel/cni.sock", "/run/flannel/flanneld.sock"] {
        assert_eq!(lab.node(1).exec(&["stat", "-c", "%a %F", socket])?, "600 socket\n");
    }
    Ok(())
}

/// Whoever sends them means another program.
#[test]
fn signals_that_mean_nothing_do_not_end_the_daemon() -> Result<()> {
    let lab = lab(1).start()?;
    let daemon = lab.node(1).flanneld();
    for signal in [Signal::USR1, Signal::USR2] {
        daemon.signal(signal)?;
    }
    let (status, _) = probe(&lab, 1, "/readyz")?.expect("it answers");
    assert!(status == 200 && daemon.is_running(), "{status}");
    Ok(())
}

#[test]
fn readers_of_the_subnet_file_never_see_half_of_it() -> Result<()> {
    let lab = lab(1).start()?;
    let node = lab.node(1);
    let done = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            node.in_netns(|| {
                let mut seen = BTreeSet::new();
                while !done.load(Ordering::Acquire) {
                    seen.insert(std::fs::read_to_string(SUBNET_ENV).unwrap());
                    std::thread::sleep(Duration::from_micros(50));
                }
                seen
            })
        });
        let changes = (0..20).try_for_each(|round| {
            let mtu = 1400 + round % 5;
            node.set_underlay_mtu(mtu)?;
            lab.wait_until("the new MTU", LIMIT, || {
                node.subnet_env().is_ok_and(|env| env.mtu == mtu - 50)
            })
        });
        done.store(true, Ordering::Release);
        changes.and(reader.join().unwrap())
    })?;
    assert!(seen.len() >= 3, "{seen:?}");
    let whole = |text: &String| {
        text.lines().count() == 4
            && text.starts_with("FLANNEL_NETWORK=")
            && text.ends_with("IPMASQ=false\n")
    };
    assert!(seen.iter().all(whole), "{seen:?}");
    Ok(())
}

#[test]
fn another_mtu_of_the_card_is_followed() -> Result<()> {
    let lab = lab(2).ipv6(true).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;
    let traffic = both_ways(&lab, &one, &two)?;
    let mut repairs = Repairs::default();
    for mtu in [1450, 9000, 1500] {
        let follows = || {
            let devices =
                (kernel.device("flannel.1").unwrap(), kernel.device("flannel-v6.1").unwrap());
            let found = (devices.0.mtu, devices.1.mtu, node.subnet_env().map_or(0, |env| env.mtu));
            if found == (mtu - 50, mtu - 70, mtu - 70) { Ok(()) } else { Err(format!("{found:?}")) }
        };
        let what = format!("eth0 has an MTU of {mtu}");
        repairs.until(&lab, &what, || node.set_underlay_mtu(mtu), follows)?;
    }
    traffic.flow(&lab)?;
    measured(traffic.stop());
    repairs.report();
    Ok(())
}

#[test]
fn defect_65_a_node_is_ready_when_its_known_peers_are_programmed() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    put_peers(&lab, 101..=250)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    lab.node(1).flanneld().start()?;
    let begin = Instant::now();
    // Fast, so that nothing can be programmed between being called ready and being looked at.
    while probe(&lab, 1, "/readyz")?.map(|(status, _)| status).unwrap_or(0) != 200 {
        assert!(begin.elapsed() < LIMIT);
    }
    let routes = kernel.held().iter().filter(|line| line.starts_with("route ")).count();
    assert_eq!(routes, 150);
    measured(format_args!("150 peers programmed and ready after {:.1?}", begin.elapsed()));
    assert_eq!(probe(&lab, 1, "/readyz")?.unwrap(), (200, "flanneld is ready".to_owned()));
    assert_eq!(probe(&lab, 1, "/healthz")?.unwrap(), (200, "flanneld is running".to_owned()));
    assert_eq!(probe(&lab, 1, "/nothing")?.unwrap().0, 404);
    Ok(())
}

/// Peers leave while the daemon is down.
fn leavers_leave_nothing(builder: LabBuilder) -> Result<()> {
    let lab = builder.start()?;
    let pods = lab.pod_on_every_node()?;
    lab.wait_until("all to reach all", LIMIT, || lab.matrix(Duration::from_secs(1))?.check())?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let gone = own_key(&lab, 3)?;
    let before = kernel.held();
    lab.node(1).flanneld().kill9();
    lab.node(3).flanneld().stop()?;
    assert!(lab.etcd()?.delete(&lease_path(&lab, &gone))?);
    lab.node(1).flanneld().restart()?;
    let after = kernel.held();
    assert!(after.is_subset(&before));
    let address = gone.split('-').next().unwrap();
    let left: Vec<_> = after
        .iter()
        .filter(|line| line.contains(address) || line.contains("192.168.100.3 "))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    reach_each_other(&lab, &pods[0], &pods[1])
}

#[test]
fn defect_31_and_flannel_2554_peers_that_left_meanwhile_leave_nothing_behind_with_vxlan()
-> Result<()> {
    leavers_leave_nothing(lab(3).ipv6(true))
}

#[test]
fn defect_40_and_flannel_2554_peers_that_left_meanwhile_leave_nothing_behind_with_host_gw()
-> Result<()> {
    leavers_leave_nothing(lab(3).ipv6(true).backend("host-gw"))
}

#[test]
fn flannel_2554_peers_that_left_meanwhile_leave_nothing_behind_with_direct_routing() -> Result<()> {
    leavers_leave_nothing(lab(3).backend_json(direct()))
}

#[test]
fn defect_32_a_peer_that_changes_leaves_nothing_of_what_it_was() -> Result<()> {
    let lab = lab(1).backend_json(direct()).start()?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let empty = kernel.held();
    let (key, value) = peer(150);
    let changes = [
        value.clone(),
        // Another address behind the router, another MAC, both, and back to the link.
        value.replace("192.168.100.", "192.168.101."),
        value.replace("192.168.100.", "192.168.101.").replace("01:96", "02:96"),
        value.replace("192.168.100.150", "192.168.102.7").replace("01:96", "03:96"),
        value,
    ];
    for value in changes {
        lab.etcd()?.put(&lease_path(&lab, &key), &value)?;
        let value: serde_json::Value = serde_json::from_str(&value).unwrap();
        let (ip, mac) = (&value["PublicIP"], &value["BackendData"]["VtepMAC"]);
        let (ip, mac) = (ip.as_str().unwrap(), mac.as_str().unwrap());
        let mut wanted = empty.clone();
        if ip.starts_with("192.168.100.") {
            wanted.insert(format!("route 10.244.150.0/24 via {ip} dev eth0"));
        } else {
            wanted.insert("route 10.244.150.0/24 via 10.244.150.0 dev flannel.1 onlink".to_owned());
            wanted.insert(format!("neighbour 10.244.150.0 lladdr {mac} dev flannel.1"));
            wanted.insert(format!("fdb {mac} dst {ip} dev flannel.1"));
        }
        lab.wait_until("what the lease says", LIMIT, || {
            let held = kernel.held();
            if held == wanted { Ok(()) } else { Err(format!("{held:?}")) }
        })?;
    }
    Ok(())
}

#[test]
fn defect_30_a_peer_whose_entries_are_gone_already_holds_nobody_up() -> Result<()> {
    let lab = lab(1).start()?;
    put_peers(&lab, 150..160)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    lab.wait_until("ten peers", LIMIT, || kernel.held().len() == 2 + 30)?;
    lab.node(1).flanneld().pause()?;
    lab.node(1).ip("link del flannel.1")?;
    for number in 150..160 {
        lab.etcd()?.delete(&lease_path(&lab, &peer(number).0))?;
    }
    put_peers(&lab, 160..161)?;
    let begin = Instant::now();
    lab.node(1).flanneld().resume()?;
    lab.wait_until("one peer", LIMIT, || {
        let held = kernel.held();
        let right = held.len() == 2 + 3 && held.iter().any(|line| line.contains("10.244.160.0/24"));
        if right { Ok(()) } else { Err(format!("{held:?}")) }
    })?;
    measured(format_args!("after {:.1?}", begin.elapsed()));
    Ok(())
}

#[test]
fn defect_41_a_peer_with_a_family_that_is_not_in_use_is_reached_by_the_other() -> Result<()> {
    for backend in ["vxlan", "host-gw"] {
        let lab = lab(1).backend(backend).start()?;
        let (key, value) = peer(150);
        let value = value.replace("\"vxlan\"", &format!("\"{backend}\""));
        lab.etcd()?.put(&lease_path(&lab, &format!("{key}&fd00:244:0:96::-64")), value)?;
        let mut kernel = Kernel::of(lab.node(1))?;
        lab.wait_until("the route", LIMIT, || {
            kernel.held().iter().any(|line| line.starts_with("route 10.244.150.0/24 "))
        })?;
        assert!(!kernel.held().iter().any(|line| line.contains("fd00:244:")));
    }
    Ok(())
}

#[test]
fn defect_11_a_network_of_ipv6_alone_works_with_vxlan() -> Result<()> {
    ipv6_alone(lab(3))
}

#[test]
fn defect_11_a_network_of_ipv6_alone_works_with_host_gw() -> Result<()> {
    ipv6_alone(lab(3).backend("host-gw"))
}

fn ipv6_alone(builder: LabBuilder) -> Result<()> {
    let lab = builder.overlay(Families::Ipv6).start()?;
    let env: Vec<_> = lab.nodes().iter().map(|node| node.subnet_env().unwrap().subnet6).collect();
    assert!(env[0].is_some() && env[0] != env[1] && env[1] != env[2], "{env:?}");
    let pods = lab.pod_on_every_node()?;
    lab.wait_until("all to reach all", LIMIT, || lab.matrix(Duration::from_secs(1))?.check())?;
    lab.tcp_transfer(&pods[0], &pods[1], 1 << 20)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let before = kernel.held();
    let traffic = both_ways(&lab, &pods[0], &pods[1])?;
    lab.node(1).flanneld().kill9();
    lab.node(1).flanneld().restart()?;
    traffic.flow(&lab)?;
    traffic.stop().nothing_is_lost();
    assert_eq!(kernel.held(), before);
    if kernel.device("flannel-v6.1").is_some() {
        // Defect 33: nobody looked after this device.
        lab.node(1).ip("link del flannel-v6.1")?;
        lab.wait_until("the device to be back", LIMIT, || kernel.held() == before)?;
    }
    Ok(())
}

#[test]
fn an_underlay_of_ipv6_alone_carries_a_network_of_ipv6_alone() -> Result<()> {
    let lab = lab(2).underlay(Families::Ipv6).overlay(Families::Ipv6).start()?;
    connected_pods(&lab).map(drop)
}

#[test]
fn direct_routes_are_used_on_the_own_link_and_the_tunnel_beyond() -> Result<()> {
    let lab = lab(3).segments(2).segment_of(2, 0).ipv6(true).backend_json(direct()).start()?;
    lab.pod_on_every_node()?;
    lab.wait_until("all to reach all", LIMIT, || lab.matrix(Duration::from_secs(1))?.check())?;
    let held = Kernel::of(lab.node(1))?.held();
    let (near, far) = (lab.node(2).subnet_env()?, lab.node(3).subnet_env()?);
    let (near4, near6) = (near.subnet.unwrap().trunc(), near.subnet6.unwrap().trunc());
    let (far4, far6) = (far.subnet.unwrap().trunc(), far.subnet6.unwrap().trunc());
    for line in [
        format!("route {near4} via 192.168.100.2 dev eth0"),
        format!("route {near6} via fd00:100::2 dev eth0 metric 1024"),
        format!("route {far4} via {} dev flannel.1 onlink", far4.network()),
        format!("route {far6} via {} dev flannel-v6.1 metric 1024 onlink", far6.network()),
    ] {
        assert!(held.contains(&line), "no {line} in {held:?}");
    }
    assert!(!held.iter().any(|line| line.contains("fdb") && line.contains("192.168.100.2 ")));
    Ok(())
}

#[test]
fn host_gw_says_why_a_node_behind_a_router_is_not_reached() -> Result<()> {
    let lab = lab(3).segments(2).segment_of(2, 0).backend("host-gw").start()?;
    let pods = lab.pod_on_every_node()?;
    reach_each_other(&lab, &pods[0], &pods[1])?;
    let daemon = lab.node(1).flanneld();
    lab.wait_until("the reason", LIMIT, || {
        let log = daemon.log();
        let said = log.contains("192.168.101.3 is behind the gateway 192.168.100.254")
            && log.contains("use vxlan");
        if said { Ok(()) } else { Err(log) }
    })?;
    assert!(daemon.is_ready(), "those on the link are served");
    let quick = PingOptions { limit: Duration::from_millis(300), ..PingOptions::default() };
    assert!(lab.ping_with(&pods[0], &pods[2], quick).is_err());
    Ok(())
}

#[test]
fn defect_68_without_a_word_the_best_default_route_decides() -> Result<()> {
    let lab = lab(2).no_daemons().start()?;
    let node = lab.node(1);
    // Another device, made earlier in the alphabet and with a default route of its own.
    node.ip("link add aaa0 type veth peer name aaa1")?;
    node.ip("addr add 172.16.0.1/24 dev aaa0")?;
    node.ip("link set aaa0 up")?;
    node.ip("link set aaa1 up")?;
    node.ip("route add default via 172.16.0.2 dev aaa0 metric 500")?;
    for node in lab.nodes() {
        let daemon = node.flanneld();
        daemon
            .set_flags(daemon.flags().into_iter().filter(|flag| flag != "--iface=eth0").collect());
    }
    lab.start_daemons()?;
    let held = Kernel::of(node)?.held();
    assert!(held.iter().any(|line| line.contains("local 192.168.100.1 dev eth0")), "{held:?}");
    connected_pods(&lab).map(drop)
}

/// As when a hypervisor's bridge is set up on a running node: flanneld was told the card (`--iface=eth0`), and the bridge
/// has its addresses now.
#[test]
fn a_node_whose_named_card_is_put_under_a_bridge_is_ready_and_its_pods_are_reached() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let (node, key) = (lab.node(1), own_key(&lab, 1)?);
    for line in [
        "link add br0 type bridge forward_delay 0",
        "link set eth0 master br0",
        "link set br0 up",
        "addr flush dev eth0",
        "addr add 192.168.100.1/24 dev br0",
        "route add default via 192.168.100.254",
    ] {
        node.ip(line)?;
    }
    lab.wait_until("the bridge to be used", LIMIT, || {
        node.flanneld().log().contains("iface names eth0, a port of br0, which has the addresses")
    })?;
    node.flanneld().wait_ready()?;
    reach_each_other(&lab, &one, &two)?;
    assert!(node.flanneld().is_ready(), "{:?}", probe(&lab, 1, "/readyz")?);
    assert_eq!(own_key(&lab, 1)?, key, "it is the same node");
    Ok(())
}

#[test]
fn a_blackhole_route_keeps_unused_addresses_on_the_node() -> Result<()> {
    let lab = lab(1).ipv6(true).flag("--ip-blackhole-route").start()?;
    let node = lab.node(1);
    let env = node.subnet_env()?;
    let mut kernel = Kernel::of(node)?;
    let before = kernel.held();
    let (v4, v6) = (env.subnet.unwrap().trunc(), env.subnet6.unwrap().trunc());
    for subnet in [v4.to_string(), v6.to_string()] {
        let line = format!("route blackhole {subnet} metric 65535");
        assert!(before.contains(&line), "{before:?}");
        node.exec(&["ip", "route", "del", "blackhole", &subnet, "metric", "65535"])?;
        lab.wait_until("the blackhole to be back", LIMIT, || kernel.held() == before)?;
    }
    // Pods are reached all the same.
    let (one, two) = (lab.pod(1)?, lab.pod(1)?);
    lab.ping(&one, &two)?;
    // Without the flag it goes.
    node.flanneld().set_flags(
        node.flanneld().flags().into_iter().filter(|flag| flag != "--ip-blackhole-route").collect(),
    );
    node.flanneld().restart()?;
    lab.wait_until("no blackhole", LIMIT, || {
        !kernel.held().iter().any(|line| line.contains("blackhole"))
    })
}

#[test]
fn defect_15_restarts_leave_no_forgotten_leases_in_etcd() -> Result<()> {
    let lab = lab(2).start()?;
    for _ in 0..5 {
        lab.node(1).flanneld().restart()?;
    }
    lab.wait_until("one etcd lease for each node", LIMIT, || {
        let leases = ask_etcd(&lab, "/v3/lease/leases", &json!({}))?;
        let count = leases["leases"].as_array().map_or(0, Vec::len);
        if count == 2 { Ok(()) } else { Err(LabError::Spec(format!("{leases}"))) }
    })
}

#[test]
fn defect_10_a_reservation_is_taken_and_stays_one() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let key = lease_path(&lab, "10.244.99.0-24");
    lab.etcd()?.put(&key, r#"{"PublicIP": "192.168.100.1", "PublicIPv6": null}"#)?;
    lab.start_daemons()?;
    assert_eq!(own_key(&lab, 1)?, "10.244.99.0-24");
    lab.node(1).flanneld().restart()?;
    let leases = ask_etcd(&lab, "/v3/lease/leases", &json!({}))?;
    assert_eq!(leases["leases"].as_array().map_or(0, Vec::len), 0, "{leases}");
    assert!(lab.etcd()?.get(&key)?.unwrap().contains("VtepMAC"));
    Ok(())
}
