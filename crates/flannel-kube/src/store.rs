//! The store: the subnet of a node is what Kubernetes has assigned to it, and what it announces is written
//! into its Node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flannel_common::{Backoff, Tries};
use flannel_lease::{
    Claimant, Expiry, Lease, LeaseAttrs, NetworkConfig, Subnet, SubnetOrigin, Version,
};
use flannel_store::{
    Acquired, Claim, Cursor, Held, NodeNetwork, PublicAddresses, Recalled, Snapshot, Store,
    StoreError, StoreEvent, StoredLease,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::access::Access;
use crate::annotations::AnnotationPrefix;
use crate::api::Api;
use crate::cluster::{Cluster, ClusterEvent};
use crate::lease::{Families, Overwrites, attrs, subnet, subnet_in};
use crate::net_config::NetConfigFile;
use crate::node::NodeView;
use crate::patch;
use crate::table::LeaseChange;

const QUEUE: usize = 1_024;
const ANNOUNCE_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// What is changed again within this time is a fight between two writers.
const PEACE: Duration = Duration::from_secs(30);
const CONDITION_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The `--kube…` options.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeOptions {
    pub api_url: Option<String>,
    pub kubeconfig: Option<PathBuf>,
    pub annotation_prefix: String,
    /// Where the network config is.
    pub net_config: PathBuf,
    pub set_node_network_unavailable: bool,
}

#[derive(Debug)]
pub struct KubeStore {
    cluster: Arc<Cluster>,
    net_config: NetConfigFile,
    set_condition: bool,
}

impl KubeStore {
    /// Needs no API server, unless it is to be asked for the node's name.
    pub async fn open(
        options: &KubeOptions,
        variable: impl Fn(&str) -> Option<String>,
        seed: u64,
    ) -> Result<Self, StoreError> {
        let wrong = |option: &str, reason: String| StoreError::Misconfigured {
            option: option.to_owned(),
            reason,
        };
        let prefix = AnnotationPrefix::parse(&options.annotation_prefix)
            .map_err(|error| wrong("kube-annotation-prefix", error.to_string()))?;
        let (kubeconfig, url) = (options.kubeconfig.as_deref(), options.api_url.as_deref());
        let access = Access::find(kubeconfig, url, &variable)
            .map_err(|reason| wrong("kube-subnet-mgr", reason))?;
        let api = Api::new(access, prefix);
        let name = node_name(&api, variable).await?;
        let cluster = Cluster::new(api, &name, seed);
        Ok(Self {
            cluster: Arc::new(cluster),
            net_config: NetConfigFile::new(options.net_config.clone()),
            set_condition: options.set_node_network_unavailable,
        })
    }

    fn node(&self) -> &str {
        self.cluster.name()
    }

    async fn own_node(&self) -> Result<NodeView<'static>, StoreError> {
        let node = self.cluster.api().node(self.node()).await;
        let node = node.map_err(|error| error.into_store_error(self.node()))?;
        node.ok_or_else(|| StoreError::NotAssignedYet {
            reason: format!("there is no Node {:?} in Kubernetes", self.node()),
            fix: "the kubelet makes it; check that it runs, and that NODE_NAME is this node's name there"
                .to_owned(),
        })
    }

    /// The subnet that Kubernetes has assigned to this node, in the families of the network.
    fn assigned(&self, config: &NetworkConfig, node: &NodeView<'_>) -> Result<Subnet, StoreError> {
        let name = self.node();
        let found = subnet(node)
            .map_err(|why| StoreError::Corrupt { key: format!("the Node {name}"), reason: why })?;
        let not_yet = |reason: String| {
            StoreError::NotAssignedYet {
            reason,
            fix: "let kube-controller-manager assign them (--allocate-node-cidrs --cluster-cidr=…; kubeadm: \
                  podSubnet), or write spec.podCIDRs of the Node yourself"
                .to_owned(),
        }
        };
        let found = found.ok_or_else(|| not_yet(format!("node {name:?} pod cidr not assigned")))?;
        let families = Families::of(config);
        let ours = subnet_in(found, families);
        let has_all =
            |it: &Subnet| it.v4().is_some() == families.v4 && it.v6().is_some() == families.v6;
        let Some(ours) = ours.filter(has_all) else {
            let missing = if families.v4 && found.v4().is_none() { "IPv4" } else { "IPv6" };
            return Err(not_yet(format!(
                "node {name:?} has no {missing} podCIDR, and the network config wants one"
            )));
        };
        if config.accepts(&ours) {
            return Ok(ours);
        }
        let outside = |network: Option<String>, cidr: Option<String>| {
            Some(format!(
                "subnet {:?} specified in the flannel net config doesn't contain {:?} PodCIDR of the {name:?} node",
                network?, cidr?
            ))
        };
        let v4 = config.v4.filter(|source| ours.v4().is_some_and(|net| !source.accepts(net)));
        let said =
            outside(v4.map(|it| it.network().to_string()), ours.v4().map(|net| net.to_string()));
        let v6 = || {
            outside(
                config.v6.map(|it| it.network().to_string()),
                ours.v6().map(|net| net.to_string()),
            )
        };
        Err(StoreError::NotAssignedYet {
            reason: said.or_else(v6).unwrap_or_default(),
            fix: format!(
                "make Network in {} the cluster-cidr of kube-controller-manager",
                self.net_config.path().display()
            ),
        })
    }

    async fn announce(&self, node: &NodeView<'_>, attrs: &LeaseAttrs) -> Result<(), StoreError> {
        // Before the Node can say so itself.
        self.cluster.table().announce(attrs.clone());
        announce(&self.cluster, node, attrs).await
    }

    fn stored(lease: Lease) -> StoredLease {
        StoredLease { lease, version: Version::UNKNOWN, reserved: true }
    }

    fn held(lease: Lease) -> Held {
        // What Kubernetes has assigned stays assigned for as long as the Node lives.
        Held { lease, expiry: Expiry::Never, version: Version::UNKNOWN }
    }
}

