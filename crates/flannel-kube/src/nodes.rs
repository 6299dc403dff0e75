//! All Nodes, for a lease server that speaks for nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, Subnet, SubnetOrigin};
use flannel_store::{
    Cursor, NodeAnswer, NodeNetwork, NodeRequest, PublicAddresses, RequestId, Requests, StoreError,
    StoreEvent, StoreFindings,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::cluster::{Cluster, ClusterEvent};
use crate::events::{Bound, Reason, Recorder, subnet_changed};
use crate::lease::{Families, Overwrites, attrs};
use crate::named_node::{NamedNode, announce, set_available};
use crate::net_config::{NetConfigChanges, NetConfigFile};
use crate::node::NodeView;
use crate::options::KubeOptions;
use crate::served::{Served, ServedNodes};
use crate::table::LeaseChange;
use crate::working::WorkingNodes;

const QUEUE: usize = 1_024;
/// A condition is written no more often than this.
const PEACE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct KubeNodes {
    cluster: Arc<Cluster>,
    net_config: NetConfigFile,
    set_condition: bool,
    events: Recorder,
    /// Nodes of which it was said that their network does not work.
    failed: Mutex<BTreeSet<String>>,
    served: Arc<ServedNodes>,
}

impl KubeNodes {
    /// Needs no API server. Must be called within a tokio runtime.
    pub fn open(
        options: &KubeOptions,
        variable: impl Fn(&str) -> Option<String>,
        seed: u64,
    ) -> Result<Self, StoreError> {
        let (sender, doubted) = mpsc::channel(QUEUE);
        let cluster = Cluster::of_nobody(options.api(variable)?, seed);
        let cluster = Arc::new(cluster.looking_after(WorkingNodes::new(sender)));
        if options.set_node_network_unavailable {
            tokio::spawn(keep_conditions(cluster.clone(), doubted));
        }
        Ok(Self {
            events: Recorder::start(cluster.clone(), Bound::SERVER),
            failed: Mutex::default(),
            served: Arc::default(),
            cluster,
            net_config: NetConfigFile::new(options.net_config.clone()),
            set_condition: options.set_node_network_unavailable,
        })
    }

    pub fn endpoint(&self) -> String {
        self.cluster.api().endpoint()
    }

    pub fn net_config(&self) -> &NetConfigFile {
        &self.net_config
    }

    fn named<'a>(&'a self, name: &'a str) -> NamedNode<'a> {
        NamedNode {
            api: self.cluster.api(),
            name,
            if_missing: "a node's token or certificate must bear the name that the node has in Kubernetes \
                         (flannelctl pki token NAME; kubectl get nodes), and its kubelet must have run",
            net_config: self.net_config.path(),
        }
    }

    /// For the node of this name: announces it, on the subnet that it has been assigned.
    pub async fn acquire(
        &self,
        name: &str,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
    ) -> Result<Lease, StoreError> {
        let named = self.named(name);
        let node = named.get().await?;
        let subnet = named.assigned(config, &node)?;
        self.note(name, subnet, attrs, &node);
        named.announce(&node, attrs).await?;
        Ok(named.lease(subnet, attrs, &node))
    }

    /// For the node of this name, which has this subnet: announces it anew.
    pub async fn renew(
        &self,
        name: &str,
        config: &NetworkConfig,
        has: Subnet,
        attrs: &LeaseAttrs,
    ) -> Result<Lease, StoreError> {
        let named = self.named(name);
        let node = named.get().await?;
        if named.assigned(config, &node).ok() != Some(has) {
            return Err(StoreError::Lost { key: has.to_string() });
        }
        self.note(name, has, attrs, &node);
        named.announce(&node, attrs).await?;
        Ok(named.lease(has, attrs, &node))
    }

    pub async fn public_addresses(&self, name: &str) -> Result<PublicAddresses, StoreError> {
        self.named(name).public_addresses().await
    }

    /// Takes note of how the network of this node is, where its Node says something else.
    pub async fn report(&self, name: &str, network: &NodeNetwork) -> Result<(), StoreError> {
        let works = *network == NodeNetwork::Works;
        self.note_working(name, network);
        if !works || !self.set_condition {
            return Ok(());
        }
        let named = self.named(name);
        if named.get().await?.network_unavailable.as_deref() == Some("False") {
            return Ok(());
        }
        named.network_works().await.map_err(|error| error.into_store_error(name))
    }

    fn note_working(&self, name: &str, network: &NodeNetwork) {
        if let Some(working) = self.cluster.working() {
            working.set(name, *network == NodeNetwork::Works);
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match network {
            NodeNetwork::Fails(why) => {
                failed.insert(name.to_owned());
                self.events.say(name, Reason::NotReady, why);
            }
            NodeNetwork::Works if failed.remove(name) => {
                self.events.say(name, Reason::Ready, "pods of this node reach others again");
            }
            NodeNetwork::Works => {}
        }
    }

    /// Takes note of what a node says of itself.
    fn note(&self, name: &str, subnet: Subnet, attrs: &LeaseAttrs, node: &NodeView<'_>) {
        let overwrites = Overwrites::read(&node.annotations).unwrap_or_default();
        let before = self.served.announced(name, Served::new(subnet, attrs, overwrites));
        if let Some(before) = before.filter(|before| *before != subnet) {
            let text = subnet_changed(before, Some(subnet));
            self.events.say(name, Reason::SubnetChanged, text);
        }
        let twin = self.cluster.table().twin_of(name, subnet);
        self.served.tell_clash(&self.events, name, twin);
    }

    /// The config and all leases, and what becomes of them, for ever. Must be called within a tokio runtime.
    pub fn watch(&self, cursor: &Cursor) -> mpsc::Receiver<StoreEvent> {
        let (events, receiver) = mpsc::channel(QUEUE);
        let closed = events.clone();
        let known = self.net_config.read().ok().flatten();
        self.set_families(known.as_deref());
        let mut watch = Watch {
            cluster: self.cluster.clone(),
            nodes: self.cluster.follow(cursor.text().map(str::to_owned)),
            config: self.net_config.follow(known.clone()),
            served: self.served.clone(),
            recorder: self.events.clone(),
            events,
        };
        tokio::spawn(async move {
            tokio::select! {
                () = watch.run(known) => {}
                () = closed.closed() => {}
            }
        });
        receiver
    }

    /// What operators ask of any node, told while [`Self::watch`] is. Must be called within a tokio runtime.
    pub fn requests(&self) -> watch::Receiver<Requests> {
        crate::requests::hear(self.cluster.clone())
    }

    /// Nodes that get no packets, told while [`Self::watch`] is.
    pub fn findings(&self) -> watch::Receiver<StoreFindings> {
        self.cluster.findings()
    }

    pub async fn place(&self, request: &NodeRequest) -> Result<(), StoreError> {
        self.cluster.place(request).await
    }

    pub async fn withdraw(&self, request: &RequestId) -> Result<(), StoreError> {
        self.cluster.withdraw(request).await
    }

    pub async fn answers(&self, to: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        self.cluster.answers(to).await
    }

    pub async fn answer(&self, to: &RequestId, answer: &NodeAnswer) -> Result<(), StoreError> {
        let lost = || StoreError::Lost { key: to.to_string() };
        let name = self.cluster.table().named_of(answer.node).ok_or_else(lost)?;
        self.cluster.answer(&name, to, answer).await
    }

    fn set_families(&self, config: Option<&str>) {
        set_families(&self.cluster, config);
    }
}

/// Those of the config; as they were if it cannot be read, both where there has been none. Whether that is
/// other than before.
fn set_families(cluster: &Cluster, config: Option<&str>) -> bool {
    let config = config.and_then(|text| NetworkConfig::read(text, SubnetOrigin::Store).ok());
    let mut table = cluster.table();
    let families = match config {
        Some(config) => Families::of(&config),
        None if table.families() == (Families { v4: false, v6: false }) => {
            Families { v4: true, v6: true }
        }
        None => return false,
    };
    table.set_families(families)
}

/// Says again that the network of a node works, where somebody else says otherwise; with a pause, if somebody
/// else does not give in either.
async fn keep_conditions(cluster: Arc<Cluster>, mut doubted: mpsc::Receiver<String>) {
    let mut written: BTreeMap<String, Instant> = BTreeMap::new();
    let mut due: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let next = due.values().min().copied();
        tokio::select! {
            name = doubted.recv() => {
                let Some(name) = name else { return };
                let now = Instant::now();
                written.retain(|_, at| now.duration_since(*at) < PEACE);
                let when = written.get(&name).map_or(now, |at| *at + PEACE);
                due.entry(name).or_insert(when);
            }
            () = sleep_until(next) => {
                let now = Instant::now();
                let names: Vec<String> =
                    due.extract_if(.., |_, when| *when <= now).map(|(name, _)| name).collect();
                for name in names {
                    if set_again(&cluster, &name).await {
                        written.insert(name, now);
                    }
                }
            }
        }
    }
}

/// Whether it was written.
async fn set_again(cluster: &Cluster, name: &str) -> bool {
    let node = cluster.api().node(name).await;
    let stands = |node: &NodeView<'_>| node.network_unavailable.as_deref() == Some("False");
    let set = match node {
        Ok(Some(node)) if !stands(&node) => set_available(cluster.api(), name).await,
        Ok(_) => return false,
        Err(error) => Err(error),
    };
    // It is tried again with the Node's next heartbeat.
    if let Err(error) = &set {
        let error = error.clone().into_store_error(name);
        tracing::error!("Cannot say that the network of node {name} works: {error}");
    }
    set.is_ok()
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

struct Watch {
    cluster: Arc<Cluster>,
    nodes: mpsc::Receiver<ClusterEvent>,
    config: NetConfigChanges,
    served: Arc<ServedNodes>,
    recorder: Recorder,
    events: mpsc::Sender<StoreEvent>,
}

impl Watch {
    async fn run(&mut self, config: Option<String>) {
        self.tell(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
        loop {
            tokio::select! {
                biased;
                event = self.nodes.recv() => match event {
                    Some(event) => {
                        if let ClusterEvent::Changed(LeaseChange::Put(stored)) = &event {
                            self.look_at(&stored.lease);
                        }
                        self.tell(store_event(event)).await;
                    }
                    None => return,
                },
                config = self.config.next() => {
                    let other = set_families(&self.cluster, config.as_deref());
                    self.tell(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
                    if other {
                        let leases = self.cluster.table().leases();
                        self.tell(StoreEvent::Snapshot(leases)).await;
                    }
                }
            }
        }
    }

    /// What a node that is served need not find out by itself: that an operator no longer wants another address
    /// announced, and that another Node has its subnet.
    fn look_at(&self, lease: &Lease) {
        let (names, overwrites) = {
            let table = self.cluster.table();
            let owner = lease.attrs.owner.clone();
            let overwrites = owner.map(|name| (table.overwrites(&name), name));
            (table.names_on(lease.subnet), overwrites)
        };
        for name in names.iter().filter(|name| self.served.has(name)) {
            let other = names.iter().find(|other| *other != name).cloned();
            self.served.tell_clash(&self.recorder, name, other);
        }
        let Some((now, name)) = overwrites else { return };
        if let Some(own) = self.served.own_address_again(&name, now) {
            let cluster = self.cluster.clone();
            tokio::spawn(async move { write_own_address(&cluster, &name, own).await });
        }
    }

    async fn tell(&self, event: StoreEvent) {
        // A receiver that is gone ends the whole task.
        let _ = self.events.send(event).await;
    }
}

/// Announces the addresses that the node itself has found.
async fn write_own_address(cluster: &Cluster, name: &str, own: PublicAddresses) {
    let write = async {
        let node = cluster.api().node(name).await.map_err(|error| error.into_store_error(name))?;
        let Some(node) = node else { return Ok(()) };
        let Ok(mut attrs) = attrs(&node.annotations) else { return Ok(()) };
        attrs.public_ip = own.v4.or(attrs.public_ip);
        attrs.public_ipv6 = own.v6.or(attrs.public_ipv6);
        announce(cluster.api(), name, &node, &attrs).await
    };
    let written: Result<(), StoreError> = write.await;
    if let Err(error) = written {
        // The node itself says it within the hour.
        tracing::error!("Cannot announce the own address of node {name}: {error}");
    }
}

/// In the words of a store.
pub(crate) fn store_event(event: ClusterEvent) -> StoreEvent {
    match event {
        ClusterEvent::Snapshot(leases) => StoreEvent::Snapshot(leases),
        ClusterEvent::Changed(LeaseChange::Put(stored)) => StoreEvent::Put(stored),
        ClusterEvent::Changed(LeaseChange::Gone(subnet)) => StoreEvent::Gone(subnet),
        ClusterEvent::Down(why) => StoreEvent::Down(why),
        ClusterEvent::Up => StoreEvent::Up,
    }
}
