//! One daemon in several networks: each has a subnet, a device and rules of its own, and what is wrong
//! with one is no concern of the others.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use flannel_lab::{Lab, LabBuilder, Result};
use ipnet::Ipv4Net;
use serde_json::json;

use crate::support::{LIMIT, lab, probe};

const BLUE: u32 = 1;
const GREEN: u32 = 2;

fn config(network: &str, vni: u32) -> String {
    json!({"Network": network, "Backend": {"Type": "vxlan", "VNI": vni}}).to_string()
}

/// With the word that nodes which are in `from` may leave it.
fn moved_config(from: &str, to: &str, vni: u32) -> String {
    let backend = json!({"Type": "vxlan", "VNI": vni});
    json!({"Network": to, "Replaces": [from], "Backend": backend}).to_string()
}

/// Nodes whose daemons join blue and green; none is started yet, and there is no config.
fn nodes(count: u16) -> LabBuilder {
    lab(count).no_daemons().flag("--networks=blue,green").flag("--ip-masq")
}

fn put(lab: &Lab, network: &str, config: &str) -> Result<()> {
    lab.etcd()?.put(&format!("{}/{network}/config", lab.spec().etcd_prefix), config)
}

/// Of node 1.
fn readiness(lab: &Lab) -> String {
    match probe(lab, 1, "/readyz") {
        Ok(Ok((_, text))) => text,
        other => format!("{other:?}"),
    }
}

fn is_ready(lab: &Lab, node: u16) -> bool {
    matches!(probe(lab, node, "/readyz"), Ok(Ok((200, _))))
}

fn start(lab: &Lab) -> Result<()> {
    for node in lab.nodes() {
        node.flanneld().start()?;
    }
    Ok(())
}

fn wait_ready(lab: &Lab) -> Result<()> {
    lab.wait_until("every node to be ready", LIMIT, || {
        lab.nodes().iter().all(|node| is_ready(lab, node.number()))
    })
}

fn file(network: &str) -> String {
    format!("/run/flannel/networks/{network}.env")
}

/// The first address of the node's subnet.
fn gateway(lab: &Lab, node: u16, network: &str) -> Result<Ipv4Net> {
    let text = lab.node(node).read_file(file(network))?;
    let line = text.lines().find_map(|line| line.strip_prefix("FLANNEL_SUBNET="));
    Ok(line.expect("a subnet").parse().expect("an address"))
}

/// Gives each node that address, as the bridge of its pods would have it.
fn put_up_bridges(lab: &Lab, network: &str) -> Result<()> {
    for node in lab.nodes() {
        let (gateway, device) = (gateway(lab, node.number(), network)?, format!("pods-{network}"));
        node.ip(&format!("link add {device} type bridge"))?;
        node.ip(&format!("addr add {gateway} dev {device}"))?;
        node.ip(&format!("link set {device} up"))?;
    }
    Ok(())
}

/// A packet from node 1 to node 2 arrives, and shows its true source.
fn is_connected(lab: &Lab, network: &str) -> Result<bool> {
    let socket = |node: u16| -> Result<UdpSocket> {
        let address: Ipv4Addr = gateway(lab, node, network)?.addr();
        Ok(lab.node(node).in_netns(|| UdpSocket::bind((address, 0)))?.expect("its own address"))
    };
    let (from, to) = (socket(1)?, socket(2)?);
    to.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    if from.send_to(b"hello", to.local_addr().unwrap()).is_err() {
        return Ok(false);
    }
    Ok(to.recv_from(&mut [0; 8]).is_ok_and(|(_, source)| source == from.local_addr().unwrap()))
}

fn wait_connected(lab: &Lab, network: &str) -> Result<()> {
    lab.wait_until(&format!("a way through {network}"), LIMIT, || {
        is_connected(lab, network).is_ok_and(|yes| yes)
    })
}

/// What node 1 holds for both networks.
fn state(lab: &Lab) -> Result<[String; 4]> {
    let rules = lab.node(1).exec(&["iptables-save", "-t", "nat"])?;
    let rules = rules.lines().filter(|line| !line.starts_with(['#', ':']));
    Ok([
        lab.node(1).ip("route show")?,
        rules.collect::<Vec<_>>().join("\n"),
        lab.node(1).read_file(file("blue"))?,
        lab.node(1).read_file(file("green"))?,
    ])
}

