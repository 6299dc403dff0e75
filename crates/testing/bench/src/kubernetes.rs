//! The daemon with a real API server full of Nodes of a real size, whose kubelets go on writing.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use flannel_backend::Stack;
use flannel_kube::access::Access;
use flannel_kube::annotations::AnnotationPrefix;
use flannel_kube::api::Api;
use flannel_kube::cluster::Cluster;
use flannel_kube::message::Encoding;
use flannel_kube::node::NodeResource;
use flannel_kube::testing::{self, ApiServer, NodeSpec};
use flannel_lab::Lab;
use flannel_store::{Cursor, StoreEvent};

use crate::table::{median, ms, ratio};
use crate::{peers, routes};

const LIMIT: Duration = Duration::from_secs(300);
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 254));
const PREFIX: &str = "flannel.alpha.coreos.com";
/// So many make a Node of 12 kB.
const IMAGES: usize = 47;
const ROUNDS: usize = 3;
const DECODED: u32 = 5_000;
/// Clients that run in processes of their own, as this program is told to be one.
const KNOWN_NODES: &str = "known-nodes";
const WHOLE_NODES: &str = "whole-nodes";

struct Measured {
    start: Duration,
    resident_kb: u64,
    heartbeat: Duration,
}

pub(crate) fn run(counts: &[u32], heartbeats: usize, against: Option<&Path>) -> anyhow::Result<()> {
    for &count in counts {
        let mut lab = Lab::builder().nodes(1).bare().ready_limit(LIMIT).healthz_port(0);
        lab = lab.node_env(1, "NODE_NAME", "own");
        let lab = lab.start()?;
        let server = ApiServer::builder().inside(lab.switch().paths().net, SERVER).start();
        let nodes: Vec<NodeSpec> = (0..count).map(peer).collect();
        let nobody = [KNOWN_NODES, WHOLE_NODES].map(|client| weigh_empty(&server, client));
        let begin = Instant::now();
        server.create_nodes(&nodes);
        let own = NodeSpec::new("own").cidr("10.0.1.0/24");
        server.create_node(&own.annotation("node.alpha.kubernetes.io/ttl", "0"));
        println!("{count} Nodes, made in {:.1} s", begin.elapsed().as_secs_f64());
        measure_decoders(&server)?;
        configure(&lab, &server)?;

        let list = median((0..ROUNDS).map(|_| list(&server)).collect::<anyhow::Result<_>>()?);
        println!("  the list alone, read by us     {:>10}", ms(list));
        let ours = report("flannel-rs", &measure(&lab, &server, &nodes, heartbeats, None)?);
        println!("  flannel-rs beyond the list     {:>10}", ms(ours.start.saturating_sub(list)));
        let [known, whole] = [KNOWN_NODES, WHOLE_NODES]
            .map(|client| measure_client(&server, &nodes, heartbeats, client));
        let (known, whole) =
            (report("its table of Nodes alone", &known?), report("whole Nodes", &whole?));
        for (name, with, without) in [("known", &known, &nobody[0]), ("whole", &whole, &nobody[1])]
        {
            let empty = without.as_ref().map_or(0, |kb| *kb);
            let each = with.resident_kb.saturating_sub(empty) * 1024 / u64::from(count.max(1));
            println!("  memory for a {name} Node          {each:>8} bytes");
        }
        compare("whole Nodes", &whole, &ours);
        if let Some(other) = against {
            let name = other.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match measure(&lab, &server, &nodes, heartbeats, Some(other)) {
                Ok(measured) => compare(&name, &report(&name, &measured), &ours),
                Err(error) => println!("  {name}: {error:#}"),
            }
        }
        println!();
    }
    Ok(())
}

fn peer(number: u32) -> NodeSpec {
    let [_, a, b, c] = number.to_be_bytes();
    let public = Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 1)) + number);
    NodeSpec::new(&format!("peer-{number}"))
        .cidr(format!("{}/24", peers::subnet(number)))
        .vxlan(&public.to_string(), &format!("02:00:00:{a:02x}:{b:02x}:{c:02x}"))
        .images(IMAGES)
}

