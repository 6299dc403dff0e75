//! A config that this node cannot use costs it nothing: what works is not taken away for what is not known to work.

use std::net::UdpSocket;

use flannel_lab::{Lab, LabError, Result};
use serde_json::{Value, json};

use crate::probing::flannelctl;
use crate::support::{
    Held, Kernel, LIMIT, both_ways, both_ways_through_process, connected_pods, difference,
    is_emulated, lab, measured, probe, reach_each_other,
};

fn config(backend: Value) -> String {
    json!({"Network": "10.244.0.0/16", "Backend": backend}).to_string()
}

/// UDP sockets that hold these ports on both nodes, for as long as they are kept.
fn hold_ports(lab: &Lab, ports: &[u16]) -> Result<Vec<UdpSocket>> {
    let mut held = Vec::new();
    for node in lab.nodes() {
        for port in ports {
            let address = ("0.0.0.0", *port);
            held.push(node.in_netns(|| UdpSocket::bind(address))?.expect("a free port"));
        }
    }
    Ok(held)
}

/// Writes a config that no node can use: it is refused for this reason, and vxlan loses no packet meanwhile.
pub(crate) fn vxlan_outlives(lab: &Lab, backend: Value, why: &str) -> Result<()> {
    let (one, two) = connected_pods(lab)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let (before, leases) = (kernel.held(), lab.leases()?);
    let traffic = both_ways(lab, &one, &two)?;
    refused(lab, backend, why)?;
    traffic.flow(lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    nothing_is_left(lab, &mut kernel, &before)?;
    assert_eq!(lab.leases()?, leases);
    Ok(())
}

/// Waits until node 1 has nothing of a trial. It is tried again and again: what is made for a moment is seen to go.
fn nothing_is_left(lab: &Lab, kernel: &mut Kernel, before: &Held) -> Result<()> {
    lab.wait_until("nothing to be left of the trial", LIMIT, || {
        let held = kernel.held();
        let tunnels = lab.node(1).exec(&["ls", "/run/flannel"])?;
        match held == *before && !tunnels.contains("try-") {
            true => Ok(()),
            false => Err(LabError::Spec(format!("{}; {tunnels}", difference(before, &held)))),
        }
    })
}

/// Waits until both nodes use the config that is in the store.
fn both_follow(lab: &Lab) -> Result<()> {
    lab.wait_until("both to follow", LIMIT, || {
        let ready = (1..=2).all(|node| matches!(probe(lab, node, "/readyz"), Ok(Ok((200, _)))));
        if ready { Ok(()) } else { Err("not ready") }
    })
}

/// Writes a config and waits until node 1 has said why it does not use it.
fn refused(lab: &Lab, backend: Value, why: &str) -> Result<()> {
    lab.put_config(&config(backend))?;
    lab.wait_until(why, LIMIT, || {
        let (status, text) = probe(lab, 1, "/readyz")?.unwrap();
        let keeps = text.contains("the node keeps its former network");
        if status == 503 && keeps && text.contains(why) {
            Ok(())
        } else {
            Err(LabError::Spec(text))
        }
    })?;
    Ok(())
}

#[test]
fn a_backend_that_cannot_be_made_here_costs_no_packet_nor_does_a_restart_with_it() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;
    let (before, leases) = (kernel.held(), lab.leases()?);
    let remembered = "/run/flannel/subnet.config";
    lab.wait_until("the config to be remembered", LIMIT, || node.read_file(remembered).is_ok())?;
    let traffic = both_ways(&lab, &one, &two)?;
    // Both nodes: what one of them changes to, the other could not follow.
    for node in lab.nodes() {
        node.ip("link add stranger type vxlan id 42 dev eth0 dstport 8472")?;
        node.exec(&["mount", "--bind", "/dev/null", "/dev/net/tun"])?;
    }
    let has_ipip = node.output(&["ip", "link", "add", "probe0", "type", "ipip"])?.status.success();
    refused(&lab, json!({"Type": "vxlan", "VNI": 42}), "stranger is in the way")?;
    refused(&lab, json!({"Type": "udp"}), "/dev/net/tun")?;
    if !has_ipip {
        refused(&lab, json!({"Type": "ipip"}), "this kernel has no ipip devices")?;
    }
    node.flanneld().stop()?;
    node.flanneld().start()?;
    let why = if has_ipip { "/dev/net/tun" } else { "this kernel has no ipip devices" };
    lab.wait_until("the reason after a restart", LIMIT, || {
        let (_, text) =
            probe(&lab, 1, "/readyz")?.map_err(|error| LabError::Spec(error.to_string()))?;
        if text.contains(why) { Ok(()) } else { Err(LabError::Spec(text)) }
    })?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    nothing_is_left(&lab, &mut kernel, &before)?;
    assert_eq!(lab.leases()?, leases);
    // What stood in the way is gone: it is followed.
    node.ip("link del stranger")?;
    lab.node(2).ip("link del stranger")?;
    lab.put_config(&config(json!({"Type": "vxlan", "VNI": 42})))?;
    lab.wait_until("the change", LIMIT, || kernel.device("flannel.1").is_none())?;
    assert!(kernel.device("flannel.42").is_some());
    reach_each_other(&lab, &one, &two)
}

