//! The udp backend for a long time, while cables are pulled, peers come and go, processes are killed and devices
//! removed: it neither panics, nor hangs, nor grows. A few seconds as a test; as long as wanted with
//! `FLANNEL_SOAK_SECONDS`.

use std::time::{Duration, Instant};

use flannel_lab::{Lab, Node, Result};
use serde_json::json;

use crate::support::{lab, measured, seed};
use crate::udp::{kill9, reach_each_other, tunnel_pid};

const MB: u64 = 1 << 20;
/// A process may keep what it has once needed, and no more with time.
const MOST_GROWTH_KB: u64 = 8 << 10;
const PEERS: u32 = 500;

fn length() -> Duration {
    let wished = std::env::var("FLANNEL_SOAK_SECONDS").ok();
    let seconds = wished.map_or(6, |text| text.parse().expect("FLANNEL_SOAK_SECONDS is a number"));
    Duration::from_secs(seconds)
}

/// What a process weighs: resident memory in kB, open files, threads.
fn weight(node: &Node, pid: u32) -> (u64, usize, u64) {
    let status = node.read_file(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let files = node.exec(&["ls", &format!("/proc/{pid}/fd")]).unwrap().lines().count();
    (field("VmRSS:"), files, field("Threads:"))
}

fn come_and_go(lab: &Lab, round: u32) -> Result<()> {
    let etcd = lab.etcd()?;
    let leases: Vec<(String, String)> = (0..PEERS)
        .map(|number| {
            let key = format!("/coreos.com/network/subnets/10.200.{}.0-24", number % 250);
            let address = format!("172.16.{}.{}", round % 250, number % 250);
            (key, json!({"PublicIP": address, "BackendType": "udp"}).to_string())
        })
        .collect();
    etcd.put_many(&leases)?;
    etcd.delete("/coreos.com/network/subnets/10.200.7.0-24")?;
    Ok(())
}

#[test]
fn a_soak_of_udp_neither_hangs_nor_grows() -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed());
    let config = r#"{"Network": "10.128.0.0/9", "SubnetMin": "10.244.0.0", "SubnetMax": "10.244.255.0",
        "Backend": {"Type": "udp"}}"#;
    let lab = lab(3).config_json(config).start()?;
    let pods = lab.pod_on_every_node()?;
    reach_each_other(&lab)?;
    let begin = Instant::now();
    let mut first = None;
    let mut rounds = 0;
    while begin.elapsed() < length() || rounds < 3 {
        let victim = lab.node(rng.u16(1..=3));
        let deed = rng.u8(0..6);
        match deed {
            0 => {
                victim.unplug()?;
                std::thread::sleep(Duration::from_millis(rng.u64(0..300)));
                victim.plug()?;
            }
            1 => {
                victim.flanneld().kill9();
                victim.flanneld().restart()?;
            }
            2 => {
                victim.ip("link del flannel0")?;
            }
            3 => {
                victim.nic_down()?;
                victim.nic_up()?;
            }
            4 => come_and_go(&lab, rounds)?,
            // Seldom: what is to be watched for growth would begin anew.
            _ if rounds % 16 == 0 && victim.number() != 1 => {
                if let Some(pid) = tunnel_pid(victim) {
                    kill9(victim, pid);
                }
            }
            _ => {}
        }
        reach_each_other(&lab)?;
        let (from, to) = (rng.usize(0..3), rng.usize(0..3));
        if from != to {
            lab.tcp_transfer(&pods[from], &pods[to], 4 * MB)?;
        }
        rounds += 1;
        let pid = tunnel_pid(lab.node(1)).expect("a tunnel process");
        let now = weight(lab.node(1), pid);
        // By then it has met most of what it meets.
        if rounds == 3 || (first.is_none() && rounds > 3) {
            first = Some((pid, now));
        }
    }
    let pid = tunnel_pid(lab.node(1)).expect("a tunnel process");
    let last = weight(lab.node(1), pid);
    let (first_pid, first) = first.expect("three rounds were run");
    measured(format_args!(
        "{rounds} rounds in {:.0?}: {first:?} became {last:?} (kB, files, threads)",
        begin.elapsed()
    ));
    assert_eq!(pid, first_pid, "node 1's process was killed by nobody, so it is still the same");
    assert!(last.0 < first.0 + MOST_GROWTH_KB, "memory");
    assert!(last.1 <= first.1 + 2, "open files");
    assert!(last.2 <= first.2 + 2, "threads");
    for node in lab.nodes() {
        let log = node.flanneld().log();
        assert!(!log.contains("panicked"), "{log}");
    }
    Ok(())
}
