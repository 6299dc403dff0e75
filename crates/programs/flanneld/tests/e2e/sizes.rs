//! Whatever a peer writes, what a daemon keeps and says of it has a size.

use flannel_lab::{Lab, Result};

use crate::support::{LIMIT, door, lab, lease_path, peer, put_peers};

/// Before values had a size, each of these stayed in the history as long as it was.
const LARGE_WRITES: usize = 24;
const LARGE: usize = 1_000_000;

fn resident_kilobytes(lab: &Lab) -> Result<u64> {
    let pid = lab.node(1).flanneld().pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    Ok(line.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number"))
}

#[test]
fn large_values_of_one_lease_grow_neither_memory_nor_log_nor_history() -> Result<()> {
    let lab = lab(1).start()?;
    put_peers(&lab, 100..101)?;
    let reaches = |net: &str| lab.node(1).ip("route").is_ok_and(|all| all.contains(net));
    lab.wait_until("a peer", LIMIT, || reaches("10.244.100.0/24"))?;
    let (before, log_before) = (resident_kilobytes(&lab)?, lab.node(1).flanneld().log().len());
    let (key, value) = peer(50);
    for round in 0..LARGE_WRITES {
        let large = format!("{round}{}", "x".repeat(LARGE));
        let (key, value) = match round % 4 {
            0 => (key.clone(), value.replace("\"vxlan\"", &format!("\"{large}\""))),
            1 => (key.clone(), value.replace("02:00:00:00:01:32", &large)),
            2 => (key.clone(), value.replace("null", &format!("\"{large}\""))),
            _ => (large, value.clone()),
        };
        lab.etcd()?.put(&lease_path(&lab, &key), &value)?;
    }
    // What comes after them has been read after them.
    put_peers(&lab, 101..102)?;
    lab.wait_until("another peer", LIMIT, || reaches("10.244.101.0/24"))?;
    let log = lab.node(1).flanneld().log();
    let longest = log.lines().map(str::len).max().unwrap_or_default();
    assert!(longest < 20_000, "a line of {longest} bytes");
    let grown = log.len() - log_before;
    assert!(grown < 100_000, "{grown} bytes of log");
    assert!(
        log.contains("restart flanneld on the node that wrote it"),
        "it is said why they are not used:\n{log}"
    );
    let (_, events) = door(&lab, 1, "GET", "/v1/events").expect("the daemon answers");
    assert!(events.len() < 200_000, "{} bytes of history", events.len());
    let after = resident_kilobytes(&lab)?;
    let all = (LARGE_WRITES * LARGE / 1_000) as u64;
    assert!(after < before + all / 2, "{before} kB became {after} kB after {all} kB were written");
    Ok(())
}
