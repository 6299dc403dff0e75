//! All Nodes, for a lease server that speaks for nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flannel_backend::Stack;
use flannel_common::{Task, sleep_until, spawn_sender};
use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, Subnet, SubnetOrigin};
use flannel_store::{
    Cursor, NodeNetwork, PublicAddresses, RequestStore, StoreError, StoreEvent, StoreFindings,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::events::{EventRate, Recorder};
use crate::lease::{attrs, overwrites};
use crate::named_node::{NamedNode, announce, set_available};
use crate::net_config::{NetConfigChanges, NetConfigFile};
use crate::node::NodeView;
use crate::options::KubeOptions;
use crate::requests::KubeRequests;
use crate::served::{ServedNode, ServedNodes};
use crate::working::WorkingNodes;

const EVENT_QUEUE: usize = 1_024;
const MIN_CONDITION_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct KubeNodes {
    cluster: Arc<Cluster>,
    pub net_config: NetConfigFile,
    set_condition: bool,
    events: Recorder,
    served: Arc<ServedNodes>,
    _conditions: Option<Task>,
    requests: KubeRequests,
}

impl KubeNodes {
    /// Needs no API server. Must be called within a tokio runtime.
    pub fn open(
        options: &KubeOptions,
        variable: impl Fn(&str) -> Option<String>,
        seed: u64,
    ) -> Result<Self, StoreError> {
        let (contradicted, doubted) = mpsc::channel(EVENT_QUEUE);
        let mut cluster = Cluster::new(options.api(variable)?, "", seed);
        cluster.working = Some(WorkingNodes { names: Mutex::default(), contradicted });
        let cluster = Arc::new(cluster);
        let conditions = options
            .set_node_network_unavailable
            .then(|| Task::spawn("conditions of Nodes", keep_conditions(cluster.clone(), doubted)));
        Ok(Self {
            events: Recorder::start(cluster.clone(), EventRate::SERVER),
            served: Arc::default(),
            requests: KubeRequests::new(cluster.clone()),
            cluster,
            net_config: NetConfigFile::new(options.net_config.clone()),
            set_condition: options.set_node_network_unavailable,
            _conditions: conditions,
        })
    }

    pub fn endpoint(&self) -> String {
        self.cluster.api.client.endpoint()
    }

    fn named<'a>(&'a self, name: &'a str) -> NamedNode<'a> {
        NamedNode {
            api: &self.cluster.api,
            name,
            if_missing: "a node's token or certificate must bear the name that the node has in Kubernetes \
                         (flannelctl pki token NAME; kubectl get nodes), and its kubelet must have run",
            net_config: &self.net_config.path,
        }
    }

    /// Announces the node of this name, on the subnet that it has been assigned; `has` is the one that it believes to have.
    pub async fn announce(
        &self,
        name: &str,
        config: &NetworkConfig,
        has: Option<Subnet>,
        attrs: &LeaseAttrs,
    ) -> Result<Lease, StoreError> {
        let named = self.named(name);
        let node = named.get().await?;
        let subnet = match (has, named.assigned(config, &node)) {
            (None, assigned) => assigned?,
            (Some(has), Ok(assigned)) if has == assigned => has,
            (Some(has), _) => return Err(StoreError::Lost { key: has.to_string() }),
        };
        self.note_announced(name, subnet, attrs, &node);
        announce(&self.cluster.api, name, &node, attrs).await?;
        Ok(named.lease(subnet, attrs, &node))
    }

    pub async fn public_addresses(&self, name: &str) -> Result<PublicAddresses, StoreError> {
        self.named(name).public_addresses().await
    }

    /// Records whether this node's network works, where its Node says something else.
    pub async fn report(&self, name: &str, network: &NodeNetwork) -> Result<(), StoreError> {
        let works = *network == NodeNetwork::Works;
        if let Some(working) = &self.cluster.working {
            working.set(name, works);
        }
        self.events.record_network(name, network);
        if !works || !self.set_condition {
            return Ok(());
        }
        let named = self.named(name);
        if named.get().await?.network_unavailable.as_deref() == Some("False") {
            return Ok(());
        }
        set_available(named.api, name).await.map_err(|error| error.into_store_error(name))
    }

    fn note_announced(&self, name: &str, subnet: Subnet, attrs: &LeaseAttrs, node: &NodeView<'_>) {
        let overwrites = overwrites(&node.annotations).unwrap_or_default();
        let before = self.served.note_announced(name, ServedNode::new(subnet, attrs, overwrites));
        if let Some(before) = before.filter(|before| *before != subnet) {
            self.events.record_subnet_change(name, before, Some(subnet));
        }
        let other = self.cluster.table.lock().other_on_subnet(name, subnet);
        self.served.note_clash(&self.events, name, other);
    }

    /// Events of the config and all leases. Must be called within a tokio runtime.
    pub fn watch(&self, cursor: &Cursor) -> mpsc::Receiver<StoreEvent> {
        let known = self.net_config.read().ok().flatten();
        set_families(&self.cluster, known.as_deref());
        let (cluster, served) = (self.cluster.clone(), self.served.clone());
        let nodes = self.cluster.follow(cursor);
        let (config, recorder) = (self.net_config.follow(known.clone()), self.events.clone());
        spawn_sender("watch of Nodes", EVENT_QUEUE, |events| async move {
            Watch { cluster, nodes, config, served, recorder, events }.run(known).await;
        })
    }

    /// Requests of operators to any node, told while [`Self::watch`] is.
    pub fn requests(&self) -> Arc<dyn RequestStore> {
        Arc::new(self.requests.clone())
    }

    /// Nodes that get no packets, told while [`Self::watch`] is.
    pub fn findings(&self) -> watch::Receiver<StoreFindings> {
        self.cluster.findings.subscribe()
    }
}

/// Sets the families of the config: both where there has been none to read. Whether that is a change.
fn set_families(cluster: &Cluster, config: Option<&str>) -> bool {
    let config = config.and_then(|text| NetworkConfig::read(text, SubnetOrigin::Store).ok());
    let mut table = cluster.table.lock();
    let families = match config {
        Some(config) => Stack::of(&config),
        None if table.families == Stack::default() => Stack { v4: true, v6: true },
        None => return false,
    };
    table.set_families(families)
}

/// Sets NetworkUnavailable=False again where something else has changed it, with a pause between two writes.
async fn keep_conditions(cluster: Arc<Cluster>, mut doubted: mpsc::Receiver<String>) {
    let mut written: BTreeMap<String, Instant> = BTreeMap::new();
    let mut due: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let next = due.values().min().copied();
        tokio::select! {
            name = doubted.recv() => {
                let Some(name) = name else { return };
                let now = Instant::now();
                written.retain(|_, at| now.duration_since(*at) < MIN_CONDITION_INTERVAL);
                let when = written.get(&name).map_or(now, |at| *at + MIN_CONDITION_INTERVAL);
                due.entry(name).or_insert(when);
            }
            () = sleep_until(next) => {
                let now = Instant::now();
                let names: Vec<String> =
                    due.extract_if(.., |_, when| *when <= now).map(|(name, _)| name).collect();
                for name in names {
                    if restore_condition(&cluster, &name).await {
                        written.insert(name, now);
                    }
                }
            }
        }
    }
}

