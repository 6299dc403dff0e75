//! What others write while a node runs and what does not go together with what it has: it keeps what it
//! has, and `/readyz` says so until that is over.

use std::time::Duration;

use flannel_lab::{Lab, Result};
use serde_json::json;

use crate::support::{LIMIT, lab, lease_path, own_key, peer, probe, put_peers};

fn config(network: &str, vni: u32) -> String {
    json!({"Network": network, "Backend": {"Type": "vxlan", "VNI": vni}}).to_string()
}

/// With the operator's word that it takes the place of another network.
fn moved(network: &str, vni: u32, from: &str) -> String {
    let backend = json!({"Type": "vxlan", "VNI": vni});
    json!({"Network": network, "Backend": backend, "Replaces": [from]}).to_string()
}

/// Waits until `/readyz` of node 1 answers with this status and says this.
fn says(lab: &Lab, status: u16, part: &str) -> Result<()> {
    lab.wait_until(&format!("{status} {part}"), LIMIT, || match probe(lab, 1, "/readyz") {
        Ok(Ok((now, text))) if now == status && text.contains(part) => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

#[test]
fn a_network_that_moves_into_another_is_not_ready_until_that_one_has_moved_on() -> Result<()> {
    let lab = lab(1).no_daemons().flag("--networks=blue,green").start()?;
    let put = |name: &str, config: &str| {
        lab.etcd()?.put(&format!("{}/{name}/config", lab.spec().etcd_prefix), config)
    };
    put("blue", &config("10.1.0.0/16", 1))?;
    put("green", &config("10.2.0.0/16", 2))?;
    lab.node(1).flanneld().start()?;
    says(&lab, 200, "")?;
    put("green", &moved("10.1.128.0/17", 2, "10.2.0.0/16"))?;
    says(&lab, 503, "network green: The new network config cannot be used here")?;
    says(&lab, 503, "overlap 10.1.0.0/16 of the network blue")?;
    // Nobody writes green's again: it is tried when there is room.
    put("blue", &moved("10.3.0.0/16", 1, "10.1.0.0/16"))?;
    says(&lab, 200, "")?;
    let text = lab.node(1).read_file("/run/flannel/networks/green.env")?;
    assert!(text.contains("FLANNEL_NETWORK=10.1.128.0/17"), "{text}");
    Ok(())
}

#[test]
fn a_config_that_cannot_be_used_makes_a_node_unready_until_it_is_gone() -> Result<()> {
    let lab = lab(1).start()?;
    says(&lab, 200, "")?;
    for (bad, part) in [
        ("{", "cannot be read"),
        (r#"{"Network":"10.244.0.0/16","Backend":{"Type":"azure"}}"#, "'azure'"),
        (r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":-1}}"#, "Backend.VNI -1"),
    ] {
        lab.put_config(bad)?;
        says(&lab, 503, part)?;
        says(&lab, 503, "the node keeps its former network")?;
    }
    lab.put_config(&lab.spec().network_config().to_string())?;
    says(&lab, 200, "")
}

/// Whoever can write one key could else make every node not ready.
#[test]
fn a_lease_that_overlaps_ours_is_a_finding_and_the_node_stays_ready() -> Result<()> {
    let lab = lab(1).start()?;
    says(&lab, 200, "")?;
    let own = own_key(&lab, 1)?;
    let half = own.replace("-24", "-25");
    let third: u8 = own.split('.').nth(2).and_then(|text| text.parse().ok()).expect("a subnet");
    let around = if third < 128 { "10.244.0.0-17" } else { "10.244.128.0-17" };
    let (_, theirs) = peer(177);
    for key in [half.as_str(), around] {
        lab.etcd()?.put(&lease_path(&lab, key), &theirs)?;
    }
    says(&lab, 200, "its subnet overlaps ours; `flannelctl release")?;
    let (status, state) = probe(&lab, 1, "/v1/state")?.expect("the daemon answers");
    assert!(status == 200 && state.contains("its subnet overlaps ours"), "{status} {state}");
    let route = lab.node(1).ip("route")?;
    assert!(!route.contains("192.168.100.177") && !route.contains("/17"), "{route}");
    for key in [half.as_str(), around] {
        assert!(lab.etcd()?.delete(&lease_path(&lab, key))?);
    }
    lab.wait_until("nothing to say", LIMIT, || match probe(&lab, 1, "/readyz") {
        Ok(Ok((200, text))) if !text.contains("overlaps") => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

#[test]
fn a_node_whose_lease_is_written_by_another_again_and_again_is_not_ready() -> Result<()> {
    let lab = lab(1).start()?;
    says(&lab, 200, "")?;
    let path = lease_path(&lab, &own_key(&lab, 1)?);
    for number in 1..5 {
        // Another machine with the same address and a tunnel of its own.
        let mac = format!("02:00:00:00:02:{number:02x}");
        let data = json!({"VNI": 1, "VtepMAC": mac});
        let theirs =
            json!({"PublicIP": "192.168.100.1", "BackendType": "vxlan", "BackendData": data});
        lab.etcd()?.put(&path, theirs.to_string())?;
        std::thread::sleep(Duration::from_millis(200));
    }
    says(&lab, 503, "was written by another node, which announces itself at 192.168.100.1")?;
    says(&lab, 503, "give each its own --public-ip")
}

#[test]
fn a_reservation_for_a_node_that_has_not_come_is_no_reason_to_warn() -> Result<()> {
    let lab = lab(1).start()?;
    says(&lab, 200, "")?;
    let reserved = r#"{"PublicIP":"192.168.100.177","PublicIPv6":null}"#;
    lab.etcd()?.put(&lease_path(&lab, "10.244.177.0-24"), reserved)?;
    // One that is told of, so that we know that the other was seen.
    put_peers(&lab, std::iter::once(178))?;
    let other = r#"{"PublicIP":"192.168.100.179","BackendType":"ipip"}"#;
    lab.etcd()?.put(&lease_path(&lab, "10.244.179.0-24"), other)?;
    let daemon = lab.node(1).flanneld();
    lab.wait_until("the word", LIMIT, || daemon.log().contains("it uses the backend 'ipip'"))?;
    let log = daemon.log();
    assert!(!log.contains("10.244.177.0"), "{log}");
    std::thread::sleep(Duration::from_millis(100));
    says(&lab, 200, "")
}
