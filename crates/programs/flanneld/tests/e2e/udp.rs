//! The udp backend: pods reach each other through a process in user space, which outlives the daemon.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use flannel_lab::{Lab, Node, Result, SUBNET_ENV};
use flannel_tunnel::Client;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover,
    set_ipv6_mtu_discover,
};

use crate::support::{LIMIT, both_ways, connected_pods, flanneld, go_flanneld, lab, measured};

const MB: u64 = 1 << 20;
const PROCESS: &str = "flannel-tunnel";

pub(crate) fn tunnel_pid(node: &Node) -> Option<u32> {
    // Threads have names of their own, so this is the process.
    let found = node.output(&["pgrep", "-x", PROCESS]).expect("pgrep");
    // All nodes of a lab are in one PID namespace: which of them is ours is told by its network.
    let here = node.exec(&["readlink", "/proc/self/ns/net"]).expect("readlink");
    found.stdout.split_whitespace().find_map(|pid| {
        let there = node.output(&["readlink", &format!("/proc/{pid}/ns/net")]).ok()?.stdout;
        (there == here).then(|| pid.parse().ok())?
    })
}

pub(crate) fn kill9(node: &Node, pid: u32) {
    node.exec(&["kill", "-9", &pid.to_string()]).expect("kill");
}

pub(crate) fn reach_each_other(lab: &Lab) -> Result<()> {
    lab.wait_until("all pods to reach each other", LIMIT, || {
        lab.matrix(Duration::from_secs(1))?.check()
    })
}

#[test]
fn pods_reach_each_other_over_udp_and_the_node_looks_as_with_the_go_flannel() -> Result<()> {
    let lab = lab(3).backend("udp").start()?;
    let pods = lab.pod_on_every_node()?;
    reach_each_other(&lab)?;
    lab.tcp_transfer(&pods[0], &pods[1], 20 * MB)?;
    lab.tcp_transfer(&pods[2], &pods[0], 20 * MB)?;
    let node = lab.node(1);
    let env = node.subnet_env()?;
    assert_eq!(env.mtu, 1472);
    let device = node.ip("-d addr show dev flannel0")?;
    let own = env.subnet.expect("a subnet").network();
    for expected in ["mtu 1472", "tun type tun", &format!("inet {own}/32")] {
        assert!(device.contains(expected), "{expected}: {device}");
    }
    let route = node.ip("route show 10.244.0.0/16")?;
    assert!(route.starts_with("10.244.0.0/16 dev flannel0"), "{route}");
    let mode = node.exec(&["stat", "-c", "%a", "/run/flannel/tunnel-flannel0.sock"])?;
    assert_eq!(mode.trim(), "600", "nobody but root may speak to the tunnel");
    let log = node.flanneld().log();
    assert!(log.contains("TUN TSO on"), "it says what it uses: {log}");
    Ok(())
}

#[test]
fn udp_carries_ipv6_as_well() -> Result<()> {
    let lab = lab(2).backend("udp").ipv6(true).start()?;
    lab.pod_on_every_node()?;
    reach_each_other(&lab)
}

#[test]
fn with_udp_a_daemon_that_ends_in_any_way_loses_no_packet() -> Result<()> {
    let lab = lab(2).backend("udp").realtime().start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let before = tunnel_pid(node).expect("a tunnel process");
    let upgraded = tempfile::tempdir().unwrap();
    let upgraded = upgraded.path().join("flanneld-of-tomorrow");
    std::fs::copy(flanneld(), &upgraded).unwrap();
    type Way<'a> = (&'a str, bool, &'a dyn Fn() -> Result<()>);
    let ways: [Way<'_>; 3] = [
        ("SIGTERM and start", true, &|| node.flanneld().restart()),
        ("kill -9 and start", true, &|| {
            node.flanneld().kill9();
            std::thread::sleep(Duration::from_millis(300));
            node.flanneld().restart()
        }),
        ("upgrade", false, &|| node.flanneld().restart_with(&upgraded)),
    ];
    for (name, same_process, restart) in ways {
        let traffic = both_ways(&lab, &one, &two)?;
        restart()?;
        traffic.flow(&lab)?;
        let reports = traffic.stop();
        measured(format_args!("{name}: {reports}"));
        reports.nothing_is_lost();
        let now = tunnel_pid(node).expect("a tunnel process");
        assert_eq!(now == before, same_process, "{name}: process {before}, then {now}");
    }
    Ok(())
}

#[test]
fn a_tunnel_process_that_is_killed_is_started_anew_and_its_device_stays() -> Result<()> {
    let lab = lab(2).backend("udp").start()?;
    connected_pods(&lab)?;
    let node = lab.node(1);
    let index = node.exec(&["cat", "/sys/class/net/flannel0/ifindex"])?;
    let pid = tunnel_pid(node).expect("a tunnel process");
    kill9(node, pid);
    lab.wait_until("another tunnel process", LIMIT, || {
        tunnel_pid(node).is_some_and(|now| now != pid)
    })?;
    reach_each_other(&lab)?;
    assert_eq!(node.exec(&["cat", "/sys/class/net/flannel0/ifindex"])?, index);
    Ok(())
}

