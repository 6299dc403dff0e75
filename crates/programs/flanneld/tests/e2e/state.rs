//! What a daemon says of itself, asked by `flannelctl` as an operator does it.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;

use flannel_lab::{Lab, LabError, Result, Vandalism};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use serde_json::Value;

use crate::support::{
    LIMIT, connected_pods, door, flanneld, lab, lease_path, peer, probe, probe_by, put_peers,
};

fn flannelctl(lab: &Lab, node: u16, words: &[&str]) -> Result<String> {
    let program = flanneld().with_file_name("flannelctl");
    let mut command = vec![program.to_str().unwrap()];
    command.extend(words);
    lab.node(node).exec(&command)
}

/// Waits until node 1 says so, in words or in JSON.
fn says(lab: &Lab, words: &[&str], parts: &[&str]) -> Result<String> {
    lab.wait_until("node 1 to say so", LIMIT, || {
        // What is not whole ends with a failure.
        let program = flanneld().with_file_name("flannelctl");
        let words: Vec<&str> = [program.to_str().unwrap()].iter().chain(words).copied().collect();
        let said = lab.node(1).output(&words)?.stdout;
        let all = parts.iter().all(|part| said.contains(part));
        if all { Ok(said) } else { Err(LabError::Spec(format!("{words:?}: {said}"))) }
    })
}

