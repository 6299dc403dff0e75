//! What happened on a node, as `flannelctl events` tells it.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use flannel_lab::{Lab, Process, Result};

use crate::support::{LIMIT, flanneld, lab, lease_path, put_peers};

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