/// Packets that the queue of a device and the buffers of sockets had no room for, on each node.
fn dropped_by_queues(lab: &Lab, device: &str) -> Result<String> {
    let mut all = Vec::new();
    for node in lab.nodes() {
        let link = node.ip(&format!("-s link show {device}"))?;
        let sent = link.lines().last().unwrap_or_default().split_whitespace().nth(3);
        let udp = node.exec(&["cat", "/proc/net/snmp"])?;
        let udp = udp.lines().rfind(|line| line.starts_with("Udp: ")).unwrap_or_default();
        let buffer = udp.split_whitespace().nth(5);
        all.push(format!("{device} {}, sockets {}", sent.unwrap_or("?"), buffer.unwrap_or("?")));
    }
    Ok(all.join("; "))
}

#[test]
fn a_port_that_another_program_has_is_tried_under_another_name_and_costs_no_packet() -> Result<()> {
    let lab = lab(2).backend("udp").realtime().start()?;
    let (one, two) = connected_pods(&lab)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let before = kernel.held();
    let busy = hold_ports(&lab, &[9999])?;
    let traffic = both_ways_through_process(&lab, &one, &two)?;
    refused(&lab, json!({"Type": "udp", "Port": 9999}), "9999")?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(format_args!("{reports}; dropped: {}", dropped_by_queues(&lab, "flannel0")?));
    reports.nothing_is_lost();
    nothing_is_left(&lab, &mut kernel, &before)?;
    drop(busy);
    both_follow(&lab)?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn vxlan_goes_on_where_there_is_no_charon_for_ipsec() -> Result<()> {
    assert!(!is_emulated(), "the machine of scripts/vm has a charon");
    let lab = lab(2).start()?;
    vxlan_outlives(&lab, json!({"Type": "ipsec", "PSK": "x".repeat(96)}), "there is no charon")
}

#[test]
#[ignore = "needs a kernel with wireguard: scripts/vm has one"]
fn vxlan_goes_on_while_another_program_has_the_port_of_wireguard() -> Result<()> {
    let lab = lab(2).start()?;
    let busy = hold_ports(&lab, &[51820])?;
    vxlan_outlives(&lab, json!({"Type": "wireguard"}), "51820")?;
    drop(busy);
    both_follow(&lab)?;
    assert!(Kernel::of(lab.node(1))?.device("flannel-wg").is_some());
    let (one, two) = connected_pods(&lab)?;
    reach_each_other(&lab, &one, &two)
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn vxlan_goes_on_while_another_program_has_the_ports_of_ipsec() -> Result<()> {
    let lab = lab(2).start()?;
    let busy = hold_ports(&lab, &[500, 4500])?;
    let psk = "x".repeat(96);
    vxlan_outlives(&lab, json!({"Type": "ipsec", "PSK": psk}), "UDP port 500")?;
    drop(busy);
    both_follow(&lab)?;
    let (one, two) = connected_pods(&lab)?;
    reach_each_other(&lab, &one, &two)
}

#[test]
#[ignore = "needs a kernel with ipip and wireguard: scripts/vm has both"]
fn ipip_and_wireguard_replace_each_other_and_leave_nothing() -> Result<()> {
    let lab = lab(2).backend("ipip").start()?;
    let (one, two) = connected_pods(&lab)?;
    let mut kernel = Kernel::of(lab.node(1))?;
    let mut change = |kind: &str, there: &str, gone: &str| -> Result<()> {
        let traffic = both_ways(&lab, &one, &two)?;
        lab.put_config(&config(json!({"Type": kind})))?;
        lab.wait_until(kind, LIMIT, || kernel.device(gone).is_none())?;
        assert!(kernel.device(there).is_some(), "{there} was made before {gone} was removed");
        traffic.flow(&lab)?;
        measured(format_args!("to {kind}: {}", traffic.stop()));
        both_follow(&lab)?;
        reach_each_other(&lab, &one, &two)
    };
    change("wireguard", "flannel-wg", "flannel.ipip")?;
    change("ipip", "flannel.ipip", "flannel-wg")
}

#[test]
fn a_network_that_does_not_work_once_it_is_in_use_is_taken_back() -> Result<()> {
    let commands =
        |post: &str| json!({"Type": "extension", "Shell": true, "PostStartupCommand": post});
    let lab =
        lab(1).flag("--allow-commands").backend_json(commands("echo good >> /run/ran")).start()?;
    refused(&lab, commands("echo bad >> /run/ran; exit 3"), "exit status: 3")?;
    let node = lab.node(1);
    lab.wait_until("the former command to run again", LIMIT, || {
        let ran = node.read_file("/run/ran")?;
        let end: Vec<&str> = ran.lines().rev().take(2).collect();
        if end == ["good", "bad"] { Ok(()) } else { Err(LabError::Spec(ran)) }
    })?;
    lab.put_config(&config(commands("echo better >> /run/ran")))?;
    lab.start_daemons()
}

#[test]
fn config_set_asks_nodes_and_writes_nothing_that_one_of_them_cannot_use() -> Result<()> {
    let lab = lab(2).start()?;
    let node = lab.node(1);
    lab.node(2).ip("link add stranger type vxlan id 42 dev eth0 dstport 8472")?;
    let etcd = format!("--etcd-endpoints={}", lab.etcd()?.endpoints());
    let set = |vni: u16, words: &[&str]| -> Result<(bool, String)> {
        node.write_file("/run/new.json", &config(json!({"Type": "vxlan", "VNI": vni})))?;
        let command = ["config", "set", &etcd, "/run/new.json"];
        Ok(flannelctl(&lab, 1, &[&command[..], words].concat()))
    };
    let (written, said) = set(42, &[])?;
    assert!(!written && said.contains("nothing was written: 1 of 2 nodes"), "{said}");
    assert!(said.contains("stranger is in the way"), "{said}");
    let mut kernels = [Kernel::of(node)?, Kernel::of(lab.node(2))?];
    for kernel in &mut kernels {
        lab.wait_until("the trial to be over", LIMIT, || kernel.device("flannel.42").is_none())?;
        assert!(kernel.device("flannel.1").is_some());
    }
    let (written, said) = set(43, &[])?;
    assert!(written && said.is_empty(), "{said}");
    let (written, said) = set(42, &["--force"])?;
    assert!(written && said.contains("these keep their former network"), "{said}");
    lab.wait_until("node 1 to follow", LIMIT, || kernels[0].device("flannel.42").is_some())?;
    assert!(kernels[1].device("flannel.43").is_some());
    Ok(())
}
