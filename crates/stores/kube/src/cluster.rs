//! All Nodes of the cluster: their leases, the requests to them, and what is wrong with them.

use parking_lot::Mutex;
use std::sync::Arc;

use flannel_common::send_if_changed;
use flannel_store::{Contact, Cursor, Snapshot, StoreEvent, StoreFindings};
use tokio::sync::{mpsc, watch};

use crate::annotations::Key;
use crate::api::Api;
use crate::client::ApiError;
use crate::follow::{self, Progress, Table};
use crate::lease::Families;
use crate::node::{NodeResource, NodeView};
use crate::requests::RequestTexts;
use crate::table::NodeTable;
use crate::working::WorkingNodes;

#[derive(Debug)]
pub struct Cluster {
    pub api: Api,
    /// Name of this node's own Node.
    pub name: String,
    pub table: Mutex<NodeTable>,
    /// This node's own Node.
    own: watch::Sender<Option<NodeView<'static>>>,
    /// The version up to which all Nodes are known, while they are being followed.
    followed: Mutex<Option<String>>,
    rng: Mutex<fastrand::Rng>,
    /// Nodes that a server speaks for and whose network works.
    pub(crate) working: Option<WorkingNodes>,
    /// Last contact with the API server.
    pub(crate) contact: Contact,
    /// Requests in the Nodes that this process speaks for: its own, or all.
    requests: watch::Sender<RequestTexts>,
    /// Nodes that get no packets, for those whom this process serves.
    findings: watch::Sender<StoreFindings>,
}

impl Cluster {
    /// `name` is that of this node's own Node; empty for a client that is not a node.
    pub fn new(api: Api, name: &str, seed: u64) -> Self {
        Self {
            api,
            name: name.to_owned(),
            table: Mutex::new(NodeTable::new(name, Families::default())),
            own: watch::Sender::new(None),
            followed: Mutex::new(None),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            working: None,
            contact: Contact::default(),
            requests: watch::Sender::default(),
            findings: watch::Sender::default(),
        }
    }

    /// Looks after the conditions of Nodes whose network works.
    pub(crate) fn looking_after(self, working: WorkingNodes) -> Self {
        Self { working: Some(working), ..self }
    }

    /// This node's own Node, as it was last seen.
    pub fn own(&self) -> watch::Receiver<Option<NodeView<'static>>> {
        self.own.subscribe()
    }

    /// All leases: as they are known where Nodes are being followed, else from scratch.
    pub async fn leases(&self) -> Result<Snapshot, ApiError> {
        let followed = self.followed.lock().clone();
        match followed {
            Some(version) => Ok(self.snapshot_at(version)),
            None => self.list().await,
        }
    }

    /// All Nodes, from scratch. Not to be called while they are being followed.
    pub async fn list(&self) -> Result<Snapshot, ApiError> {
        Ok(self.snapshot_at(follow::list(&self.api.client, self).await?))
    }

    fn snapshot_at(&self, version: String) -> Snapshot {
        Snapshot { leases: self.table.lock().leases(), cursor: Cursor::new(version) }
    }

    /// Follows all Nodes from a cursor on, until the receiver is dropped. Must be called
    /// within a tokio runtime.
    pub fn follow(self: &Arc<Self>, cursor: &Cursor) -> mpsc::Receiver<StoreEvent> {
        let version = cursor.text().map(str::to_owned);
        let rng = self.rng.lock().fork();
        follow::follow(self.api.client.clone(), self.clone(), version, rng)
    }

    /// Nodes that get no packets, published while Nodes are followed.
    pub(crate) fn findings(&self) -> watch::Receiver<StoreFindings> {
        self.findings.subscribe()
    }

    /// Publishes Nodes that get no packets, after these changes. All leases are read for that, so it is done only where one
    /// of them may be new or gone.
    fn note_findings(&self, table: &NodeTable, changes: &[StoreEvent]) {
        // A node's own process reads the table when needed.
        if !self.name.is_empty() {
            return;
        }
        let is_shared = |change: &StoreEvent| match change {
            StoreEvent::Put(stored) => table.names_on(stored.lease.subnet).len() > 1,
            _ => false,
        };
        let is_old = {
            let findings = self.findings.borrow();
            findings.conflicts.is_empty() && findings.unusable == *table.unusable()
        };
        if is_old && !changes.is_empty() && !changes.iter().any(is_shared) {
            return;
        }
        send_if_changed(&self.findings, table.findings());
    }

    /// Requests in Nodes, as they were last seen.
    pub(crate) fn requests(&self) -> watch::Receiver<RequestTexts> {
        self.requests.subscribe()
    }

    fn note_request(&self, node: &NodeView<'_>) {
        if !self.name.is_empty() && *self.name != *node.name {
            return;
        }
        let request = node.annotations.text(Key::Request);
        let is_annotated = request.is_some() || node.annotations.get(Key::Answer).is_some();
        self.requests.send_if_modified(|texts| match (is_annotated, texts.get(&*node.name)) {
            (false, None) => false,
            (false, Some(_)) => texts.remove(&*node.name).is_some(),
            (true, Some(known)) if known.as_deref() == request => false,
            (true, _) => {
                texts.insert((*node.name).into(), request.map(Into::into));
                true
            }
        });
    }

    fn publish_own(&self, table: &NodeTable) {
        self.own.send_if_modified(|former| {
            let same = match (&*former, table.own()) {
                (Some(former), Some(now)) => same_for_flannel(former, now),
                (former, now) => former.is_none() && now.is_none(),
            };
            *former = table.own().cloned();
            !same
        });
    }
}

