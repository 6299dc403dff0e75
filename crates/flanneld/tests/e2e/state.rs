//! What a daemon says of itself, asked by `flannelctl` as an operator does it.

use flannel_lab::{Lab, LabError, Result, Vandalism};

use crate::support::{LIMIT, connected_pods, flanneld, lab};

fn flannelctl(lab: &Lab, node: u16, words: &[&str]) -> Result<String> {
    let program = flanneld().with_file_name("flannelctl");
    let mut command = vec![program.to_str().unwrap()];
    command.extend(words);
    lab.node(node).exec(&command)
}

/// Waits until node 1 says so, in words or in JSON.
fn says(lab: &Lab, words: &[&str], parts: &[&str]) -> Result<String> {
    lab.wait_until("node 1 to say so", LIMIT, || {
        // What is not whole ends with a failure, whose text holds what was printed.
        let said = flannelctl(lab, 1, words).unwrap_or_else(|error| error.to_string());
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
    for part in ["the network is whole", "vxlan, MTU 1450", "eth0 ", "peers     1", "all in place"]
    {
        assert!(whole.contains(part), "{part}: {whole}");
    }
    let state: serde_json::Value =
        serde_json::from_str(&flannelctl(&lab, 1, &["status", "-o", "json"])?).unwrap();
    assert_eq!(state["schema"], 1, "{state}");
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
    says(&lab, &["status"], &["AWAY for"])?;
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
    node.flanneld().kill9();
    let error = flannelctl(&lab, 1, &["status"]).unwrap_err().to_string();
    assert!(error.contains("is it running on this node"), "{error}");
    node.flanneld().start()?;
    flannelctl(&lab, 1, &["status", "--wait"])?;
    Ok(())
}