fn prefix() -> anyhow::Result<AnnotationPrefix> {
    Ok(AnnotationPrefix::parse(PREFIX)?)
}

/// What one message costs to read, in either encoding, and to read as a whole.
fn measure_decoders(server: &ApiServer) -> anyhow::Result<()> {
    let nodes = NodeResource::new(prefix()?);
    let path = "/api/v1/nodes/peer-0";
    let protobuf = server.bytes(path, "application/vnd.kubernetes.protobuf");
    let json = server.bytes(path, "application/json");
    let time = |work: &dyn Fn()| {
        let begin = Instant::now();
        (0..DECODED).for_each(|_| work());
        begin.elapsed() / DECODED
    };
    let read = |encoding: Encoding, bytes: &[u8]| {
        std::hint::black_box(encoding.object(bytes, &nodes).ok());
    };
    let by_protobuf = time(&|| read(Encoding::Protobuf, &protobuf));
    let by_json = time(&|| read(Encoding::Json, &json));
    let whole = time(&|| {
        let node: Option<serde_json::Value> = serde_json::from_slice(&json).ok();
        std::hint::black_box(node);
    });
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!("  a Node of {} bytes of JSON, {} of protobuf, is read", json.len(), protobuf.len());
    println!("    by stepping over protobuf    {:>9.2} us", micros(by_protobuf));
    println!(
        "    by stepping over JSON        {:>9.2} us ({:.1}x)",
        micros(by_json),
        ratio(by_json, by_protobuf)
    );
    println!(
        "    as a whole                   {:>9.2} us ({:.1}x)",
        micros(whole),
        ratio(whole, by_protobuf)
    );
    Ok(())
}

fn configure(lab: &Lab, server: &ApiServer) -> anyhow::Result<()> {
    let config = server.file("net-conf.json");
    std::fs::write(&config, peers::CONFIG)?;
    let daemon = lab.node(1).flanneld();
    daemon.add_flag("--kube-subnet-mgr");
    daemon.add_flag(format!("--kubeconfig-file={}", server.admin_kubeconfig().display()));
    daemon.add_flag(format!("--net-config-path={}", config.display()));
    Ok(())
}

/// How long it takes to receive and read all Nodes, and nothing else.
fn list(server: &ApiServer) -> anyhow::Result<Duration> {
    let prefix = prefix()?;
    server.inside(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let api = Api::new(server.admin(), prefix);
            let cluster = Cluster::new(api, "own", 1);
            cluster.table.lock().set_families(Stack { v4: true, v6: false });
            let begin = Instant::now();
            cluster.list().await?;
            Ok(begin.elapsed())
        })
    })
}

