//! All Nodes of the cluster, known once and then followed for ever.
//!
//! They come through a watch that begins with all there is, where the server can do that, else page by
//! page. A watch that ends goes on where it ended; only a server that has forgotten that makes us take all
//! Nodes anew, and then not all nodes of the cluster at once.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flannel_common::{Backoff, Tries};
use flannel_store::{Contact, RequestId, StoreFindings, StoredLease};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::annotations::Key;
use crate::api::{Api, ApiError, Ended, From, is_not_streamed, is_too_old};
use crate::lease::Families;
use crate::message::{Event, EventKind};
use crate::node::NodeView;
use crate::requests::Asked;
use crate::table::{LeaseChange, NodeTable};
use crate::working::WorkingNodes;

const QUEUE: usize = 256;
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// A watch lasts between once and twice this time, so that not all end at once.
const SHORTEST_WATCH: Duration = Duration::from_secs(300);
/// All Nodes are taken anew within this time for each Node there is, and at most within the other.
const SPREAD_PER_NODE: Duration = Duration::from_millis(5);
const MOST_SPREAD: Duration = Duration::from_secs(60);

/// Until somebody says which.
const NO_FAMILY: Families = Families { v4: false, v6: false };

/// What has become of the leases.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterEvent {
    /// All of them: what is not among them is gone.
    Snapshot(Vec<StoredLease>),
    Changed(LeaseChange),
    /// The API server cannot be reached, and why. Once per loss, and once more if it then refuses us.
    Down(String),
    Up,
}

#[derive(Debug)]
pub struct Cluster {
    api: Api,
    name: String,
    table: Mutex<NodeTable>,
    /// This node's own Node.
    own: watch::Sender<Option<NodeView<'static>>>,
    /// The version up to which all Nodes are known, while they are being followed.
    followed: Mutex<Option<String>>,
    rng: Mutex<fastrand::Rng>,
    /// Of a server: those it speaks for.
    working: Option<WorkingNodes>,
    contact: Contact,
    /// What is asked of the Nodes that this process speaks for: its own, or all.
    asked: watch::Sender<Asked>,
    /// Nodes that get no packets, for those whom this process serves.
    findings: watch::Sender<StoreFindings>,
    /// Of which Nodes this process asks something.
    placed: Mutex<BTreeMap<RequestId, Vec<Box<str>>>>,
}

/// All leases at one instant.
#[derive(Clone, Debug)]
pub struct Listed {
    pub leases: Vec<StoredLease>,
    /// Following goes on after this.
    pub version: String,
}

impl Cluster {
    /// `name` is that of this node's own Node.
    pub fn new(api: Api, name: &str, seed: u64) -> Self {
        Self::with_table(api, name, NodeTable::new(name, NO_FAMILY), seed)
    }

    /// For clients that are not nodes.
    pub fn of_nobody(api: Api, seed: u64) -> Self {
        Self::with_table(api, "", NodeTable::named(NO_FAMILY), seed)
    }

    fn with_table(api: Api, name: &str, table: NodeTable, seed: u64) -> Self {
        Self {
            api,
            name: name.to_owned(),
            table: Mutex::new(table),
            own: watch::Sender::new(None),
            followed: Mutex::new(None),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            working: None,
            contact: Contact::default(),
            asked: watch::Sender::default(),
            findings: watch::Sender::default(),
            placed: Mutex::default(),
        }
    }

    /// Looks after the conditions of Nodes whose network works.
    pub(crate) fn looking_after(self, working: WorkingNodes) -> Self {
        Self { working: Some(working), ..self }
    }

    pub(crate) fn working(&self) -> Option<&WorkingNodes> {
        self.working.as_ref()
    }

    /// When the API server was last heard of.
    pub fn contact(&self) -> &Contact {
        &self.contact
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The name of this node's own Node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This node's own Node, as it was last seen.
    pub fn own(&self) -> watch::Receiver<Option<NodeView<'static>>> {
        self.own.subscribe()
    }

    pub fn table(&self) -> MutexGuard<'_, NodeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All leases: as they are known where Nodes are being followed, else from scratch.
    pub async fn leases(&self) -> Result<Listed, ApiError> {
        let followed = self.followed().clone();
        match followed {
            Some(version) => Ok(Listed { leases: self.table().leases(), version }),
            None => self.list().await,
        }
    }

    /// All Nodes, from scratch. Not to be called while they are being followed.
    pub async fn list(&self) -> Result<Listed, ApiError> {
        match self.stream().await {
            Err(error) if is_not_streamed(&error) => {
                tracing::debug!("The API server does not stream lists ({error}): asking for pages");
                self.table().begin_list();
                let version = self.api.list(|node| self.take_listed(&node)).await?;
                Ok(self.listed(version))
            }
            done => done,
        }
    }

