//! The daemon from its start to all peers programmed, what it weighs then, and what it costs idle.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use flannel_lab::Lab;

use crate::table::{median, ms, ratio};
use crate::{engine, peers, routes};

const LIMIT: Duration = Duration::from_secs(120);
const IDLE: Duration = Duration::from_secs(3);
const LEASES: &str = "/coreos.com/network/subnets/";

/// What a node knows of itself when its daemon starts.
#[derive(Clone, Copy)]
enum Node {
    /// Its lease: it was switched off and on.
    Booted,
    /// Nothing: it has never been here.
    New,
}

struct Measured {
    start: Duration,
    memory: Memory,
    idle_cpu: f64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Memory {
    resident_kb: u64,
    /// Of these, what only this process has: the rest are pages of programs and libraries.
    own_kb: u64,
}

/// All starts of one program.
struct Program {
    name: String,
    binary: Option<PathBuf>,
    booted: Vec<Measured>,
    new: Vec<Measured>,
}

pub(crate) fn run(counts: &[u32], rounds: usize, against: Option<PathBuf>) -> anyhow::Result<()> {
    for &count in counts {
        let lab = Lab::builder().nodes(1).config_json(peers::CONFIG).no_daemons().start()?;
        let leases: Vec<(String, String)> = (0..count)
            .map(peers::lease)
            .map(|(key, value)| (format!("{LEASES}{key}"), value))
            .collect();
        lab.etcd()?.put_many(&leases)?;
        println!("{count} leases in etcd, median of {rounds} starts");
        let desired = peers::desired(count)?;
        let (mut raw, mut ones) = (Vec::new(), Vec::new());
        let mut programs = vec![Program::new("flannel-rs".to_owned(), None)];
        programs.extend(against.iter().map(|other| {
            let name = other.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Program::new(name, Some(other.clone()))
        }));
        // One after the other in every round, so that a busy minute of the machine hits all.
        for _ in 0..rounds {
            let (batches, one_by_one) = lab.node(1).in_netns(|| engine::raw_times(&desired))??;
            raw.push(batches);
            ones.push(one_by_one);
            for program in &mut programs {
                let binary = program.binary.as_deref();
                program.new.push(measure(&lab, count, binary, Node::New)?);
                program.booted.push(measure(&lab, count, binary, Node::Booted)?);
            }
        }
        let (raw, ones) = (median(raw), median(ones));
        println!("  raw netlink batches of the same entries  {:>10}", ms(raw));
        println!("  one request and answer at a time         {:>10}", ms(ones));
        for program in &programs {
            program.report(raw);
        }
        if let [ours, theirs] = programs.as_slice() {
            theirs.compare(ours);
        }
        println!();
    }
    Ok(())
}

impl Program {
    fn new(name: String, binary: Option<PathBuf>) -> Self {
        Self { name, binary, booted: Vec::new(), new: Vec::new() }
    }

    fn report(&self, raw: Duration) {
        let idle = self.booted.iter().map(|m| m.idle_cpu).fold(0.0, f64::max);
        println!("  {}", self.name);
        for (what, all) in [("after a boot", &self.booted), ("for the first time", &self.new)] {
            let start = start(all);
            println!(
                "    start {what:<18}  {:>10}  {:>5.2}x raw batches",
                ms(start),
                ratio(start, raw)
            );
        }
        let Memory { resident_kb, own_kb } = self.memory();
        println!(
            "    resident {:.1} MB, of which its own {:.1} MB and {:.1} MB of program files; idle CPU {:.2} %",
            mb(resident_kb),
            mb(own_kb),
            mb(resident_kb - own_kb),
            idle * 100.0
        );
    }

    fn compare(&self, ours: &Self) {
        let memory = |program: &Self| program.memory().resident_kb as f64;
        println!(
            "  {} / {}: after a boot {:.2}x, for the first time {:.2}x, memory {:.2}x",
            self.name,
            ours.name,
            ratio(start(&self.booted), start(&ours.booted)),
            ratio(start(&self.new), start(&ours.new)),
            memory(self) / memory(ours).max(1.0)
        );
    }

    fn memory(&self) -> Memory {
        self.booted.iter().map(|m| m.memory).max().unwrap_or_default()
    }
}

fn start(all: &[Measured]) -> Duration {
    median(all.iter().map(|m| m.start).collect())
}

fn mb(kb: u64) -> f64 {
    kb as f64 / 1024.0
}

/// One start on a node without a device, stopped and tidied up afterwards.
fn measure(lab: &Lab, count: u32, binary: Option<&Path>, what: Node) -> anyhow::Result<Measured> {
    let node = lab.node(1);
    let daemon = node.flanneld();
    if let Node::New = what {
        forget(lab)?;
    }
    daemon.set_binary(binary);
    let begin = Instant::now();
    daemon.start()?;
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
        std::thread::sleep(Duration::from_millis(2));
        end = Instant::now();
    }
    let pid = daemon.pid().context("it runs")?;
    std::thread::sleep(Duration::from_secs(1));
    let before = cpu_ticks(pid)?;
    std::thread::sleep(IDLE);
    let ticks = cpu_ticks(pid)? - before;
    let memory = memory(pid)?;
    daemon.stop()?;
    node.in_netns(|| routes::delete_device("flannel.1"))??;
    // USER_HZ is 100 on every Linux.
    let idle_cpu = ticks as f64 / 100.0 / IDLE.as_secs_f64();
    Ok(Measured { start: end - begin, memory, idle_cpu })
}

/// Nothing says any more that the node has been here.
fn forget(lab: &Lab) -> anyhow::Result<()> {
    let node = lab.node(1);
    if let Ok(env) = node.subnet_env() {
        let subnet = env.subnet.context("an IPv4 subnet")?.trunc();
        lab.etcd()?.delete(&format!("{LEASES}{}-{}", subnet.addr(), subnet.prefix_len()))?;
    }
    node.exec(&["sh", "-c", "rm -rf /run/flannel/* /var/lib/flannel/*"])?;
    Ok(())
}

fn memory(pid: u32) -> anyhow::Result<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|n| n.parse().ok()).with_context(|| format!("no {name}"))
    };
    Ok(Memory { resident_kb: field("VmRSS:")?, own_kb: field("RssAnon:")? })
}

fn cpu_ticks(pid: u32) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let tick = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).context("stat");
    Ok(tick(11)? + tick(12)?)
}
