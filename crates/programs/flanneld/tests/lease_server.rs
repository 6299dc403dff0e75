//! Many nodes on one lease server that is killed again and again: nothing that was acknowledged is
//! lost, no two nodes hold the same subnet, and those who watch end up with the whole truth.
//! `LEASE_NODES=10000` asks for more nodes than the usual thousand: all of them run on one thread here, and on
//! a busy machine not all may be done in time.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flannel_lease::{LeaseAttrs, NetworkConfig, Subnet};
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::{Claim, RemoteOptions, RemoteStore, StoreError, StoreEvent};
use flannel_store::{Cursor, StoredLease};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

const CONFIG: &str = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#;
/// After every node has got its lease: from then on all of them renew.
const KILLS_AT_THE_END: u32 = 5;
const WATCHERS: u32 = 50;
const READY_TIMEOUT: Duration = Duration::from_secs(120);

fn attrs(node: u32) -> LeaseAttrs {
    LeaseAttrs { public_ip: Some((0xac10_0000 + node).into()), ..LeaseAttrs::default() }
}

struct Server {
    child: Child,
}

/// What all the lives of the server have cost.
#[derive(Default)]
struct Cost {
    lives: u32,
    /// In KiB, of the largest.
    memory: u64,
    /// Processor time in clock ticks, a hundredth of a second each.
    ticks: u64,
}

impl Server {
    fn start(dir: &Path, port: u16) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_flanneld"))
            .arg(format!("--listen=127.0.0.1:{port}"))
            .arg(format!("--data-dir={}", dir.join("data").display()))
            .arg(format!("--net-config-path={}", dir.join("net-conf.json").display()))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child }
    }

    fn kill(mut self, cost: &mut Cost) {
        self.count(cost);
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn count(&self, cost: &mut Cost) {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap()
        };
        let memory = read("status");
        let memory = memory.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let memory = memory.split_whitespace().next().unwrap().parse().unwrap();
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
        cost.lives += 1;
        cost.memory = cost.memory.max(memory);
        cost.ticks += ticks(11) + ticks(12);
    }
}

fn client(port: u16) -> RemoteStore {
    let addresses = vec![format!("127.0.0.1:{port}")];
    let options = RemoteOptions { addresses, ..RemoteOptions::default() };
    RemoteStore::new(options, fastrand::u64(..)).unwrap()
}

/// Acquires, then renews until told to stop; every answer must be about the same subnet.
async fn node(number: u32, port: u16, stop: Arc<AtomicBool>, grants: Arc<AtomicU32>) -> Subnet {
    let config = NetworkConfig::parse(CONFIG).unwrap();
    let store = client(port);
    let pause = || Duration::from_millis(fastrand::u64(20..300));
    let mut held = loop {
        match store.acquire(&config, &Claim::new(attrs(number), None)).await {
            Ok(acquired) => break acquired.held,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        tokio::time::sleep(pause()).await;
    };
    grants.fetch_add(1, Ordering::Relaxed);
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(pause() * 40).await;
        match store.renew(&held, &attrs(number)).await {
            Ok(renewed) => {
                assert_eq!(renewed.lease.subnet, held.lease.subnet);
                held = renewed;
            }
            Err(error @ (StoreError::Lost { .. } | StoreError::Taken { .. })) => {
                panic!("what node {number} was granted is gone: {error}")
            }
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    held.lease.subnet
}

/// Follows the table as a node does, until it is the expected one.
async fn watcher(port: u16, expected: usize) -> BTreeMap<Subnet, LeaseAttrs> {
    let mut table = BTreeMap::new();
    let mut events = client(port).watch(Cursor::BEGINNING);
    while table.len() < expected {
        match events.recv().await.unwrap() {
            StoreEvent::Snapshot(leases) => {
                let lease = |stored: StoredLease| (stored.lease.subnet, stored.lease.attrs);
                table = leases.into_iter().map(lease).collect();
            }
            StoreEvent::Put(StoredLease { lease, .. }) => {
                table.insert(lease.subnet, lease.attrs);
            }
            StoreEvent::Gone(subnet) => {
                table.remove(&subnet);
            }
            _ => {}
        }
    }
    table
}

#[tokio::test]
async fn a_server_killed_at_random_loses_nothing() {
    let nodes: u32 =
        std::env::var("LEASE_NODES").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000);
    raise_file_limit(nodes);
    // Every node lists all the others.
    let patience = READY_TIMEOUT + Duration::from_millis(u64::from(nodes) * 30);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("net-conf.json"), CONFIG).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (began, mut cost) = (Instant::now(), Cost::default());
    let mut server = Server::start(dir.path(), port);
    let (stop, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        watchers.spawn(watcher(port, nodes as usize));
    }
    let mut running = JoinSet::new();
    for number in 0..nodes {
        running.spawn(node(number, port, stop.clone(), grants.clone()));
    }
    let mut left = KILLS_AT_THE_END;
    while left > 0 {
        let all_have_one = grants.load(Ordering::Relaxed) == nodes;
        left -= u32::from(all_have_one);
        assert!(began.elapsed() < patience, "only {grants:?} nodes have got a lease");
        // All nodes ask for the whole table before they have a lease: it is sent to a few at a time, so that
        // even in a short life some are done.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(100..2_500))).await;
        if let Some(ended) = running.try_join_next() {
            panic!("a node has ended: {ended:?}");
        }
        server.kill(&mut cost);
        server = Server::start(dir.path(), port);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    stop.store(true, Ordering::Relaxed);
    let held: BTreeSet<Subnet> = running.join_all().await.into_iter().collect();
    assert_eq!(held.len(), nodes as usize, "each node has a subnet of its own");

    let seen = tokio::time::timeout(patience, watchers.join_all()).await.expect("all have heard");
    server.kill(&mut cost);
    eprintln!(
        "measured: {nodes} nodes on one lease server, killed {} times in {:.0?}: at most {} MiB, {} s of \
         processor time in all",
        cost.lives,
        began.elapsed(),
        cost.memory / 1024,
        cost.ticks / 100
    );
    for table in seen {
        assert_eq!(table.keys().copied().collect::<BTreeSet<_>>(), held);
    }
    let server = Server::start(dir.path(), port);
    let store = client(port);
    let table = loop {
        if let Ok(snapshot) = store.snapshot().await {
            break snapshot.leases;
        }
    };
    assert_eq!(table.iter().map(|stored| stored.lease.subnet).collect::<BTreeSet<_>>(), held);
    server.kill(&mut cost);
}

/// Every node has a connection.
fn raise_file_limit(nodes: u32) {
    let limit = getrlimit(Resource::Nofile);
    let needed = u64::from(nodes) + 500;
    assert!(
        limit.maximum.is_none_or(|maximum| maximum >= needed),
        "{nodes} nodes need {needed} open files: raise `ulimit -Hn`, or set LEASE_NODES"
    );
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}
