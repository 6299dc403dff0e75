//! The lease server against etcd, doing the same work for the same clients: the store clients every
//! node uses, real processes, real syncs to the same disk.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use flannel_lease::{Claimant, LeaseAttrs, NetworkConfig};
use flannel_store::{
    EtcdOptions, EtcdStore, Held, NodeStore, OperatorStore, RemoteOptions, RemoteStore, StoreEvent,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::table::{median, ms, ratio};

const CONFIG: &str = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#;
const WAIT_LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Wishes {
    pub(crate) clients: u32,
    pub(crate) acquires: u32,
    pub(crate) at_once: u32,
    pub(crate) events: u32,
    pub(crate) dir: PathBuf,
}

/// What was measured of one store.
struct Figures {
    acquire: Duration,
    renew: Duration,
    fan_out: Duration,
    memory_per_client: i64,
    memory: i64,
}

pub(crate) fn run(wishes: &Wishes) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::fs::create_dir_all(&wishes.dir)?;
    let server = runtime.block_on(measure(&LeaseServer::start(&wishes.dir)?, wishes))?;
    let etcd = runtime.block_on(measure(&Etcd::start(&wishes.dir)?, wishes))?;

    let Wishes { clients, acquires, at_once, .. } = wishes;
    println!("{acquires} nodes, {at_once} at once; {clients} watchers; both sync every write");
    let row = |what: &str, ours: Duration, theirs: Duration, count: u32| {
        let rate = |time: Duration| f64::from(count) / time.as_secs_f64();
        println!(
            "  {what:<28} lease server {:>7.0}/s   etcd {:>7.0}/s   {:.1} ×",
            rate(ours),
            rate(theirs),
            ratio(theirs, ours)
        );
    };
    row("acquire a lease", server.acquire, etcd.acquire, *acquires);
    row("renew a lease", server.renew, etcd.renew, *acquires);
    println!(
        "  {:<28} lease server {:>9}   etcd {:>9}   {:.1} ×",
        format!("an event to {clients} watchers"),
        ms(server.fan_out),
        ms(etcd.fan_out),
        ratio(etcd.fan_out, server.fan_out)
    );
    println!(
        "  {:<28} lease server {:>6} KiB   etcd {:>6} KiB   {:.1} ×",
        "memory per waiting client",
        server.memory_per_client,
        etcd.memory_per_client,
        etcd.memory_per_client as f64 / server.memory_per_client.max(1) as f64
    );
    println!(
        "  {:<28} lease server {:>6} MiB   etcd {:>6} MiB",
        "memory with all of them",
        server.memory / 1024,
        etcd.memory / 1024
    );
    Ok(())
}

/// What nodes and operators do at a store.
trait MeasuredStore: NodeStore + OperatorStore {}

impl<T: NodeStore + OperatorStore> MeasuredStore for T {}

/// A store to measure: a process, and clients of it.
trait Contestant {
    fn client(&self) -> anyhow::Result<Arc<dyn MeasuredStore>>;
    fn pid(&self) -> u32;
}