#[test]
fn one_daemon_joins_several_networks() -> Result<()> {
    let lab = nodes(2).start()?;
    put(&lab, "blue", &config("10.1.0.0/16", BLUE))?;
    put(&lab, "green", &config("10.2.0.0/16", GREEN))?;
    start(&lab)?;
    wait_ready(&lab)?;
    for network in ["blue", "green"] {
        put_up_bridges(&lab, network)?;
        wait_connected(&lab, network)?;
    }
    let before = state(&lab)?;
    for network in ["-s 10.1.0.0/16", "-s 10.2.0.0/16"] {
        assert!(before[1].contains(network), "{}", before[1]);
    }
    let log = lab.node(1).flanneld().log();
    assert!(log.contains("network=blue") && log.contains("network=green"), "{log}");
    assert!(!log.contains("next try"), "they do not stand in each other's way: {log}");

    // Both threads of a network, that of the kernel and that of the rules, say whose they are.
    lab.node(1).exec(&["iptables", "-t", "nat", "-F", "FLANNEL-POSTRTG"])?;
    lab.node(1).ip("link delete flannel.2")?;
    lab.wait_until("repairs that name their network", LIMIT, || {
        let log = lab.node(1).flanneld().log();
        let says = |what: &str, network: &str| {
            log.lines().any(|line| line.contains(what) && line.contains(network))
        };
        match says("restored the IPv4 traffic rules", "network=blue")
            && says("restored the IPv4 traffic rules", "network=green")
            && says("flannel.2", "network=green")
        {
            true => Ok(()),
            false => Err(log),
        }
    })?;
    lab.wait_until("all of it back", LIMIT, || match state(&lab) {
        Ok(now) if now == before => Ok(()),
        other => Err(format!("{other:?}")),
    })?;

    // Neither takes the other's for something that was left behind.
    lab.node(1).flanneld().kill9();
    lab.node(1).flanneld().start()?;
    lab.wait_until("node 1 to be ready", LIMIT, || is_ready(&lab, 1))?;
    assert_eq!(state(&lab)?, before);
    Ok(())
}

#[test]
fn a_network_that_cannot_be_joined_is_no_concern_of_the_others() -> Result<()> {
    let lab = nodes(2).start()?;
    put(&lab, "blue", &config("10.1.0.0/16", BLUE))?;
    start(&lab)?;
    let says = |what: &str| {
        lab.wait_until(what, LIMIT, || match readiness(&lab) {
            text if text.contains(what) => Ok(()),
            text => Err(text),
        })
    };
    says("network green: there is no network config yet")?;
    lab.wait_until("blue's files", LIMIT, || {
        lab.nodes().iter().all(|node| node.read_file(file("blue")).is_ok())
    })?;
    put_up_bridges(&lab, "blue")?;
    wait_connected(&lab, "blue")?;

    put(&lab, "green", &config("10.2.0.0/16", BLUE))?;
    says("its device flannel.1 is that of the network blue")?;
    put(&lab, "green", &config("10.1.128.0/17", GREEN))?;
    says("overlap 10.1.0.0/16 of the network blue")?;
    assert!(is_connected(&lab, "blue")?, "through all of it");

    put(&lab, "green", &config("10.2.0.0/16", GREEN))?;
    wait_ready(&lab)?;
    put_up_bridges(&lab, "green")?;
    wait_connected(&lab, "green")?;
    assert!(is_connected(&lab, "blue")?);
    Ok(())
}

#[test]
fn a_network_may_move_to_where_another_was() -> Result<()> {
    let lab = nodes(2).start()?;
    put(&lab, "blue", &config("10.1.0.0/16", BLUE))?;
    put(&lab, "green", &config("10.2.0.0/16", GREEN))?;
    start(&lab)?;
    wait_ready(&lab)?;
    let moved = |network: &str, to: &str| {
        lab.wait_until(&format!("{network} in {to}"), LIMIT, || {
            lab.nodes().iter().all(|node| {
                gateway(&lab, node.number(), network)
                    .is_ok_and(|gateway| gateway.to_string().starts_with(to))
            })
        })
    };
    put(&lab, "blue", &moved_config("10.1.0.0/16", "10.3.0.0/16", BLUE))?;
    moved("blue", "10.3.")?;
    put(&lab, "green", &moved_config("10.2.0.0/16", "10.1.0.0/16", GREEN))?;
    moved("green", "10.1.")?;
    wait_ready(&lab)?;
    for network in ["blue", "green"] {
        put_up_bridges(&lab, network)?;
        wait_connected(&lab, network)?;
    }
    // They do not fight over it.
    let before = state(&lab)?;
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(state(&lab)?, before);
    Ok(())
}

#[test]
fn of_two_networks_with_one_vni_the_first_named_has_it_also_after_a_restart() -> Result<()> {
    let lab = nodes(2).start()?;
    put(&lab, "green", &config("10.2.0.0/16", BLUE))?;
    start(&lab)?;
    lab.wait_until("green's routes", LIMIT, || {
        lab.node(1).ip("route show dev flannel.1").is_ok_and(|routes| routes.contains("10.2."))
    })?;
    put(&lab, "blue", &config("10.1.0.0/16", BLUE))?;
    let blue_has_it = || {
        lab.wait_until("blue to have the device, and green to say so", LIMIT, || {
            let routes = lab.node(1).ip("route show dev flannel.1").unwrap_or_default();
            let said = readiness(&lab);
            let right = routes.contains("10.1.") && !routes.contains("10.2.");
            match right
                && said.contains("network green: its device flannel.1 is that of the network blue")
            {
                true => Ok(()),
                false => Err(format!("{routes}\n{said}")),
            }
        })
    };
    blue_has_it()?;
    put_up_bridges(&lab, "blue")?;
    wait_connected(&lab, "blue")?;
    for _ in 0..3 {
        lab.node(1).flanneld().kill9();
        lab.node(1).flanneld().start()?;
        blue_has_it()?;
        wait_connected(&lab, "blue")?;
    }
    Ok(())
}
