//! All Nodes of the cluster: their leases, the requests to them, and what is wrong with them.

use parking_lot::Mutex;
use std::sync::Arc;

use flannel_backend::Stack;
use flannel_common::send_if_changed;
use flannel_store::{Contact, Cursor, Snapshot, StoreEvent, StoreFindings};
use tokio::sync::{mpsc, watch};

use crate::annotations::Key;
use crate::api::Api;
use crate::client::{ApiError, Client};
use crate::follow::{self, Progress, Table};
use crate::node::{NodeResource, NodeView};
use crate::requests::RequestTexts;
use crate::table::NodeTable;
use crate::working::WorkingNodes;

#[derive(Debug)]
pub struct Cluster {
    pub api: Api,
    pub name: String,
    pub table: Mutex<NodeTable>,
    pub(crate) own: watch::Sender<Option<NodeView<'static>>>,
    /// The version up to which all Nodes are known, while they are being followed.
    pub(crate) followed: Mutex<Option<String>>,
    rng: Mutex<fastrand::Rng>,
    /// Nodes that a server speaks for and whose network works.
    pub(crate) working: Option<WorkingNodes>,
    pub(crate) contact: Contact,
    /// Requests in the Nodes that this process speaks for: its own, or all.
    pub(crate) requests: watch::Sender<RequestTexts>,
    /// Nodes that get no packets, for those whom this process serves.
    pub(crate) findings: watch::Sender<StoreFindings>,
}

impl Cluster {
    /// `name` is that of this node's own Node; empty for a client that is not a node.
    pub fn new(api: Api, name: &str, seed: u64) -> Self {
        Self {
            api,
            name: name.to_owned(),
            table: Mutex::new(NodeTable::new(name, Stack::default())),
            own: watch::Sender::new(None),
            followed: Mutex::new(None),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            working: None,
            contact: Contact::default(),
            requests: watch::Sender::default(),
            findings: watch::Sender::default(),
        }
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
        Ok(self.snapshot_at(follow::list(self).await?))
    }

    fn snapshot_at(&self, version: String) -> Snapshot {
        Snapshot { leases: self.table.lock().leases(), cursor: Cursor::new(version) }
    }

    /// Follows all Nodes until the receiver is dropped. Must be called within a tokio runtime.
    pub fn follow(self: &Arc<Self>, cursor: &Cursor) -> mpsc::Receiver<StoreEvent> {
        let version = cursor.text().map(str::to_owned);
        let rng = self.rng.lock().fork();
        follow::follow(self.clone(), version, rng)
    }

    /// Publishes Nodes that get no packets. All leases are read for that, so only where one may be new or gone.
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
            findings.conflicts.is_empty() && findings.unusable == table.unusable
        };
        if is_old && !changes.is_empty() && !changes.iter().any(is_shared) {
            return;
        }
        send_if_changed(&self.findings, table.findings());
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
            let same = match (&*former, &table.own_node) {
                (Some(former), Some(now)) => same_for_flannel(former, now),
                (former, now) => former.is_none() && now.is_none(),
            };
            former.clone_from(&table.own_node);
            !same
        });
    }

    fn check_condition(&self, node: &NodeView<'_>) {
        if let Some(working) = &self.working {
            working.check(node);
        }
    }
}

impl Table for Cluster {
    type Resource = NodeResource;
    type Event = StoreEvent;

    fn client(&self) -> &Client {
        &self.api.client
    }

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
        self.check_condition(node);
    }

    fn end_list(&self) {
        let mut table = self.table.lock();
        table.end_list();
        self.publish_own(&table);
        self.note_findings(&table, &[]);
    }

    fn put(&self, node: &NodeView<'_>) -> Vec<StoreEvent> {
        let mut table = self.table.lock();
        let put = table.put(node);
        if !put.is_empty() || self.findings.borrow().unusable != table.unusable {
            self.note_findings(&table, &put);
        }
        self.note_request(node);
        self.check_condition(node);
        if *node.name == *self.name {
            self.publish_own(&table);
        }
        put
    }

    fn deleted(&self, node: &NodeView<'_>) -> Option<StoreEvent> {
        let mut table = self.table.lock();
        self.requests.send_if_modified(|texts| texts.remove(&*node.name).is_some());
        let gone = table.deleted(&node.name);
        self.note_findings(&table, gone.as_slice());
        if *node.name == *self.name {
            self.publish_own(&table);
        }
        gone
    }

    fn snapshot(&self) -> StoreEvent {
        StoreEvent::Snapshot(self.table.lock().leases())
    }

    fn contact(&self, reached: Result<(), ApiError>) -> StoreEvent {
        let lost = |why: ApiError| StoreEvent::Down(why.into_store_error("").to_string());
        reached.map_or_else(lost, |()| StoreEvent::Up)
    }

    fn note(&self, progress: Progress<'_>) {
        match progress {
            Progress::Version(version) => *self.followed.lock() = version.map(str::to_owned),
            Progress::Contact => self.contact.note_contact(),
            Progress::Broken => self.contact.note_restart(),
        }
    }
}

/// Whether two states of a Node are the same but for the version, which changes all the time.
fn same_for_flannel(one: &NodeView<'_>, other: &NodeView<'_>) -> bool {
    one.uid == other.uid
        && one.annotations == other.annotations
        && one.networks().eq(other.networks())
        && one.network_unavailable == other.network_unavailable
}