/// Sets the condition if it is not False; whether it was written.
async fn restore_condition(cluster: &Cluster, name: &str) -> bool {
    let node = cluster.api.node(name).await;
    let is_available = |node: &NodeView<'_>| node.network_unavailable.as_deref() == Some("False");
    let set = match node {
        Ok(Some(node)) if !is_available(&node) => set_available(&cluster.api, name).await,
        Ok(_) => return false,
        Err(error) => Err(error),
    };
    // It is tried again with the Node's next heartbeat.
    if let Err(error) = &set {
        let error = error.clone().into_store_error(name);
        tracing::error!("Cannot set NetworkUnavailable=False on Node {name}: {error}");
    }
    set.is_ok()
}

struct Watch {
    cluster: Arc<Cluster>,
    nodes: mpsc::Receiver<StoreEvent>,
    config: NetConfigChanges,
    served: Arc<ServedNodes>,
    recorder: Recorder,
    /// A receiver that is gone ends the task.
    events: mpsc::Sender<StoreEvent>,
}

impl Watch {
    async fn run(&mut self, config: Option<String>) {
        _ = self.events.send(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
        loop {
            tokio::select! {
                biased;
                event = self.nodes.recv() => match event {
                    Some(event) => {
                        if let StoreEvent::Put(stored) = &event {
                            self.check_served(&stored.lease);
                        }
                        _ = self.events.send(event).await;
                    }
                    None => return,
                },
                config = self.config.next() => {
                    let other = set_families(&self.cluster, config.as_deref());
                    _ = self.events.send(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
                    // Until all Nodes are known, the list under way is going to tell of them.
                    if other && self.cluster.followed.lock().is_some() {
                        let leases = self.cluster.table.lock().leases();
                        _ = self.events.send(StoreEvent::Snapshot(leases)).await;
                    }
                }
            }
        }
    }

    /// Looks for what a served node need not find out by itself: that an operator no longer wants another address announced,
    /// and that another Node has its subnet.
    fn check_served(&self, lease: &Lease) {
        let (names, overwrites) = {
            let table = self.cluster.table.lock();
            let owner = lease.attrs.owner.clone();
            let overwrites = owner.map(|name| (table.overwrites(&name), name));
            (table.names_on(lease.subnet), overwrites)
        };
        for name in names.iter().filter(|name| self.served.has(name)) {
            let other = names.iter().find(|other| *other != name).cloned();
            self.served.note_clash(&self.recorder, name, other);
        }
        let Some((now, name)) = overwrites else { return };
        if let Some(own) = self.served.own_address_again(&name, now) {
            let cluster = self.cluster.clone();
            let write = async move { write_own_address(&cluster, &name, own).await };
            Task::spawn("address of a Node", write).detach();
        }
    }
}

async fn write_own_address(cluster: &Cluster, name: &str, own: PublicAddresses) {
    let write = async {
        let node = cluster.api.node(name).await.map_err(|error| error.into_store_error(name))?;
        let Some(node) = node else { return Ok(()) };
        let Ok(mut attrs) = attrs(&node.annotations) else { return Ok(()) };
        attrs.public_ip = own.v4.or(attrs.public_ip);
        attrs.public_ipv6 = own.v6.or(attrs.public_ipv6);
        announce(&cluster.api, name, &node, &attrs).await
    };
    let written: Result<(), StoreError> = write.await;
    if let Err(error) = written {
        // The node itself announces it within the hour.
        tracing::error!("Cannot announce the own address of node {name}: {error}");
    }
}