#[test]
fn a_tunnel_whose_socket_was_removed_is_not_left_beside_another() -> Result<()> {
    let lab = lab(2).backend("udp").start()?;
    connected_pods(&lab)?;
    let node = lab.node(1);
    let lost = tunnel_pid(node).expect("a tunnel process");
    node.exec(&["rm", "/run/flannel/tunnel-flannel0.sock"])?;
    node.flanneld().restart()?;
    lab.wait_until("another tunnel process", LIMIT, || {
        tunnel_pid(node).is_some_and(|now| now != lost)
    })?;
    lab.wait_until("the first one to be gone", LIMIT, || {
        let asked = node.output(&["kill", "-0", &lost.to_string()]);
        asked.is_ok_and(|asked| !asked.status.success())
    })?;
    reach_each_other(&lab)
}

#[test]
fn with_udp_what_vandals_do_is_repaired() -> Result<()> {
    let lab = lab(2).backend("udp").start()?;
    connected_pods(&lab)?;
    let node = lab.node(1);
    let own = node.subnet_env()?.subnet.expect("a subnet").network();
    for deed in [
        "link del flannel0".to_owned(),
        format!("addr del {own}/32 dev flannel0"),
        "route del 10.244.0.0/16".to_owned(),
        "link set flannel0 mtu 900".to_owned(),
        "link set flannel0 down".to_owned(),
        "link set flannel0 name other0".to_owned(),
    ] {
        node.ip(&deed)?;
        let begin = std::time::Instant::now();
        lab.wait_until(
            &format!("ip {deed} to be repaired"),
            LIMIT,
            || -> std::result::Result<(), String> {
                let device =
                    node.ip("addr show dev flannel0").map_err(|error| error.to_string())?;
                let route =
                    node.ip("route show 10.244.0.0/16").map_err(|error| error.to_string())?;
                let whole = device.contains("mtu 1472")
                    && device.contains(&format!("{own}/32"))
                    && device.contains("UP")
                    && route.contains("dev flannel0");
                if whole { Ok(()) } else { Err(format!("{device}{route}")) }
            },
        )?;
        measured(format_args!("ip {deed}: {:?}", begin.elapsed()));
        reach_each_other(&lab)?;
    }
    Ok(())
}

#[test]
fn with_udp_another_address_of_the_node_is_followed() -> Result<()> {
    let lab = lab(2).backend("udp").start()?;
    connected_pods(&lab)?;
    lab.change_address(1, "192.168.100.77".parse().unwrap())?;
    reach_each_other(&lab)
}

/// All between nodes 1 and 2 goes through node 3, which sends them no packet longer than this.
fn narrow(lab: &Lab, mtu: u32) -> Result<()> {
    let router = lab.node(3);
    for setting in ["ipv4.conf.all.send_redirects", "ipv4.conf.eth0.send_redirects"] {
        router.exec(&["sysctl", "-q", "-w", &format!("net.{setting}=0")])?;
    }
    for (number, other) in [(1, 2), (2, 1)] {
        let node = lab.node(number);
        node.ip(&format!("route add 192.168.100.{other}/32 via 192.168.100.3"))?;
        node.ip(&format!("-6 route add fd00:100::{other}/128 via fd00:100::3"))?;
        node.exec(&["sysctl", "-q", "-w", "net.ipv6.conf.eth0.accept_redirects=0"])?;
        router.ip(&format!("route add 192.168.100.{number}/32 dev eth0 mtu lock {mtu}"))?;
        router.ip(&format!("-6 route add fd00:100::{number}/128 dev eth0 mtu lock {mtu}"))?;
    }
    Ok(())
}

/// Sends a datagram, such that the whole packet has this length.
fn send(socket: &UdpSocket, packet: usize) -> io::Result<()> {
    let headers = if socket.local_addr()?.is_ipv4() { 28 } else { 48 };
    socket.send(&vec![7; packet - headers]).map(|_| ())
}