    async fn stream(&self) -> Result<Listed, ApiError> {
        let mut watch = self.api.watch(From::All, SHORTEST_WATCH).await?;
        self.table().begin_list();
        let mut version = None;
        while version.is_none() {
            let next = watch.next(self.api.prefix(), |event| {
                match event {
                    Event::Node(EventKind::Bookmark, node) if node.ends_initial_events => {
                        version = Some(node.resource_version.into_owned());
                    }
                    Event::Node(EventKind::Added | EventKind::Modified, node) => {
                        self.take_listed(&node);
                    }
                    Event::Node(EventKind::Deleted, node) => {
                        self.table().deleted(&node.name);
                    }
                    Event::Node(EventKind::Bookmark, _) => {}
                    Event::Error(status) => return Err(status),
                }
                Ok(())
            });
            match next.await {
                Ok(Ok(())) => {}
                Ok(Err(status)) => return Err(self.api.watch_error(status)),
                Err(ended) => return Err(self.api.watch_broke(ended)),
            }
        }
        Ok(self.listed(version.unwrap_or_default()))
    }

    fn take_listed(&self, node: &NodeView<'_>) {
        self.table().listed(node);
        self.note_asked(node);
        if let Some(working) = &self.working {
            working.look(node);
        }
    }

    fn listed(&self, version: String) -> Listed {
        let mut table = self.table();
        let leases = table.end_list();
        self.tell_own(&table);
        self.note_findings(&table, &[]);
        Listed { leases, version }
    }

    /// Follows all Nodes from a version on, or from scratch, until the receiver is dropped. Must be called
    /// within a tokio runtime.
    pub fn follow(self: &Arc<Self>, version: Option<String>) -> mpsc::Receiver<ClusterEvent> {
        let (events, receiver) = mpsc::channel(QUEUE);
        let closed = events.clone();
        let backoff = RETRY.tries(self.rng().fork());
        let cluster = self.clone();
        self.followed().clone_from(&version);
        let mut following = Following { cluster, events, version, backoff, down: None };
        tokio::spawn(async move {
            tokio::select! {
                _ = following.run() => {}
                () = closed.closed() => {}
            }
        });
        receiver
    }

    /// Nodes that get no packets, told to those whom this process serves while Nodes are followed.
    pub(crate) fn findings(&self) -> watch::Receiver<StoreFindings> {
        self.findings.subscribe()
    }

    /// Takes note of Nodes that get no packets, after these changes. All leases are read for that, so it is done where
    /// one of them may be new or gone.
    fn note_findings(&self, table: &NodeTable, changes: &[LeaseChange]) {
        // A node's own process asks when somebody wants to know.
        if !self.name.is_empty() {
            return;
        }
        let is_shared = |change: &LeaseChange| match change {
            LeaseChange::Put(stored) => table.names_on(stored.lease.subnet).len() > 1,
            LeaseChange::Gone(_) => false,
        };
        let is_old = {
            let told = self.findings.borrow();
            told.conflicts.is_empty() && told.unusable == *table.unusable()
        };
        if is_old && !changes.is_empty() && !changes.iter().any(is_shared) {
            return;
        }
        let now = table.findings();
        self.findings.send_if_modified(|told| {
            let is_changed = *told != now;
            *told = now;
            is_changed
        });
    }

    /// What is asked of Nodes, as they were last seen.
    pub(crate) fn asked(&self) -> watch::Receiver<Asked> {
        self.asked.subscribe()
    }

    pub(crate) fn placed(&self) -> MutexGuard<'_, BTreeMap<RequestId, Vec<Box<str>>>> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_asked(&self, node: &NodeView<'_>) {
        if !self.name.is_empty() && *self.name != *node.name {
            return;
        }
        let request = node.annotations.text(Key::Request);
        let is_asked = request.is_some() || node.annotations.get(Key::Answer).is_some();
        self.asked.send_if_modified(|asked| match (is_asked, asked.get(&*node.name)) {
            (false, None) => false,
            (false, Some(_)) => asked.remove(&*node.name).is_some(),
            (true, Some(known)) if known.as_deref() == request => false,
            (true, _) => {
                asked.insert((*node.name).into(), request.map(Into::into));
                true
            }
        });
    }

    fn tell_own(&self, table: &NodeTable) {
        self.own.send_if_modified(|former| {
            let same = match (&*former, table.own()) {
                (Some(former), Some(now)) => same_to_us(former, now),
                (former, now) => former.is_none() && now.is_none(),
            };
            *former = table.own().cloned();
            !same
        });
    }

    fn followed(&self) -> MutexGuard<'_, Option<String>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rng(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Its version changes all the time.
fn same_to_us(one: &NodeView<'_>, other: &NodeView<'_>) -> bool {
    one.uid == other.uid
        && one.annotations == other.annotations
        && one.networks().eq(other.networks())
        && one.network_unavailable == other.network_unavailable
}

impl Drop for Following {
    fn drop(&mut self) {
        *self.cluster.followed() = None;
    }
}

struct Following {
    cluster: Arc<Cluster>,
    events: mpsc::Sender<ClusterEvent>,
    version: Option<String>,
    backoff: Tries,
    /// While the API server is lost: with what status it refuses us, if it is there and does.
    down: Option<Option<u16>>,
}