async fn measure(contestant: &impl Contestant, wishes: &Wishes) -> anyhow::Result<Figures> {
    let first = contestant.client()?;
    wait_until_up(&*first).await?;
    first.set_config(CONFIG, false).await?;
    let config = Arc::new(NetworkConfig::parse(CONFIG)?);

    let workers =
        (0..wishes.at_once).map(|_| contestant.client()).collect::<Result<Vec<_>, _>>()?;
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, store) in (0..).zip(workers.iter().cloned()) {
        let (config, nodes) = (config.clone(), share(wishes, number));
        tasks.spawn(async move {
            let mut held = Vec::new();
            for node in nodes {
                held.push(get_lease(&*store, &config, attrs(node)).await?);
            }
            anyhow::Ok(held)
        });
    }
    let mut held: Vec<Vec<Held>> = Vec::new();
    while let Some(done) = tasks.join_next().await {
        held.push(done??);
    }
    let acquire = began.elapsed();

    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (store, held) in workers.iter().cloned().zip(held) {
        tasks.spawn(async move {
            for lease in held {
                store.renew(&lease, &lease.lease.attrs).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let renew = began.elapsed();

    let before = memory(contestant.pid())?;
    let cursor = first.snapshot().await?.cursor;
    let (heard, mut told) = mpsc::unbounded_channel();
    let mut clients = JoinSet::new();
    for _ in 0..wishes.clients {
        // A client of its own, as every node has; its one connection is the watch.
        let store = contestant.client()?;
        let heard = heard.clone();
        let mut events = store.watch(cursor.clone());
        clients.spawn(async move {
            let _store = store;
            while let Some(event) = events.recv().await {
                let mark = match event {
                    StoreEvent::Put(stored) => stored.lease.attrs.public_ip.map(u32::from),
                    _ => None,
                };
                if let Some(mark) = mark
                    && heard.send(mark).is_err()
                {
                    return;
                }
            }
        });
    }
    // The first event is there when everybody is; it is not counted.
    let mut times = Vec::new();
    for event in 0..=wishes.events {
        let mark = 0xc000_0000 + event;
        let began = Instant::now();
        get_lease(&*first, &config, attrs_of(mark)).await?;
        let mut missing = wishes.clients;
        while missing > 0 {
            let heard =
                timeout(WAIT_LIMIT, told.recv()).await.context("not everybody has heard")?;
            missing -= u32::from(heard == Some(mark));
        }
        if event > 0 {
            times.push(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let after = memory(contestant.pid())?;
    let memory_per_client = (after - before) / i64::from(wishes.clients.max(1));
    let fan_out = median(times);
    Ok(Figures { acquire, renew, fan_out, memory_per_client, memory: after })
}

/// As a node does it: again when others were quicker.
async fn get_lease(
    store: &dyn MeasuredStore,
    config: &NetworkConfig,
    attrs: LeaseAttrs,
) -> anyhow::Result<Held> {
    let me = Claimant::new(&attrs, None);
    loop {
        let recalled = store.recall(config, &me).await?;
        match flannel_store::acquire(store, config, &me, recalled, |_| attrs.clone()).await {
            Ok(acquired) => return Ok(acquired.held),
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The nodes of one worker.
fn share(wishes: &Wishes, worker: u32) -> impl Iterator<Item = u32> + use<> {
    (worker..wishes.acquires).step_by(wishes.at_once.max(1) as usize)
}

fn attrs(node: u32) -> LeaseAttrs {
    attrs_of(0xac10_0000 + node)
}

fn attrs_of(address: u32) -> LeaseAttrs {
    LeaseAttrs {
        public_ip: Some(address.into()),
        backend_type: "vxlan".into(),
        ..LeaseAttrs::default()
    }
}

async fn wait_until_up(store: &dyn MeasuredStore) -> anyhow::Result<()> {
    for _ in 0..100 {
        if store.config().await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{} does not come up", store.name())
}

/// Resident memory in KiB.
fn memory(pid: u32) -> anyhow::Result<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.context("the kernel does not tell how much memory it uses")
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct LeaseServer {
    process: Process,
    address: String,
}

impl LeaseServer {
    fn start(dir: &Path) -> anyhow::Result<Self> {
        let data = dir.join("lease-server");
        let _ = std::fs::remove_dir_all(&data);
        let address = format!("127.0.0.1:{}", free_port()?);
        let binary = flannel_lab::find_flanneld(None)?;
        let child = Command::new(&binary)
            .arg(format!("--listen={address}"))
            .arg(format!("--data-dir={}", data.display()))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Self { process: Process(child), address })
    }
}

impl Contestant for LeaseServer {
    fn client(&self) -> anyhow::Result<Arc<dyn MeasuredStore>> {
        let options =
            RemoteOptions { addresses: vec![self.address.clone()], ..RemoteOptions::default() };
        Ok(Arc::new(RemoteStore::new(options, 1)?))
    }

    fn pid(&self) -> u32 {
        self.process.0.id()
    }
}

struct Etcd {
    process: Process,
    url: String,
}

impl Etcd {
    fn start(dir: &Path) -> anyhow::Result<Self> {
        let data = dir.join("etcd");
        let _ = std::fs::remove_dir_all(&data);
        let binary = flannel_lab::find_etcd(None)?;
        let (url, peers) = (
            format!("http://127.0.0.1:{}", free_port()?),
            format!("http://127.0.0.1:{}", free_port()?),
        );
        let child = Command::new(&binary)
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peers, "--log-level", "error"])
            .arg("--data-dir")
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Self { process: Process(child), url })
    }
}

impl Contestant for Etcd {
    fn client(&self) -> anyhow::Result<Arc<dyn MeasuredStore>> {
        let options = EtcdOptions {
            endpoints: vec![self.url.clone()],
            prefix: "/coreos.com/network".to_owned(),
            ..EtcdOptions::default()
        };
        Ok(Arc::new(EtcdStore::new(&options, None, 1)?))
    }

    fn pid(&self) -> u32 {
        self.process.0.id()
    }
}
