//! What happened on a node, as `flannelctl events` tells it.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use flannel_lab::{Lab, LabError, Process, Result};
use serde_json::Value;

use crate::support::{LIMIT, door, flanneld, lab, lease_path, peer, put_peers};

/// `flannelctl events` on node 1, which goes on writing to a file.
fn follow(lab: &Lab, more: &[&str], file: &Path) -> Result<Process> {
    let mut events = Command::new(flanneld().with_file_name("flannelctl"));
    events.args(["events", "--follow"]).args(more).stdout(File::create(file).unwrap());
    lab.node(1).spawn(events)
}

#[test]
fn what_happens_is_followed_from_the_last_events_on() -> Result<()> {
    let lab = lab(1).start()?;
    put_peers(&lab, 200..202)?;
    let flannelctl = flanneld().with_file_name("flannelctl");
    let ask = |words: &[&str]| {
        let words = [&[flannelctl.to_str().unwrap(), "events"], words].concat();
        lab.node(1).exec(&words)
    };
    lab.wait_until("the peers", LIMIT, || {
        ask(&[]).unwrap().matches("peer-announced").count() == 2
    })?;
    let last = ask(&["--last", "1"])?;
    assert!(last.lines().count() == 1 && last.contains("10.244.201.0/24"), "{last}");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("events");
    let followed = follow(&lab, &["--last", "1"], &file)?;
    let told = || std::fs::read_to_string(&file).unwrap();
    lab.wait_until("the last event", LIMIT, || told() == last)?;
    assert!(lab.etcd()?.delete(&lease_path(&lab, "10.244.200.0-24"))?);
    lab.wait_until("what happens next", LIMIT, || {
        told().contains("peer-gone") && told().contains("10.244.200.0/24")
    })?;
    assert!(followed.is_running());
    Ok(())
}

/// Waits until node 1 tells through its door of such an event, with these words in it.
fn told(lab: &Lab, kind: &str, words: &str) -> Result<Value> {
    lab.wait_until(&format!("{kind}: {words}"), LIMIT, || {
        let (_, text) = door(lab, 1, "GET", "/v1/events").unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is_meant = |event: &Value| event["what"].as_str().unwrap().contains(words);
        let found = events.filter(|event| event["kind"] == kind).find(is_meant);
        found.ok_or(LabError::Spec(text))
    })
}

/// Of what was restored: who undid it, and that it says how long it was away.
fn undone_by(event: &Value) -> &str {
    assert!(event["afterMicros"].as_u64() > Some(0), "{event}");
    event["undoneBy"].as_str().unwrap_or_else(|| panic!("{event}"))
}

#[test]
fn peers_that_come_change_and_leave_are_told_of() -> Result<()> {
    let lab = lab(1).start()?;
    put_peers(&lab, 200..201)?;
    told(&lab, "peer-announced", "Peer 10.244.200.0/24 is at 192.168.100.200")?;
    let (key, value) = peer(200);
    let path = lease_path(&lab, &key);
    lab.etcd()?.put(&path, value.replace("192.168.100.200", "192.168.100.250"))?;
    told(&lab, "peer-changed", "10.244.200.0/24 has announced itself again, at 192.168.100.250")?;
    assert!(lab.etcd()?.delete(&path)?);
    told(&lab, "peer-gone", "Peer 10.244.200.0/24 is gone").map(drop)
}

#[test]
fn another_address_of_the_node_is_told_of() -> Result<()> {
    let lab = lab(1).start()?;
    lab.change_address(1, "192.168.100.77".parse().unwrap())?;
    told(&lab, "address-changed", "192.168.100.77 on eth0 now; it had 192.168.100.1 on eth0")?;
    told(&lab, "node-announced", "again").map(drop)
}

#[test]
fn what_is_restored_is_told_with_who_undid_it_and_for_how_long_it_was_away() -> Result<()> {
    let lab = lab(1).start()?;
    let node = lab.node(1);
    put_peers(&lab, 200..220)?;
    told(&lab, "peer-announced", "10.244.219.0/24")?;
    let shell = |command: &str| node.exec(&["sh", "-ec", command]);
    // Leases are told of when they are read, which is before their entries are in the kernel.
    let routes = || shell("ip route show dev flannel.1").map(|routes| routes.lines().count());
    lab.wait_until("the routes to all peers", LIMIT, || routes().is_ok_and(|routes| routes >= 20))?;
    // One, by a command that is still there when it is asked who it is.
    shell("ip route del 10.244.200.0/24 dev flannel.1; sleep 0.2")?;
    let one = told(&lab, "entry-restored", "restored route 10.244.200.0/24 after ")?;
    assert!(one["what"].as_str().unwrap().contains("(undone by "), "{one}");
    assert!(undone_by(&one).contains("process"), "{one}");
    assert_eq!(one["entries"], Value::Null);
    // Many at once.
    shell("ip route flush dev flannel.1 proto 244; sleep 0.2")?;
    let many = told(&lab, "entry-restored", " entries, ")?;
    assert!(many["entries"].as_u64() > Some(5), "{many}");
    assert!(undone_by(&many).contains("process"), "{many}");
    // And rules.
    shell("iptables -t nat -F; iptables -F; nft flush ruleset")?;
    let rules = told(&lab, "rules-restored", "restored the IPv4 traffic rules")?;
    assert!(undone_by(&rules).contains("process"), "{rules}");
    Ok(())
}