impl Following {
    async fn run(&mut self) -> Infallible {
        loop {
            let began = Instant::now();
            let mut moves = self.cluster.api.moves();
            let ended = tokio::select! {
                ended = self.step() => ended,
                _ = moves.changed() => {
                    self.backoff.reset();
                    continue;
                }
            };
            if began.elapsed() > RETRY.most {
                self.backoff.reset();
            }
            let Err(error) = ended else { continue };
            self.cluster.contact.restarted();
            let pause = self.backoff.pause().max(error.retry_after().unwrap_or_default());
            self.lost(error).await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes all Nodes, or follows them until the server ends that.
    async fn step(&mut self) -> Result<(), ApiError> {
        let Some(version) = self.version.clone() else {
            let listed = self.cluster.list().await?;
            self.found().await;
            self.reached(listed.version);
            self.tell(ClusterEvent::Snapshot(listed.leases)).await;
            return Ok(());
        };
        match self.watch(&version).await {
            Err(error) if is_too_old(&error) => {
                let spread = self.spread();
                tracing::info!(
                    "The API server cannot go on from where we were: taking all Nodes anew in {spread:.1?}"
                );
                self.version = None;
                tokio::time::sleep(spread).await;
                Ok(())
            }
            ended => ended,
        }
    }

    async fn watch(&mut self, version: &str) -> Result<(), ApiError> {
        let cluster = self.cluster.clone();
        let lasting = SHORTEST_WATCH.mul_f64(1.0 + cluster.rng().f64());
        let began = Instant::now();
        let mut watch = cluster.api.watch(From::Version(version), lasting).await?;
        self.found().await;
        cluster.contact.heard();
        loop {
            let (mut changes, mut reached) = (Vec::new(), None);
            let next = watch.next(cluster.api.prefix(), |event| {
                let (kind, node) = match event {
                    Event::Node(kind, node) => (kind, node),
                    Event::Error(status) => return Err(status),
                };
                cluster.take(kind, &node, &mut changes);
                reached = Some(node.resource_version.into_owned());
                Ok(())
            });
            let next = next.await;
            if next.is_ok() {
                cluster.contact.heard();
            }
            for change in changes {
                self.tell(ClusterEvent::Changed(change)).await;
            }
            // Only after what happened up to there was told.
            if let Some(version) = reached.filter(|version| !version.is_empty()) {
                self.reached(version);
            }
            match next {
                Ok(Ok(())) => self.backoff.reset(),
                Ok(Err(status)) => return Err(cluster.api.watch_error(status)),
                Err(Ended::InTime) => {
                    // A server that is about to end closes what it has just accepted.
                    if began.elapsed() < SHORTEST_WATCH {
                        tokio::time::sleep(self.backoff.pause()).await;
                    }
                    return Ok(());
                }
                Err(ended) => return Err(cluster.api.watch_broke(ended)),
            }
        }
    }

    fn reached(&mut self, version: String) {
        *self.cluster.followed() = Some(version.clone());
        self.version = Some(version);
    }

    fn spread(&self) -> Duration {
        let nodes = u32::try_from(self.cluster.table().len()).unwrap_or(u32::MAX);
        let most = SPREAD_PER_NODE.saturating_mul(nodes).min(MOST_SPREAD);
        most.mul_f64(self.cluster.rng().f64())
    }

    /// Says it once, and again when a server that was away is back and refuses us: that is for somebody to mend.
    async fn lost(&mut self, error: ApiError) {
        let refused = error.code().filter(|code| matches!(code, 401 | 403));
        let told = self.down.replace(refused);
        if told.is_none() || (refused.is_some() && told != Some(refused)) {
            let why = error.into_store_error("").to_string();
            self.tell(ClusterEvent::Down(why)).await;
        } else {
            tracing::debug!("The API server is still away: {error}");
        }
    }

    async fn found(&mut self) {
        if self.down.take().is_some() {
            self.tell(ClusterEvent::Up).await;
        }
    }

    async fn tell(&self, event: ClusterEvent) {
        // A receiver that is gone ends the whole task.
        let _ = self.events.send(event).await;
    }
}

impl Cluster {
    /// Takes note of an event.
    fn take(&self, kind: EventKind, node: &NodeView<'_>, changes: &mut Vec<LeaseChange>) {
        let mut table = self.table();
        match kind {
            EventKind::Added | EventKind::Modified => {
                let put = table.put(node);
                if !put.is_empty() || self.findings.borrow().unusable != *table.unusable() {
                    self.note_findings(&table, &put);
                }
                changes.extend(put);
                self.note_asked(node);
                if let Some(working) = &self.working {
                    working.look(node);
                }
            }
            EventKind::Deleted => {
                self.asked.send_if_modified(|asked| asked.remove(&*node.name).is_some());
                let gone = table.deleted(&node.name);
                self.note_findings(&table, gone.as_slice());
                changes.extend(gone);
            }
            EventKind::Bookmark => return,
        }
        if *node.name == *self.name {
            self.tell_own(&table);
        }
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
