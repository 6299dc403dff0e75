//! From a lease written in etcd to its route in the kernel.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use flannel_lab::Lab;
use flannel_lease::Subnet;
use flannel_store::{Cursor, EtcdOptions, EtcdStore, Store, StoreEvent};
use tokio::sync::oneshot;

use crate::{peers, routes, turns};

const LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn run(leases: u32, rounds: usize, against: Option<PathBuf>) -> anyhow::Result<()> {
    let lab = Lab::builder().nodes(1).config_json(peers::CONFIG).no_daemons().start()?;
    println!("{leases} leases written one by one; beyond etcd's own watch of the same write:");
    let part = leases.div_ceil(u32::try_from(rounds.max(1))?);
    let mut next = (0..).map(|n| n * part);
    turns::compare(rounds, against.as_ref(), |binary| {
        lab.node(1).flanneld().set_binary(binary);
        lab.node(1).flanneld().restart()?;
        measure(&lab, next.next().context("a number")?, part)
    })
}

fn measure(lab: &Lab, first: u32, count: u32) -> anyhow::Result<Vec<Duration>> {
    let (tell, hear) = mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let endpoints = lab.etcd()?.endpoints();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| lab.node(1).in_netns(|| watch(&endpoints, &tell, stopped)));
        std::thread::sleep(Duration::from_secs(1));
        let beyond = write_and_wait(lab, first, count, &hear);
        let _ = stop.send(());
        watcher.join().map_err(|_| anyhow!("the watcher has panicked"))???;
        beyond
    })
}

/// A bare watch of the same keys, to know when etcd has told anybody.
fn watch(
    endpoints: &str,
    tell: &mpsc::Sender<(Subnet, Instant)>,
    stopped: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let options = EtcdOptions {
        endpoints: endpoints.split(',').map(str::to_owned).collect(),
        prefix: "/coreos.com/network".to_owned(),
        ..EtcdOptions::default()
    };
    runtime.block_on(async {
        let mut events = EtcdStore::new(&options, None, 1)?.watch(Cursor::BEGINNING);
        tokio::pin!(stopped);
        loop {
            tokio::select! {
                _ = &mut stopped => return Ok(()),
                event = events.recv() => match event {
                    Some(StoreEvent::Put(stored)) => tell.send((stored.lease.subnet, Instant::now()))?,
                    Some(_) => {}
                    None => bail!("the watch has ended"),
                },
            }
        }
    })
}

/// Looks for each route from before its lease is written, so that the moment it appears is seen.
fn write_and_wait(
    lab: &Lab,
    first: u32,
    count: u32,
    hear: &mpsc::Receiver<(Subnet, Instant)>,
) -> anyhow::Result<Vec<Duration>> {
    let (next, order) = mpsc::channel::<u32>();
    let routed = std::thread::scope(|scope| -> anyhow::Result<Vec<Instant>> {
        let writer = scope.spawn(move || -> anyhow::Result<()> {
            for n in order {
                let (key, value) = peers::lease(n);
                lab.etcd()?.put(&format!("/coreos.com/network/subnets/{key}"), value)?;
            }
            Ok(())
        });
        let routed = lab.node(1).in_netns(move || {
            (first..first + count)
                .map(|n| {
                    next.send(n)?;
                    routes::wait_for(peers::subnet(n), LIMIT)
                })
                .collect()
        })?;
        writer.join().map_err(|_| anyhow!("the writer has panicked"))??;
        routed
    })?;
    let mut told = BTreeMap::<Subnet, Instant>::new();
    (first..first + count)
        .zip(routed)
        .map(|(n, routed)| {
            let subnet: Subnet = peers::lease(n).0.parse()?;
            // The daemon may have heard of it, and written the route, before us.
            while !told.contains_key(&subnet) {
                let (subnet, at) =
                    hear.recv_timeout(LIMIT).context("etcd's own watch missed a lease")?;
                told.insert(subnet, at);
            }
            let told = &told[&subnet];
            Ok(routed.saturating_duration_since(*told))
        })
        .collect()
}