/// From the environment, else from the pod that this process runs in.
async fn node_name(
    api: &Api,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, StoreError> {
    let given = |name| variable(name).filter(|text| !text.is_empty());
    if let Some(name) = given("NODE_NAME") {
        return Ok(name);
    }
    let (Some(pod), Some(namespace)) = (given("POD_NAME"), given("POD_NAMESPACE")) else {
        return Err(StoreError::Misconfigured {
            option: "kube-subnet-mgr".to_owned(),
            reason: "the environment says neither NODE_NAME nor POD_NAME and POD_NAMESPACE: set NODE_NAME to the \
                     name of this node in Kubernetes"
                .to_owned(),
        });
    };
    let mut tries = CONDITION_RETRY.tries(fastrand::Rng::new());
    loop {
        let named = format!("{namespace}/{pod}");
        let error = match api.node_of_pod(&namespace, &pod).await {
            Ok(Some(name)) => return Ok(name),
            Ok(None) => StoreError::NotAssignedYet {
                reason: format!("there is no pod {named} that runs on a node"),
                fix: "check POD_NAME and POD_NAMESPACE, or set NODE_NAME".to_owned(),
            },
            Err(error) => error.into_store_error(&named),
        };
        let pause = tries.pause();
        tracing::error!("Cannot find out this node's name: {error}; next try in {pause:.0?}");
        tokio::time::sleep(pause).await;
    }
}

/// Writes what this node announces, where its Node says something else.
async fn announce(
    cluster: &Cluster,
    node: &NodeView<'_>,
    attrs: &LeaseAttrs,
) -> Result<(), StoreError> {
    let (api, name) = (cluster.api(), cluster.name());
    let overwrites = Overwrites::read(&node.annotations).unwrap_or_default();
    let Some(patch) = patch::announce(api.prefix(), &node.annotations, attrs, &overwrites) else {
        return Ok(());
    };
    api.annotate(name, &patch).await.map_err(|error| error.into_store_error(name))
}

#[async_trait]
impl Store for KubeStore {
    fn name(&self) -> String {
        format!("Kubernetes Subnet Manager - {}", self.node())
    }

    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Store
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        self.net_config.read().map_err(|error| StoreError::Corrupt {
            key: format!("the network config {}", self.net_config.path().display()),
            reason: error.to_string(),
        })
    }

    /// A Node that does not exist yet says nothing.
    async fn public_addresses(&self) -> Result<PublicAddresses, StoreError> {
        let node = self.cluster.api().node(self.node()).await;
        let node = node.map_err(|error| error.into_store_error(self.node()))?.unwrap_or_default();
        let written = Overwrites::node_addresses(&node.annotations).unwrap_or_else(|why| {
            tracing::warn!("Node {}: {why}; it is ignored", self.node());
            Overwrites::default()
        });
        Ok(PublicAddresses { v4: written.v4, v6: written.v6 })
    }

    fn how_to_write_config(&self) -> String {
        format!(
            "`kubectl -n kube-flannel edit configmap kube-flannel-cfg`, key net-conf.json, which the kubelet \
             puts into {}",
            self.net_config.path().display()
        )
    }

    async fn recall(&self, config: &NetworkConfig, _me: &Claimant) -> Result<Recalled, StoreError> {
        let node = self.own_node().await?;
        // Before all the others are asked for: without it they are of no use.
        self.assigned(config, &node)?;
        self.cluster.table().set_families(Families::of(config));
        let listed = self.cluster.leases().await.map_err(|error| error.into_store_error(""))?;
        let announced =
            attrs(&node.annotations).ok().filter(|attrs| !attrs.backend_type.is_empty());
        let leases = listed.leases.into_iter().map(Self::stored).collect();
        let snapshot = Snapshot { leases, cursor: Cursor::new(listed.version) };
        Ok(Recalled::new(announced, snapshot).with_basis(node))
    }

    async fn try_acquire(
        &self,
        config: &NetworkConfig,
        claim: &Claim,
        recalled: Recalled,
    ) -> Result<Acquired, StoreError> {
        let node = match recalled.basis::<NodeView<'static>>() {
            Some(node) => node.clone(),
            None => self.own_node().await?,
        };
        let subnet = self.assigned(config, &node)?;
        self.announce(&node, &claim.attrs).await?;
        let lease = Lease { subnet, attrs: claim.attrs.clone() };
        Ok(recalled.acquired(config, Self::held(lease)))
    }

    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        let node = self.own_node().await?;
        self.announce(&node, attrs).await?;
        Ok(Self::held(Lease { subnet: held.lease.subnet, attrs: attrs.clone() }))
    }

    fn node_moved(&self) {
        self.cluster.api().node_moved();
    }

    /// The condition is taken back by nobody but who made the Node anew, so it is watched from then on.
    async fn report(&self, network: &NodeNetwork) {
        if !self.set_condition || *network != NodeNetwork::Works {
            return;
        }
        let mut own = self.cluster.own();
        let mut tries = CONDITION_RETRY.tries(fastrand::Rng::new());
        loop {
            let condition = own.borrow_and_update().clone().map(|node| node.network_unavailable);
            match condition {
                Some(Some(status)) if status == "False" => tries.reset(),
                // There is nothing to write it into.
                None => {}
                Some(_) => {
                    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                    let patch = patch::network_is_available(&now);
                    let Err(error) = self.cluster.api().set_condition(self.node(), &patch).await
                    else {
                        tracing::info!("Node {}: NetworkUnavailable is now False", self.node());
                        // The watch will tell; until then there is nothing to do.
                        if own.changed().await.is_err() {
                            return;
                        }
                        continue;
                    };
                    let pause = tries.pause().max(error.retry_after().unwrap_or_default());
                    tracing::error!(
                        "Cannot say that this node's network works: {}; no pods are placed here before; next \
                         try in {pause:.0?}",
                        error.into_store_error(self.node())
                    );
                    tokio::time::sleep(pause).await;
                    continue;
                }
            }
            if own.changed().await.is_err() {
                return;
            }
        }
    }

    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent> {
        let (events, receiver) = mpsc::channel(QUEUE);
        let closed = events.clone();
        let version = cursor.text().map(str::to_owned);
        let known = self.net_config.read().ok().flatten();
        let mut watch = Watch {
            tries: ANNOUNCE_RETRY.tries(fastrand::Rng::new()),
            cluster: self.cluster.clone(),
            nodes: self.cluster.follow(version),
            config: self.net_config.follow(known.clone()),
            assigned: None,
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
}

/// When this node's own Node was last put right, and when to look again.
#[derive(Clone, Copy)]
struct Written {
    at: Instant,
    again: Option<Instant>,
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

struct Watch {
    cluster: Arc<Cluster>,
    /// Of writing again what somebody has changed in this node's own Node.
    tries: Tries,
    nodes: mpsc::Receiver<ClusterEvent>,
    config: crate::net_config::NetConfigChanges,
    /// What Kubernetes has assigned to this node, as it was last seen.
    assigned: Option<Option<Subnet>>,
    events: mpsc::Sender<StoreEvent>,
}

impl Watch {
    async fn run(&mut self, config: Option<String>) {
        // It may have changed since it was last asked for.
        self.tell(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
        let mut own = self.cluster.own();
        self.assigned = Some(assigned(&own.borrow_and_update()));
        let mut written = None;
        loop {
            tokio::select! {
                biased;
                event = self.nodes.recv() => match event {
                    Some(event) => self.on_nodes(event).await,
                    None => return,
                },
                changed = own.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = assigned(&own.borrow_and_update());
                    self.on_assigned(now).await;
                    written = self.look_at_own_node(written).await;
                }
                () = sleep_until(written.and_then(|it: Written| it.again)) => {
                    written = self.look_at_own_node(written).await;
                }
                config = self.config.next() => {
                    self.tell(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
                }
            }
        }
    }

    async fn on_nodes(&self, event: ClusterEvent) {
        self.tell(match event {
            ClusterEvent::Snapshot(leases) => {
                StoreEvent::Snapshot(leases.into_iter().map(KubeStore::stored).collect())
            }
            ClusterEvent::Changed(LeaseChange::Put(lease)) => {
                StoreEvent::Put(KubeStore::stored(lease))
            }
            ClusterEvent::Changed(LeaseChange::Gone(subnet)) => StoreEvent::Gone(subnet),
            ClusterEvent::Down(why) => StoreEvent::Down(why),
            ClusterEvent::Up => StoreEvent::Up,
        })
        .await;
    }

    /// Who has written something else into this node's own Node, or an address that is to be announced instead
    /// of ours, finds it put right. Not without end, if somebody else does not give in either.
    async fn look_at_own_node(&mut self, last: Option<Written>) -> Option<Written> {
        let (name, now) = (self.cluster.name().to_owned(), Instant::now());
        let node = self.cluster.table().own().cloned()?;
        if let Err(why) = Overwrites::read(&node.annotations) {
            tracing::warn!("Node {name}: {why}; the node's own address is announced");
        }
        let Some(attrs) = self.cluster.table().contradicted().cloned() else {
            return last.map(|last| Written { again: None, ..last });
        };
        if last.is_some_and(|last| last.again.is_some_and(|again| now < again)) {
            return last;
        }
        // The first time at once; if that does not last, somebody wants something else as much.
        let recently = last.is_some_and(|last| now.duration_since(last.at) < PEACE);
        if recently && last.is_some_and(|last| last.again.is_none()) {
            return Some(Written { at: now, again: Some(now + self.tries.pause()) });
        }
        if !recently {
            self.tries.reset();
        }
        match announce(&self.cluster, &node, &attrs).await {
            Ok(()) => {
                tracing::warn!(
                    "Node {name} said something else than this node announces: written again"
                );
                Some(Written { at: now, again: None })
            }
            Err(error) => {
                let pause = self.tries.pause();
                tracing::error!("Cannot announce this node: {error}; next try in {pause:.0?}");
                Some(Written { at: now, again: Some(now + pause) })
            }
        }
    }

    async fn on_assigned(&mut self, now: Option<Subnet>) {
        if self.assigned.replace(now) != Some(now) {
            let now = now.and_then(|subnet| subnet_in(subnet, self.cluster.table().families()));
            self.tell(StoreEvent::Assigned(now)).await;
        }
    }

    async fn tell(&self, event: StoreEvent) {
        // A receiver that is gone ends the whole task.
        let _ = self.events.send(event).await;
    }
}

/// What a Node that is there has been assigned.
fn assigned(node: &Option<NodeView<'static>>) -> Option<Subnet> {
    subnet(node.as_ref()?).ok().flatten()
}