/// Whether two states of a Node are the same but for the version, which changes all the time.
fn same_for_flannel(one: &NodeView<'_>, other: &NodeView<'_>) -> bool {
    one.uid == other.uid
        && one.annotations == other.annotations
        && one.networks().eq(other.networks())
        && one.network_unavailable == other.network_unavailable
}

impl Table for Cluster {
    type Resource = NodeResource;
    type Event = StoreEvent;

    fn resource(&self) -> &NodeResource {
        &self.api.nodes
    }

    fn size(&self) -> usize {
        self.table.lock().len()
    }

    fn begin_list(&self) {
        self.table.lock().begin_list();
    }

    fn listed(&self, node: &NodeView<'_>) {
        self.table.lock().listed(node);
        self.note_request(node);
        if let Some(working) = &self.working {
            working.check(node);
        }
    }

    fn end_list(&self) {
        let mut table = self.table.lock();
        table.end_list();
        self.publish_own(&table);
        self.note_findings(&table, &[]);
    }

    fn put(&self, node: &NodeView<'_>, events: &mut Vec<StoreEvent>) {
        let mut table = self.table.lock();
        let put = table.put(node);
        if !put.is_empty() || self.findings.borrow().unusable != *table.unusable() {
            self.note_findings(&table, &put);
        }
        events.extend(put);
        self.note_request(node);
        if let Some(working) = &self.working {
            working.check(node);
        }
        if *node.name == *self.name {
            self.publish_own(&table);
        }
    }

    fn deleted(&self, node: &NodeView<'_>, events: &mut Vec<StoreEvent>) {
        let mut table = self.table.lock();
        self.requests.send_if_modified(|texts| texts.remove(&*node.name).is_some());
        let gone = table.deleted(&node.name);
        self.note_findings(&table, gone.as_slice());
        events.extend(gone);
        if *node.name == *self.name {
            self.publish_own(&table);
        }
    }

    fn snapshot(&self) -> StoreEvent {
        StoreEvent::Snapshot(self.table.lock().leases())
    }

    fn down(&self, why: ApiError) -> StoreEvent {
        StoreEvent::Down(why.into_store_error("").to_string())
    }

    fn up(&self) -> StoreEvent {
        StoreEvent::Up
    }

    fn note(&self, progress: Progress<'_>) {
        match progress {
            Progress::Reached(version) => *self.followed.lock() = Some(version.to_owned()),
            Progress::Contact => self.contact.note_contact(),
            Progress::Broken => self.contact.note_restart(),
            Progress::Stopped => *self.followed.lock() = None,
        }
    }
}
