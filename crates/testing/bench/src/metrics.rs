//! What it takes to be asked for metrics, for the state and for all peers, beside what a probe takes, which is the same
//! request with nothing to say; what a reader of all peers costs who does not read on; and what it costs that all this
//! could be asked.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flannel_lab::Lab;

use crate::peers;
use crate::table::{ratio, report};

const PORT: u16 = 8081;
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(count: u32, rounds: usize) -> anyhow::Result<()> {
    let lab = Lab::builder().nodes(1).config_json(peers::CONFIG).no_daemons().start()?;
    let leases: Vec<(String, String)> = (0..count)
        .map(peers::lease)
        .map(|(key, value)| (format!("/coreos.com/network/subnets/{key}"), value))
        .collect();
    lab.etcd()?.put_many(&leases)?;
    let daemon = lab.node(1).flanneld();
    daemon.start()?;
    daemon.wait_ready()?;
    println!("{count} peers, asked {rounds} times each, one after the other:");
    let known = format!("flannel_peers{{network=\"_\",state=\"programmed\"}} {count}.0");
    let answers = lab.node(1).in_netns(|| -> anyhow::Result<_> {
        let begin = Instant::now();
        while !ask("/metrics")?.1.contains(&known) {
            ensure!(begin.elapsed() < LIMIT, "the peers are not programmed");
            std::thread::sleep(Duration::from_millis(100));
        }
        let (mut probes, mut answers) = (Vec::new(), Answers::default());
        for _ in 0..rounds {
            probes.push(ask("/readyz")?.0);
            for (number, path) in PATHS.into_iter().enumerate() {
                let (took, answer) = ask(path)?;
                answers.took[number].push(took);
                answers.bytes[number] = answer.len();
            }
        }
        Ok((probes, answers))
    })?;
    let (probes, answers) = answers?;
    let probe = report("/readyz", probes);
    for ((path, took), bytes) in PATHS.into_iter().zip(answers.took).zip(answers.bytes) {
        let took = report(path, took);
        println!("  {path} / /readyz at p50: {:.2}x; {bytes} bytes", ratio(took, probe));
    }
    let pid = daemon.pid().context("the daemon runs")?;
    let before = own_memory(pid)?;
    let reader = lab.node(1).in_netns(slow_reader)??;
    let held = own_memory(pid)? - before;
    drop(reader);
    let all = answers.bytes[PATHS.len() - 1];
    println!(
        "memory of its own: {before} kB; while somebody reads /v1/peers and does not read on: {held:+} kB, of {} kB \
         to be told: {:.2}x",
        all / 1024,
        held.max(0) as f64 * 1024.0 / all as f64
    );
    println!("processor time of {IDLE:?} in which nobody asks: {} ms", idle(pid)?.as_millis());
    Ok(())
}

/// What is asked, that of all peers last.
const PATHS: [&str; 3] = ["/metrics", "/v1/state", "/v1/peers"];
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Answers {
    took: [Vec<Duration>; PATHS.len()],
    bytes: [usize; PATHS.len()],
}

/// Somebody who has begun to read, and does not go on.
fn slow_reader() -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", PORT)).context("the probe port")?;
    write!(stream, "GET /v1/peers HTTP/1.0\r\nHost: node\r\n\r\n")?;
    let mut first = [0; 1024];
    stream.read_exact(&mut first)?;
    std::thread::sleep(Duration::from_secs(1));
    Ok(stream)
}

/// Memory that is the daemon's own, in kB.
fn own_memory(pid: u32) -> anyhow::Result<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()).context("RssAnon")?;
    Ok(number.parse()?)
}

fn idle(pid: u32) -> anyhow::Result<Duration> {
    let used = || -> anyhow::Result<u64> {
        let mut nanos = 0;
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            let text = std::fs::read_to_string(thread.path().join("schedstat"))?;
            nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(nanos)
    };
    let before = used()?;
    std::thread::sleep(IDLE);
    Ok(Duration::from_nanos(used()?.saturating_sub(before)))
}

/// How long it took, with the connection, and what was said.
fn ask(path: &str) -> anyhow::Result<(Duration, String)> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", PORT)).context("the probe port")?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let took = begin.elapsed();
    ensure!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok((took, answer.split_once("\r\n\r\n").context("a body")?.1.to_owned()))
}