#[test]
fn a_node_tells_what_it_has_and_what_happened() -> Result<()> {
    let lab = lab(2).start()?;
    connected_pods(&lab)?;
    let node = lab.node(1);
    let whole = flannelctl(&lab, 1, &["status", "--wait"])?;
    for part in
        ["the network is healthy", "vxlan, MTU 1450", "eth0 ", "peers     1", "all in place"]
    {
        assert!(whole.contains(part), "{part}: {whole}");
    }
    let state: serde_json::Value =
        serde_json::from_str(&flannelctl(&lab, 1, &["status", "-o", "json"])?).unwrap();
    assert_eq!(state["schema"], 1, "{state}");
    let network = &state["networks"][0];
    assert_eq!(network["mtuWhy"], "eth0 has 1500, vxlan takes 50", "{state}");
    assert_eq!(network["config"]["Network"], "10.244.0.0/16", "{state}");
    assert_eq!(network["config"]["Backend"]["Type"], "vxlan", "{state}");
    let wide = flannelctl(&lab, 1, &["status", "-o", "wide"])?;
    assert!(wide.contains("vxlan, MTU 1450: eth0 has 1500, vxlan takes 50\n"), "{wide}");
    assert!(
        wide.contains("config    {") && wide.contains(r#""Network":"10.244.0.0/16""#),
        "{wide}"
    );
    assert_eq!(state["networks"][0]["store"]["up"], true, "{state}");
    assert!(state["networks"][0]["lease"]["remainingSeconds"].as_u64() > Some(80_000), "{state}");
    let peers = flannelctl(&lab, 1, &["peers"])?;
    assert_eq!(peers.lines().count(), 2, "a head and the other node: {peers}");
    assert!(peers.contains("vxlan") && peers.contains("programmed"), "{peers}");

    let subnet = state["networks"][0]["lease"]["subnet"].as_str().unwrap().to_owned();
    let other = peers.lines().nth(1).and_then(|line| line.split(' ').next()).unwrap();
    assert_ne!(other, subnet);
    node.vandalize(&Vandalism::RouteDelete(other.to_owned()))?;
    says(&lab, &["events"], &["entry-restored", &format!("restored route {other} after ")])?;
    lab.etcd()?.kill();
    says(&lab, &["status"], &["UNREACHABLE for"])?;
    says(&lab, &["events"], &["store-lost"])?;
    lab.etcd()?.restart()?;
    says(&lab, &["status"], &["up for"])?;
    says(&lab, &["events"], &["store-found"])?;
    Ok(())
}

#[test]
fn nobody_but_root_may_ask_and_a_daemon_killed_leaves_no_socket_in_the_way() -> Result<()> {
    let lab = lab(1).start()?;
    let node = lab.node(1);
    flannelctl(&lab, 1, &["status", "--wait"])?;
    let mode = node.exec(&["stat", "-c", "%a %F", "/run/flannel/flanneld.sock"])?;
    assert_eq!(mode.trim(), "600 socket");
    // On a thread of its own, which alone becomes somebody else.
    let (found, refused) = node.in_netns(|| {
        set_thread_uid(Uid::from_raw(65534)).unwrap();
        let socket = Path::new("/run/flannel/flanneld.sock");
        (socket.metadata().is_ok(), UnixStream::connect(socket).map(drop))
    })?;
    assert!(found, "it is not hidden");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    node.flanneld().kill9();
    let error = flannelctl(&lab, 1, &["status"]).unwrap_err().to_string();
    assert!(error.contains("is it running (on this node: `systemctl status flanneld`)"), "{error}");
    node.flanneld().start()?;
    flannelctl(&lab, 1, &["status", "--wait"])?;
    Ok(())
}

/// The lines of an answer of node 1's door.
fn told(lab: &Lab, method: &str, path: &str) -> Vec<Value> {
    let (status, text) = door(lab, 1, method, path).unwrap();
    assert_eq!(status, 200, "{path}: {text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_is_wanted_is_told_entry_by_entry_and_a_peer_that_lacks_one_is_incomplete() -> Result<()> {
    let lab = lab(1).start()?;
    flannelctl(&lab, 1, &["status", "--wait"])?;
    put_peers(&lab, 200..202)?;
    // Half of a subnet that another one has: their tunnels end at one address.
    lab.etcd()?.put(&lease_path(&lab, "10.244.201.0-25"), peer(202).1)?;
    let peers = lab.wait_until("the overlap to be told of", LIMIT, || {
        let peers = told(&lab, "GET", "/v1/peers");
        let is_found = peers.iter().any(|peer| peer["condition"] == "incomplete");
        let all = peers.len() == 3 && is_found;
        if all { Ok(peers) } else { Err(LabError::Spec(format!("{peers:?}"))) }
    })?;
    let condition = |subnet: &str| {
        let peer = peers.iter().find(|peer| peer["subnet"] == subnet).unwrap();
        (peer["condition"].as_str().unwrap(), peer["why"].as_str().unwrap_or_default())
    };
    for whole in ["10.244.200.0/24", "10.244.201.0/24"] {
        assert_eq!(condition(whole), ("programmed", ""));
    }
    let (incomplete, why) = condition("10.244.201.0/25");
    assert_eq!(incomplete, "incomplete");
    let both = "neighbour 10.244.201.0 lladdr 02:00:00:00:01:ca dev flannel.1: another requester wants another version: \
                neighbour 10.244.201.0 lladdr 02:00:00:00:01:c9 dev flannel.1";
    assert_eq!(why, both);

    says(&lab, &["status"], &["peers     3, 1 INCOMPLETE (`flannelctl peers` says why)"])?;

    let entries = told(&lab, "GET", "/v1/entries");
    let of = |subnet: &str| entries.iter().filter(|it| it["subnet"] == subnet).collect::<Vec<_>>();
    let kinds: Vec<_> = of("10.244.200.0/24").iter().map(|it| it["kind"].clone()).collect();
    assert_eq!(kinds, ["neighbour", "fdb", "route"], "{entries:?}");
    let device = entries.iter().find(|it| it["kind"] == "device").expect("the node's own");
    assert_eq!((&device["applier"], &device["subnet"]), (&"kernel".into(), &Value::Null));
    let wrong = told(&lab, "GET", "/v1/entries?wrong=1");
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert_eq!((&wrong[0]["state"], &wrong[0]["kind"]), (&"contested".into(), &"neighbour".into()));
    Ok(())
}

#[test]
fn a_repair_finds_what_nobody_told_of_and_puts_it_right() -> Result<()> {
    let lab = lab(1).start()?;
    let node = lab.node(1);
    flannelctl(&lab, 1, &["status", "--wait"])?;
    let kernel = |told: &[Value]| told.iter().find(|it| it["applier"] == "kernel").unwrap().clone();
    let whole = kernel(&told(&lab, "POST", "/v1/repair"));
    assert_eq!((&whole["found"], &whole["removed"]), (&0.into(), &Value::Array(vec![])), "{whole}");
    // Of such a setting the kernel tells nobody.
    let setting = "/proc/sys/net/ipv6/conf/flannel.1/accept_ra";
    node.exec(&["sh", "-c", &format!("echo 1 > {setting}")])?;
    assert_eq!(node.exec(&["cat", setting])?.trim(), "1");
    let found = kernel(&told(&lab, "POST", "/v1/repair"));
    assert_eq!(found["found"], 1, "{found}");
    assert_eq!(found["entries"][0]["entry"], "sysctl net.ipv6.conf.flannel.1.accept_ra=0");
    assert_eq!(found["entries"][0]["state"], "programmed");
    assert_eq!(node.exec(&["cat", setting])?.trim(), "0");
    // Rules that somebody removes are put right at once; a repair says that it has looked.
    let rules = told(&lab, "POST", "/v1/repair");
    let rules = rules.iter().find(|it| it["applier"] == "traffic-rules").expect("there are some");
    assert_eq!(
        (&rules["wanted"], &rules["found"], &rules["failure"]),
        (&3.into(), &0.into(), &Value::Null)
    );
    let entries = told(&lab, "GET", "/v1/entries");
    let rules = entries.iter().filter(|it| it["applier"] == "traffic-rules");
    let rules: Vec<&str> = rules.filter_map(|it| it["entry"].as_str()).collect();
    assert_eq!(
        rules,
        [
            "IPv4 forward rules of 10.244.0.0/16",
            "IPv4 tunnel guard input rules of 10.244.0.0/16",
            "IPv4 tunnel guard forward rules of 10.244.0.0/16",
        ]
    );
    says(&lab, &["events"], &["repair-asked"])?;
    Ok(())
}

/// The process of a tunnel is asked what it has, and the devices and routes beside it are compared as well.
#[test]
fn a_repair_asks_the_process_of_a_tunnel_what_it_has() -> Result<()> {
    let lab = lab(2).backend("udp").start()?;
    connected_pods(&lab)?;
    let repaired = told(&lab, "POST", "/v1/repair");
    let of = |applier: &str| repaired.iter().find(|it| it["applier"] == applier).unwrap().clone();
    let tunnel = of("tunnel");
    assert_eq!((&tunnel["wanted"], &tunnel["found"]), (&2.into(), &0.into()), "{tunnel}");
    assert_eq!(of("kernel")["found"], 0);
    let entries = told(&lab, "GET", "/v1/entries");
    let kinds = |applier: &str| {
        let of = entries.iter().filter(|it| it["applier"] == applier);
        of.map(|it| it["kind"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(kinds("tunnel"), ["tunnel", "tunnel-peer"]);
    connected_pods(&lab).map(drop)
}

#[test]
fn the_probe_port_tells_everybody_the_state_and_lets_nobody_do_anything() -> Result<()> {
    let lab = lab(2).start()?;
    flannelctl(&lab, 1, &["status", "--wait"])?;
    let ask = |path: &str| probe(&lab, 1, path).unwrap().expect("it answers");
    let (status, state) = ask("/v1/state");
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!((status, &state["networks"][0]["verdict"]), (200, &"ready".into()));
    assert_eq!(state["networks"][0]["mtuWhy"], "eth0 has 1500, vxlan takes 50");
    assert_eq!(state["networks"][0]["config"], Value::Null, "that is root's to know");
    lab.wait_until("the other node", LIMIT, || ask("/v1/peers").1.lines().count() == 1)?;
    assert!(ask("/v1/events").1.contains("\"ready\""));
    // It ends: nobody outside may keep a daemon busy.
    assert_eq!(ask("/v1/events?follow=1").0, 200);
    assert_eq!(ask("/v1/entries").0, 403);
    for (method, path, refused) in
        [("POST", "/v1/repair", 403), ("POST", "/v1/state", 405), ("DELETE", "/v1/peers", 405)]
    {
        assert_eq!(probe_by(&lab, 1, method, path)?.0, refused, "{method} {path}");
    }
    assert_eq!(ask("/v1/").0, 404);
    Ok(())
}