#[test]
fn with_udp_a_path_that_takes_less_is_told_to_pods_and_all_bytes_arrive() -> Result<()> {
    let lab = lab(3).backend("udp").ipv6(true).start()?;
    let pods = lab.pod_on_every_node()?;
    reach_each_other(&lab)?;
    narrow(&lab, 1300)?;
    let v4 = IpAddr::from(pods[1].v4().expect("an address"));
    let v6 = IpAddr::from(pods[1].v6().expect("an address"));
    for (target, told) in [(v4, 1272), (v6, 1280)] {
        let receiver = pods[1].in_netns(|| UdpSocket::bind((target, 0)).unwrap())?;
        receiver.set_read_timeout(Some(LIMIT)).unwrap();
        let sender = pods[0].in_netns(|| {
            let any: SocketAddr =
                if target.is_ipv4() { ([0; 4], 0).into() } else { ([0; 8], 0).into() };
            let sender = UdpSocket::bind(any).unwrap();
            sender.connect(receiver.local_addr().unwrap()).unwrap();
            sender
        })?;
        let discover = |on: bool| match (target, on) {
            (IpAddr::V4(_), true) => set_ip_mtu_discover(&sender, Ipv4PathMtuDiscovery::DO),
            (IpAddr::V4(_), false) => set_ip_mtu_discover(&sender, Ipv4PathMtuDiscovery::DONT),
            (IpAddr::V6(_), _) => set_ipv6_mtu_discover(&sender, Ipv6PathMtuDiscovery::DO),
        };
        discover(true).unwrap();
        // The first is lost at the router, which tells the node; the next the node answers itself.
        lab.wait_until(&format!("the sender to {target} to be told"), LIMIT, || {
            let _ = send(&sender, 1400);
            let known = if target.is_ipv4() { ip_mtu(&sender) } else { ipv6_mtu(&sender) };
            if known.unwrap() == told { Ok(()) } else { Err(format!("{known:?}")) }
        })?;
        let arrives = |packet: usize| {
            // What it was told is an error of the next call else.
            sender.take_error().unwrap();
            send(&sender, packet).unwrap();
            let mut bytes = [0; 2000];
            let len = receiver.recv(&mut bytes).unwrap();
            assert!(bytes[..len].iter().all(|byte| *byte == 7));
            len
        };
        // With IPv6 these are more than the path takes, and are cut between the nodes.
        let headers = if target.is_ipv4() { 28 } else { 48 };
        assert_eq!(arrives(told as usize), told as usize - headers);
        if target.is_ipv4() {
            discover(false).unwrap();
            assert_eq!(arrives(1400), 1372, "what may be cut is cut");
        }
    }
    lab.tcp_transfer(&pods[0], &pods[1], 4 * MB)?;
    lab.tcp_transfer(&pods[1], &pods[0], 4 * MB)?;
    Ok(())
}

#[test]
fn pods_of_both_talk_over_udp_whoever_is_restarted() -> Result<()> {
    let lab = lab(3).backend("udp").node_flanneld(2, go_flanneld()).no_daemons().start()?;
    for node in lab.nodes() {
        node.flanneld().start()?;
        node.flanneld().wait_ready()?;
    }
    let pods = lab.pod_on_every_node()?;
    reach_each_other(&lab)?;
    for number in [1, 2] {
        let daemon = lab.node(number).flanneld();
        daemon.stop()?;
        daemon.restart()?;
        reach_each_other(&lab)?;
        daemon.kill9();
        daemon.restart()?;
        reach_each_other(&lab)?;
    }
    for (from, to) in [(0, 1), (1, 0), (0, 2)] {
        lab.tcp_transfer(&pods[from], &pods[to], 4 * MB)?;
    }
    Ok(())
}

#[test]
fn a_node_moves_from_the_go_flannel_to_ours_over_udp_and_back() -> Result<()> {
    let lab = lab(2).backend("udp").node_flanneld(1, go_flanneld()).no_daemons().start()?;
    for node in lab.nodes() {
        node.flanneld().start()?;
        node.flanneld().wait_ready()?;
    }
    lab.pod_on_every_node()?;
    reach_each_other(&lab)?;
    let node = lab.node(1);
    let before = node.read_file(SUBNET_ENV)?;
    node.flanneld().restart_with(flanneld())?;
    reach_each_other(&lab)?;
    assert_eq!(node.read_file(SUBNET_ENV)?, before);
    // As `flannelctl cleanup` does: the tunnel outlives the daemon, and has the port that the Go one needs.
    node.flanneld().stop()?;
    node.in_netns(|| {
        let socket = Path::new("/run/flannel/tunnel-flannel0.sock");
        let found = Client::find(socket).expect("it answers");
        found.expect("it runs").0.remove().expect("it ends");
    })?;
    node.flanneld().restart_with(&go_flanneld())?;
    reach_each_other(&lab)?;
    assert_eq!(node.read_file(SUBNET_ENV)?, before);
    Ok(())
}

#[test]
fn a_network_that_leaves_udp_leaves_no_process_behind() -> Result<()> {
    let lab = lab(2).backend("udp").start()?;
    lab.pod_on_every_node()?;
    reach_each_other(&lab)?;
    lab.put_config(r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}"#)?;
    for node in lab.nodes() {
        lab.wait_until("the tunnel to end", LIMIT, || tunnel_pid(node).is_none())?;
        lab.wait_until("its device to go", LIMIT, || node.ip("link show dev flannel0").is_err())?;
    }
    Ok(())
}
