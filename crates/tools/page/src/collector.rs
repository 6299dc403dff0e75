//! Keeps a network's picture up to date while somebody looks: nodes are asked in turns, a few each tenth of a second.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flannel_common::Task;
use flannel_lease::{NetworkName, Subnet};
use flannel_state::PeerState;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::leases::{LeaseRow, LeaseSource};
use crate::node_client::{Answer, NodeClient};
use crate::node_connector::{NodeConnector, Pace};
use crate::picture::Picture;
use crate::reachability;

const TICK: Duration = Duration::from_millis(100);
/// Shortest pause between two readings of the store, and the share of time (one in so many) that they may take.
const STORE_PAUSE: Duration = Duration::from_secs(2);
const STORE_SHARE: u32 = 20;
/// Time that collecting goes on after the last viewer: a browser without a stream comes back by itself.
const LINGER: Duration = Duration::from_secs(40);

pub(crate) struct Collector {
    leases: Arc<dyn LeaseSource>,
    pub(crate) network: NetworkName,
    nodes: Option<Arc<dyn NodeConnector>>,
    picture: Mutex<Picture>,
    changed: watch::Sender<u64>,
    looking: Mutex<Viewers>,
}

#[derive(Default)]
struct Viewers {
    viewers: usize,
    last: Option<Instant>,
    is_running: bool,
}

pub(crate) struct Viewer(Arc<Collector>);

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut looking = self.0.looking();
        looking.viewers -= 1;
        looking.last = Some(Instant::now());
    }
}

impl Collector {
    pub(crate) fn new(
        leases: Arc<dyn LeaseSource>,
        network: NetworkName,
        nodes: Option<Arc<dyn NodeConnector>>,
    ) -> Self {
        let picture = Mutex::default();
        let changed = watch::Sender::new(0);
        Self { leases, network, nodes, picture, changed, looking: Mutex::default() }
    }

    /// Begins to collect if nobody has looked so far. Must be called within a tokio runtime.
    pub(crate) fn look(self: &Arc<Self>) -> Viewer {
        let mut looking = self.looking();
        looking.viewers += 1;
        if !looking.is_running {
            looking.is_running = true;
            Task::spawn("collector of the page", self.clone().collect()).detach();
        }
        drop(looking);
        Viewer(self.clone())
    }

    /// Waits, not long, until there is something to see.
    pub(crate) async fn first_look(&self) {
        let mut changes = self.changes();
        let timeout = Duration::from_millis(400);
        let seen = async {
            // With few nodes all have answered by then.
            while !self.is_seen() && changes.changed().await.is_ok() {}
        };
        let _ = tokio::time::timeout(timeout, seen).await;
    }

    fn is_seen(&self) -> bool {
        let picture = self.picture();
        picture.is_complete() || self.nodes.is_none() && picture.read.is_some()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn picture(&self) -> MutexGuard<'_, Picture> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn store(&self) -> String {
        self.leases.store()
    }

    pub(crate) fn way(&self) -> Option<&dyn NodeConnector> {
        self.nodes.as_deref()
    }

    pub(crate) async fn peers(&self, node: LeaseRow) -> Result<Vec<PeerState>, String> {
        let way = self.nodes.clone().ok_or("nodes are not asked here: no probe port is given")?;
        NodeClient::new(way, node).peers(self.network.as_str()).await
    }

    fn looking(&self) -> MutexGuard<'_, Viewers> {
        self.looking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn collect(self: Arc<Self>) {
        let mut asked: JoinSet<(Subnet, IpAddr, Answer, Option<Vec<PeerState>>)> = JoinSet::new();
        let mut store = JoinSet::new();
        let mut store_due = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    if self.is_over() {
                        return;
                    }
                    if store.is_empty() && Instant::now() >= store_due {
                        let (leases, network) = (self.leases.clone(), self.network.clone());
                        store.spawn(async move {
                            let began = Instant::now();
                            (leases.read(&network).await, began.elapsed())
                        });
                    }
                    self.ask_some(&mut asked);
                }
                Some(Ok((table, took))) = store.join_next() => {
                    store_due = Instant::now() + STORE_PAUSE.max(took * STORE_SHARE);
                    match table {
                        Ok(table) => self.picture().store_read(table, Instant::now()),
                        Err(why) => self.picture().store_failed(why),
                    }
                    self.tell();
                    // New nodes need not wait for the next tick.
                    self.ask_some(&mut asked);
                }
                Some(Ok((subnet, address, answer, peers))) = asked.join_next() => {
                    self.picture().answered(&subnet, address, answer, peers, Instant::now());
                    self.tell();
                }
            }
        }
    }

    fn ask_some(&self, asked: &mut JoinSet<(Subnet, IpAddr, Answer, Option<Vec<PeerState>>)>) {
        let Some(way) = &self.nodes else { return };
        let pace = way.pace();
        let most = pace.per_tick.min(pace.at_once.saturating_sub(asked.len()));
        let mut picture = self.picture();
        let count = picture.nodes.len();
        let due = picture.due(Instant::now(), period(count, pace), most);
        drop(picture);
        for (address, lease) in due {
            let network = self.network.clone();
            let (subnet, mut node) = (lease.subnet, NodeClient::new(way.clone(), lease));
            asked.spawn(async move {
                let answer = node.ask(network.as_str()).await;
                let peers = match &answer {
                    Answer::Report(..) if count <= reachability::MAX_MATRIX_NODES => {
                        node.peers(network.as_str()).await.ok()
                    }
                    _ => None,
                };
                (subnet, address, answer, peers)
            });
        }
    }

    fn tell(&self) {
        let version = self.picture().version;
        self.changed.send_if_modified(|told| std::mem::replace(told, version) != version);
    }

    /// Whether nobody has looked for a while; the picture is then forgotten.
    fn is_over(&self) -> bool {
        let mut looking = self.looking();
        let is_over = looking.viewers == 0 && looking.last.is_some_and(|at| at.elapsed() > LINGER);
        if is_over {
            looking.is_running = false;
            // Versions go on: somebody may come back who knows an earlier one.
            let mut picture = self.picture();
            *picture = Picture::after(&picture);
        }
        is_over
    }
}

fn period(count: usize, pace: Pace) -> Duration {
    let ticks = count.div_ceil(pace.per_tick) as u32;
    pace.shortest_period.max(TICK * ticks)
}
