//! The process that carries packets in user space: when its port is taken, when it hangs, and when it hands over.

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use flannel_lab::{LabBuilder, LabError, Node, Result};
use serde_json::Value;

use crate::devices::not_ready;
use crate::support::{LIMIT, connected_pods, lab, measured, probe, reach_each_other};
use crate::udp::{kill9, tunnel_pid};

fn userspace_wireguard(nodes: u16) -> LabBuilder {
    lab(nodes).backend("wireguard").env("WIREGUARD_IMPLEMENTATION", "userspace")
}

/// Each time somebody asks for metrics while the port is taken is one on which it was not tried again.
#[test]
fn a_port_that_was_taken_for_a_while_is_used_as_soon_as_it_is_free() -> Result<()> {
    for (builder, port) in [(lab(2).backend("udp"), 8285), (userspace_wireguard(2), 51820)] {
        let lab = builder.start()?;
        let (one, two) = connected_pods(&lab)?;
        let node = lab.node(1);
        node.flanneld().stop()?;
        kill9(node, tunnel_pid(node).expect("a tunnel process"));
        let taken = lab.wait_until("the port", LIMIT, || {
            node.in_netns(|| UdpSocket::bind(("0.0.0.0", port))).expect("a thread")
        })?;
        node.flanneld().start()?;
        not_ready(&lab, &["cannot listen on UDP", &port.to_string(), "ss -ulnp"])?;
        let scrape = || probe(&lab, 1, "/metrics").map(drop);
        for _ in 0..20 {
            scrape()?;
        }
        drop(taken);
        let begin = Instant::now();
        lab.wait_until("the tunnel to listen", LIMIT, || {
            scrape()?;
            let answer = probe(&lab, 1, "/readyz")?;
            let (status, why) = answer.map_err(|error| LabError::Spec(error.to_string()))?;
            if status == 200 { Ok(()) } else { Err(LabError::Spec(why)) }
        })?;
        measured(format_args!("port {port} was used {:?} after it was free", begin.elapsed()));
        reach_each_other(&lab, &one, &two)?;
    }
    Ok(())
}

#[test]
fn a_stopped_tunnel_process_is_named_and_replaced_within_seconds() -> Result<()> {
    let lab = userspace_wireguard(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let stopped = tunnel_pid(node).expect("a tunnel process");
    node.exec(&["kill", "-STOP", &stopped.to_string()])?;
    let begin = Instant::now();
    lab.wait_until("another tunnel process", LIMIT, || {
        tunnel_pid(node).is_some_and(|now| now != stopped)
    })?;
    measured(format_args!("replaced {:?} after it was stopped", begin.elapsed()));
    reach_each_other(&lab, &one, &two)?;
    let log = node.flanneld().log();
    let named = format!(
        "tunnel process of flannel-wg does not answer: it is stopped (SIGSTOP), pid {stopped}"
    );
    assert!(log.contains(&named), "{log}");
    // So it is when nobody was there to notice.
    let stopped = tunnel_pid(node).expect("a tunnel process");
    node.flanneld().stop()?;
    node.exec(&["kill", "-STOP", &stopped.to_string()])?;
    node.flanneld().restart()?;
    reach_each_other(&lab, &one, &two)?;
    assert_ne!(tunnel_pid(node), Some(stopped));
    Ok(())
}

/// Asks the tunnel process of a node for all that it has, as one that takes over does, and goes.
fn take_and_vanish(node: &Node) -> Value {
    let pid = node.flanneld().pid().expect("a daemon");
    let socket = format!("/proc/{pid}/root/run/flannel/tunnel-flannel-wg.sock");
    let mut stream = UnixStream::connect(socket).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let request = br#""HandOver""#;
    stream.write_all(&(request.len() as u32).to_be_bytes()).expect("it is sent");
    stream.write_all(request).expect("it is sent");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).expect("all of it");
    serde_json::from_slice(&answer).expect("JSON")
}

/// The keys of all sessions of all peers, both ways.
fn keys(answer: &Value) -> Vec<Value> {
    let peers = answer["Handed"]["wireguard"].as_array().expect("peers");
    let sessions =
        peers.iter().flat_map(|peer| [&peer["current"], &peer["previous"], &peer["next"]]);
    let keys = sessions.flat_map(|it| [it["sending"].clone(), it["receiving"].clone()]);
    keys.filter(Value::is_array).collect()
}

#[test]
fn sessions_that_left_a_tunnel_process_are_not_used_there_again() -> Result<()> {
    let lab = userspace_wireguard(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let process = tunnel_pid(node);
    let left = keys(&take_and_vanish(node));
    assert!(!left.is_empty());
    reach_each_other(&lab, &one, &two)?;
    let used = keys(&take_and_vanish(node));
    assert!(!used.is_empty() && used.iter().all(|key| !left.contains(key)));
    reach_each_other(&lab, &one, &two)?;
    assert_eq!(tunnel_pid(node), process, "it goes on itself");
    Ok(())
}
