//! What it takes to be asked for metrics, beside what a probe takes, which is the same request with nothing to say.

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
        let (mut probes, mut scrapes, mut bytes) = (Vec::new(), Vec::new(), 0);
        for _ in 0..rounds {
            probes.push(ask("/readyz")?.0);
            let (took, answer) = ask("/metrics")?;
            scrapes.push(took);
            bytes = answer.len();
        }
        Ok((probes, scrapes, bytes))
    })?;
    let (probes, scrapes, bytes) = answers?;
    let probe = report("/readyz", probes);
    let scrape = report("/metrics", scrapes);
    println!("  /metrics / /readyz at p50: {:.2}x; {bytes} bytes", ratio(scrape, probe));
    Ok(())
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
