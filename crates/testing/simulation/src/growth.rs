//! What a cluster of many nodes costs: messages, bytes, memory and time, while nothing happens and when something does.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_server::lease_state::{Request, Who};

use crate::cluster::Cluster;
use crate::host::SERVER;
use crate::invariants::Invariants;
use crate::simulation::simulate_quietly;
use crate::{clib, history};

/// 2,048 subnets.
const CONFIG: &str =
    r#"{"Network":"10.64.0.0/13","EnableNFTables":true,"Backend":{"Type":"host-gw"}}"#;
/// A subnet that no node is given: the lowest free ones come first.
const NEWCOMER: &str = "10.71.240.0-24";
/// Nodes are switched on within so long.
const BOOT_TIME: Duration = Duration::from_secs(30);
/// Pause between two looks while everything settles, and while nothing happens.
const LOOK: Duration = Duration::from_secs(1);
const QUIET_LOOK: Duration = Duration::from_secs(30);
/// Between two looks at how far a change has come.
const CHANGE_LOOK: Duration = Duration::from_millis(5);
const LONGEST_CHANGE: Duration = Duration::from_secs(300);

/// What happened in one part of the run.
struct Cost {
    name: &'static str,
    simulated: Duration,
    /// Of the processor, since the program began.
    processor: Duration,
    messages: u64,
    bytes: u64,
    syncs: u64,
    kernel_writes: u64,
}

struct Meter {
    name: &'static str,
    begun: Duration,
    sent: (u64, u64),
    syncs: u64,
    kernel_writes: u64,
}

impl Meter {
    fn start(cluster: &Cluster, name: &'static str) -> Self {
        Self {
            name,
            begun: clib::elapsed(),
            sent: cluster.network.all_sent(),
            syncs: cluster.hosts[SERVER].syncs.get(),
            kernel_writes: kernel_writes(cluster),
        }
    }

    fn end(self, cluster: &Cluster) -> Cost {
        let sent = cluster.network.all_sent();
        Cost {
            name: self.name,
            simulated: clib::elapsed() - self.begun,
            processor: clib::processor_time(),
            messages: sent.0 - self.sent.0,
            bytes: sent.1 - self.sent.1,
            syncs: cluster.hosts[SERVER].syncs.get() - self.syncs,
            kernel_writes: kernel_writes(cluster) - self.kernel_writes,
        }
    }
}

/// Runs a cluster of so many nodes, which has nothing to do for a time; returns lines for people.
pub(crate) fn measure_growth(
    nodes: usize,
    quiet: Duration,
    directory: &Path,
) -> anyhow::Result<Vec<String>> {
    simulate_quietly(0, directory, async move { measure(nodes, quiet, directory).await })
}

async fn measure(nodes: usize, quiet: Duration, directory: &Path) -> anyhow::Result<Vec<String>> {
    history::keep_nothing();
    let mut rng = fastrand::Rng::with_seed(0);
    let mut cluster = Cluster::new(nodes, directory, rng.fork())?;
    let mut invariants = Invariants::default();
    let mut costs = Vec::new();

    let meter = Meter::start(&cluster, "all boot within 30 s");
    cluster.boot(SERVER);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let config = Request::SetConfig { text: CONFIG.to_owned(), force: false };
    anyhow::ensure!(matches!(cluster.ask(config).await, Some(Ok(_))), "the config is refused");
    let pause = BOOT_TIME / nodes as u32;
    for number in cluster.nodes() {
        cluster.boot(number);
        tokio::time::sleep(pause).await;
    }
    until_settled(&mut cluster, &mut invariants).await?;
    costs.push(meter.end(&cluster));

    let meter = Meter::start(&cluster, "nothing happens");
    let until = clib::elapsed() + quiet;
    while clib::elapsed() < until {
        tokio::time::sleep(QUIET_LOOK).await;
        invariants.check(&cluster)?;
    }
    costs.push(meter.end(&cluster));

    let subnet: Subnet = NEWCOMER.parse().map_err(|_| anyhow::anyhow!("a subnet"))?;
    let attrs = LeaseAttrs {
        public_ip: Some(Ipv4Addr::new(192, 168, 0, 253)),
        backend_type: "host-gw".into(),
        ..LeaseAttrs::default()
    };
    for (name, request, has_route) in [
        ("a peer comes", Request::Import { subnet, attrs, left: Some(86_400_000) }, true),
        ("a peer leaves", Request::Release { subnet, version: None, who: Who::anybody() }, false),
    ] {
        invariants.freed.insert(subnet);
        let meter = Meter::start(&cluster, name);
        let answer = cluster.ask(request).await;
        anyhow::ensure!(matches!(answer, Some(Ok(_))), "{name}: {answer:?}");
        until_all_have(&cluster, subnet, has_route).await?;
        costs.push(meter.end(&cluster));
    }

    let meter = Meter::start(&cluster, "the lease server starts again");
    cluster.kill(SERVER).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.start(SERVER);
    tokio::time::sleep(Duration::from_secs(28)).await;
    until_settled(&mut cluster, &mut invariants).await?;
    costs.push(meter.end(&cluster));
    Ok(lines(nodes, &costs))
}

async fn until_settled(cluster: &mut Cluster, invariants: &mut Invariants) -> anyhow::Result<()> {
    let begun = clib::elapsed();
    loop {
        tokio::time::sleep(LOOK).await;
        invariants.check(cluster)?;
        match invariants.check_settled(cluster) {
            Ok(()) => return Ok(()),
            Err(why) if clib::elapsed() - begun > LONGEST_CHANGE => return Err(why.into()),
            Err(_) => {}
        }
    }
}

/// Waits until every kernel has a route to this subnet, or none has.
async fn until_all_have(cluster: &Cluster, subnet: Subnet, wanted: bool) -> anyhow::Result<()> {
    let begun = clib::elapsed();
    let net = subnet.v4().map(ipnet::IpNet::V4);
    let mut waiting: Vec<usize> = cluster.nodes().collect();
    while !waiting.is_empty() {
        anyhow::ensure!(clib::elapsed() - begun < LONGEST_CHANGE, "{} wait", waiting.len());
        tokio::time::sleep(CHANGE_LOOK).await;
        waiting.retain(|number| {
            let state = cluster.hosts[*number].kernel.state.borrow();
            let there = state.routes.iter().any(|it| crate::kernel::destination(it) == net);
            there != wanted
        });
    }
    Ok(())
}

fn kernel_writes(cluster: &Cluster) -> u64 {
    cluster.hosts.iter().map(|host| host.kernel.writes.get()).sum()
}

fn lines(nodes: usize, costs: &[Cost]) -> Vec<String> {
    let mut lines = vec![format!(
        "{nodes} nodes; the process has needed {} MB at most",
        clib::peak_memory_kb() / 1_024
    )];
    lines.push(format!(
        "{:<30} {:>12} {:>10} {:>10} {:>12} {:>7} {:>13}",
        "", "simulated s", "cpu s", "messages", "bytes", "syncs", "kernel writes"
    ));
    let mut before = Duration::ZERO;
    for cost in costs {
        let Cost { name, simulated, processor, messages, bytes, syncs, kernel_writes } = cost;
        let busy = processor.saturating_sub(before).as_secs_f64();
        before = *processor;
        lines.push(format!(
            "{name:<30} {:>12.3} {busy:>10.2} {messages:>10} {bytes:>12} {syncs:>7} {kernel_writes:>13}",
            simulated.as_secs_f64()
        ));
    }
    lines
}