fn measure(
    lab: &Lab,
    server: &ApiServer,
    nodes: &[NodeSpec],
    heartbeats: usize,
    binary: Option<&Path>,
) -> anyhow::Result<Measured> {
    let node = lab.node(1);
    let daemon = node.flanneld();
    let begin = Instant::now();
    match binary {
        Some(binary) => {
            daemon.restart_with(binary).with_context(|| daemon.log_tail(5))?;
        }
        None => daemon.start()?,
    }
    // Counting lists all routes, which takes time from who writes them: it is not done before the last one is
    // there. We write them in the order of their subnets; others may write them in another.
    let last = peers::subnet(u32::try_from(nodes.len())?.saturating_sub(1));
    let mut seen = node.in_netns(|| routes::wait_for(last, LIMIT))?.ok();
    let end = loop {
        let programmed = node.in_netns(|| routes::count("flannel.1"))??;
        if programmed >= nodes.len() {
            break seen.unwrap_or_else(Instant::now);
        }
        seen = None;
        if begin.elapsed() > LIMIT || !daemon.is_running() {
            let log = daemon.log_tail(5);
            daemon.stop()?;
            bail!("{programmed} of {} routes after {:.0?}\n{log}", nodes.len(), begin.elapsed());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let pid = daemon.pid().context("it runs")?;
    let heartbeat = beat(server, nodes, heartbeats, pid)?;
    let resident_kb = resident_kb(pid)?;
    daemon.stop()?;
    node.in_netns(|| routes::delete_device("flannel.1"))??;
    Ok(Measured { start: end - begin, resident_kb, heartbeat })
}

/// A client of the API server in a process of its own, so that its memory can be weighed. Gone when dropped.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Client {
    /// Returns when it knows all Nodes.
    fn start(server: &ApiServer, client: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(client).arg(server.admin_kubeconfig()).stdout(Stdio::piped());
        let mut child = Self(server.inside(|| command.spawn())?);
        let mut line = String::new();
        let out = child.0.stdout.take().context("its output")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        ensure!(line.contains("ready"), "it says {line:?}");
        Ok(child)
    }
}

/// What a client weighs that knows no Nodes.
fn weigh_empty(server: &ApiServer, client: &str) -> anyhow::Result<u64> {
    let client = Client::start(server, client)?;
    resident_kb(client.0.id())
}

fn measure_client(
    server: &ApiServer,
    nodes: &[NodeSpec],
    heartbeats: usize,
    client: &str,
) -> anyhow::Result<Measured> {
    let begin = Instant::now();
    let client = Client::start(server, client)?;
    let start = begin.elapsed();
    let heartbeat = beat(server, nodes, heartbeats, client.0.id())?;
    let resident_kb = resident_kb(client.0.id())?;
    Ok(Measured { start, resident_kb, heartbeat })
}

/// What flannel-rs keeps of Nodes, and nothing of what it does with them.
pub(crate) fn keep_known_nodes(kubeconfig: PathBuf) -> anyhow::Result<()> {
    let api = Api::new(Access::Kubeconfig { file: kubeconfig, url: None }, prefix()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let cluster = Arc::new(Cluster::new(api, "own", 1));
        cluster.table.lock().set_families(Stack { v4: true, v6: false });
        let mut events = cluster.follow(&Cursor::BEGINNING);
        while let Some(event) = events.recv().await {
            if let StoreEvent::Snapshot(leases) = event {
                println!("ready {}", leases.len());
            }
        }
        bail!("the watch has ended")
    })
}

pub(crate) fn keep_whole_nodes(kubeconfig: PathBuf) -> anyhow::Result<()> {
    let access = Access::Kubeconfig { file: kubeconfig, url: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let why =
        runtime.block_on(testing::keep_whole_nodes(access, |count| println!("ready {count}")));
    bail!("{why}")
}

/// Processor time for each heartbeat.
fn beat(
    server: &ApiServer,
    nodes: &[NodeSpec],
    heartbeats: usize,
    pid: u32,
) -> anyhow::Result<Duration> {
    std::thread::sleep(Duration::from_secs(2));
    let before = cpu(pid)?;
    let begin = Instant::now();
    server.heartbeats(nodes, heartbeats, u64::from(pid));
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu(pid)? - before;
    ensure!(begin.elapsed() < LIMIT, "heartbeats take too long");
    Ok(used / u32::try_from(heartbeats.max(1))?)
}

fn report(name: &str, measured: &Measured) -> Measured {
    println!(
        "  {name}: ready {}, resident {:.1} MB, {:.3} ms of processor time per heartbeat",
        ms(measured.start),
        measured.resident_kb as f64 / 1024.0,
        measured.heartbeat.as_secs_f64() * 1e3
    );
    Measured { ..*measured }
}

fn compare(name: &str, theirs: &Measured, ours: &Measured) {
    println!(
        "  {name} / flannel-rs: time {:.1}x, memory {:.1}x, heartbeat {:.1}x",
        ratio(theirs.start, ours.start),
        theirs.resident_kb as f64 / ours.resident_kb.max(1) as f64,
        ratio(theirs.heartbeat, ours.heartbeat)
    );
}

fn resident_kb(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).context("no VmRSS")
}

/// Of all its threads.
fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        nanoseconds +=
            text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanoseconds))
}
