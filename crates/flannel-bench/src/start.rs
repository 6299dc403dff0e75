//! The daemon from its start to all peers programmed, what it weighs then, and what it costs idle.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use flannel_lab::Lab;

use crate::table::{median, ms, ratio};
use crate::{engine, peers, routes};

const LIMIT: Duration = Duration::from_secs(120);
const IDLE: Duration = Duration::from_secs(3);

struct Measured {
    start: Duration,
    resident_kb: u64,
    idle_cpu: f64,
}

pub(crate) fn run(counts: &[u32], rounds: usize, against: Option<PathBuf>) -> anyhow::Result<()> {
    for &count in counts {
        let lab = Lab::builder().nodes(1).config_json(peers::CONFIG).no_daemons().start()?;
        let etcd = lab.etcd()?;
        let leases: Vec<(String, String)> = (0..count)
            .map(peers::lease)
            .map(|(key, value)| (format!("/coreos.com/network/subnets/{key}"), value))
            .collect();
        etcd.put_many(&leases)?;
        println!("{count} leases in etcd, median of {rounds} starts");
        let desired = peers::desired(count)?;
        let mut raw = Vec::new();
        let mut ones = Vec::new();
        let mut ours = Vec::new();
        for _ in 0..rounds {
            let (batches, one_by_one) = lab.node(1).in_netns(|| engine::raw_times(&desired))??;
            raw.push(batches);
            ones.push(one_by_one);
            ours.push(measure(&lab, count, None)?);
        }
        let (raw, ones) = (median(raw), median(ones));
        let mine = report("flannel-rs", &ours);
        println!("  raw netlink batches of the same entries  {:>10}", ms(raw));
        println!("  one request and answer at a time         {:>10}", ms(ones));
        println!("  flannel-rs / raw batches                 {:>9.2}x", ratio(mine, raw));
        println!("  flannel-rs / one at a time               {:>9.2}x", ratio(mine, ones));
        if let Some(other) = &against {
            let theirs = (0..rounds.min(2))
                .map(|_| measure(&lab, count, Some(other)))
                .collect::<anyhow::Result<Vec<_>>>()?;
            let name = other.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let theirs_start = report(&name, &theirs);
            let memory = |all: &[Measured]| all.iter().map(|m| m.resident_kb).max().unwrap_or(0);
            println!("  {name} / flannel-rs, time  {:>9.1}x", ratio(theirs_start, mine));
            println!(
                "  {name} / flannel-rs, memory {:>8.1}x",
                memory(&theirs) as f64 / memory(&ours).max(1) as f64
            );
        }
        println!();
    }
    Ok(())
}

fn report(name: &str, all: &[Measured]) -> Duration {
    let start = median(all.iter().map(|m| m.start).collect());
    let memory = all.iter().map(|m| m.resident_kb).max().unwrap_or_default();
    let idle = all.iter().map(|m| m.idle_cpu).fold(0.0, f64::max);
    println!(
        "  {name}: start to all programmed {}, resident {:.1} MB, idle CPU {:.2} %",
        ms(start),
        memory as f64 / 1024.0,
        idle * 100.0
    );
    start
}

/// One start on a node without a device, stopped and tidied up afterwards.
fn measure(lab: &Lab, count: u32, binary: Option<&Path>) -> anyhow::Result<Measured> {
    let node = lab.node(1);
    let daemon = node.flanneld();
    let begin = Instant::now();
    match binary {
        Some(binary) => daemon.restart_with(binary)?,
        None => daemon.start()?,
    }
    // We write routes in the order of their subnets, so the last one there means all are; others may
    // write them in another.
    let last = peers::subnet(count - 1);
    let end = node.in_netns(|| routes::wait_for(last, LIMIT))?;
    let mut end = match end {
        Ok(end) => end,
        Err(error) => anyhow::bail!("{error}\n{}", daemon.log_tail(20)),
    };
    loop {
        let programmed = node.in_netns(|| routes::count("flannel.1"))??;
        if programmed == count as usize {
            break;
        }
        ensure!(begin.elapsed() < LIMIT, "{programmed} of {count} routes are there");
        std::thread::sleep(Duration::from_millis(20));
        end = Instant::now();
    }
    let pid = daemon.pid().context("it runs")?;
    std::thread::sleep(Duration::from_secs(1));
    let before = cpu_ticks(pid)?;
    std::thread::sleep(IDLE);
    let ticks = cpu_ticks(pid)? - before;
    let resident_kb = resident_kb(pid)?;
    daemon.stop()?;
    node.in_netns(|| routes::delete_device("flannel.1"))??;
    // USER_HZ is 100 on every Linux.
    let idle_cpu = ticks as f64 / 100.0 / IDLE.as_secs_f64();
    Ok(Measured { start: end - begin, resident_kb, idle_cpu })
}

fn resident_kb(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).context("no VmRSS")
}

fn cpu_ticks(pid: u32) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let tick = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).context("stat");
    Ok(tick(11)? + tick(12)?)
}
