//! Store of a node: its subnet is what Kubernetes has assigned to it, and what it announces is written into its Node.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flannel_backend::Stack;
use flannel_common::{Backoff, Tries, sleep_until, spawn_sender};
use flannel_lease::{
    Claimant, Expiry, Lease, LeaseAttrs, NetworkConfig, Subnet, SubnetOrigin, Version,
};
use flannel_store::{
    AcquireAttempt, Claim, Contact, Cursor, Held, NodeNetwork, NodeStore, PublicAddresses,
    Recalled, RequestStore, Snapshot, Store, StoreError, StoreEvent, StoreFindings,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::api::Api;
use crate::cluster::Cluster;
use crate::events::{EventRate, Recorder};
use crate::lease::{attrs, overwrites, subnet, subnet_in};
use crate::named_node::{NamedNode, announce, set_available};
use crate::net_config::NetConfigFile;
use crate::node::NodeView;
use crate::options::KubeOptions;
use crate::requests::KubeRequests;

const EVENT_QUEUE: usize = 1_024;
const ANNOUNCE_RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
const OPERATOR_CHANGE_DELAY: Duration = Duration::from_secs(1);
/// Time within which a second change means that two writers are in conflict.
const CONFLICT_WINDOW: Duration = Duration::from_secs(30);
const CONDITION_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Clones share it.
#[derive(Clone, Debug)]
pub struct KubeStore {
    cluster: Arc<Cluster>,
    net_config: NetConfigFile,
    set_condition: bool,
    events: Recorder,
    requests: KubeRequests,
}

impl KubeStore {
    /// Needs no API server, unless the node's name has to be read there.
    pub async fn open(
        options: &KubeOptions,
        variable: impl Fn(&str) -> Option<String>,
        seed: u64,
    ) -> Result<Self, StoreError> {
        let api = options.api(&variable)?;
        let name = node_name(&api, variable).await?;
        let cluster = Arc::new(Cluster::new(api, &name, seed));
        Ok(Self {
            events: Recorder::start(cluster.clone(), EventRate::NODE),
            requests: KubeRequests::new(cluster.clone()),
            cluster,
            net_config: NetConfigFile::new(options.net_config.clone()),
            set_condition: options.set_node_network_unavailable,
        })
    }

    fn named(&self) -> NamedNode<'_> {
        NamedNode {
            api: &self.cluster.api,
            name: &self.cluster.name,
            if_missing: "the kubelet makes it; check that it runs, and that NODE_NAME is this node's name there",
            net_config: &self.net_config.path,
        }
    }

    async fn announce(&self, node: &NodeView<'_>, attrs: &LeaseAttrs) -> Result<(), StoreError> {
        // Before the Node can say so itself.
        self.cluster.table.lock().announce(attrs.clone());
        announce(&self.cluster.api, &self.cluster.name, node, attrs).await
    }

    pub(crate) fn held(lease: Lease) -> Held {
        // What Kubernetes has assigned stays assigned for as long as the Node lives.
        Held { lease, expiry: Expiry::Never, version: Version::UNKNOWN }
    }
}

/// Name of this node: from the environment, else from the pod that this process runs in.
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
        tracing::error!("Cannot find this node's name: {error}; next try in {pause:.0?}");
        tokio::time::sleep(pause).await;
    }
}

#[async_trait]
impl Store for KubeStore {
    fn name(&self) -> String {
        format!("Kubernetes Subnet Manager - {}", &self.cluster.name)
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.cluster.contact.clone())
    }

    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Store
    }

    fn findings(&self) -> StoreFindings {
        self.cluster.table.lock().findings()
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        self.net_config.text()
    }

    fn how_to_write_config(&self) -> String {
        self.net_config.how_to_write()
    }

    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent> {
        let known = self.net_config.read().ok().flatten();
        let (cluster, recorder) = (self.cluster.clone(), self.events.clone());
        let nodes = self.cluster.follow(&cursor);
        let config = self.net_config.follow(known.clone());
        let tries = ANNOUNCE_RETRY.tries(fastrand::Rng::new());
        spawn_sender("watch of Nodes", EVENT_QUEUE, |events| async move {
            let (assigned, clash) = (None, None);
            let mut watch =
                NodeWatch { tries, cluster, nodes, config, assigned, recorder, clash, events };
            watch.run(known).await;
        })
    }

    fn requests(&self) -> &dyn RequestStore {
        &self.requests
    }
}

#[async_trait]
impl NodeStore for KubeStore {
    async fn public_addresses(&self) -> Result<PublicAddresses, StoreError> {
        self.named().public_addresses().await
    }

    async fn recall(&self, config: &NetworkConfig, _me: &Claimant) -> Result<Recalled, StoreError> {
        let node = self.named().get().await?;
        // Before all others are listed: without it they are of no use.
        self.named().assigned(config, &node)?;
        self.cluster.table.lock().set_families(Stack::of(config));
        let snapshot = self.cluster.leases().await.map_err(|error| error.into_store_error(""))?;
        let announced =
            attrs(&node.annotations).ok().filter(|attrs| !attrs.backend_type.is_empty());
        Ok(Recalled::new(announced, snapshot, KubeAttempt { store: self.clone(), node }))
    }

    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        let node = self.named().get().await?;
        self.announce(&node, attrs).await?;
        Ok(Self::held(Lease { subnet: held.lease.subnet, attrs: attrs.clone() }))
    }

    fn node_moved(&self) {
        self.cluster.api.client.node_moved();
    }

    /// Sets the Node's condition, and watches it from then on: a Node that is created again loses it.
    async fn report(&self, network: &NodeNetwork) {
        self.events.record_network(&self.cluster.name, network);
        if *network != NodeNetwork::Works || !self.set_condition {
            return;
        }
        let mut own = self.cluster.own.subscribe();
        let mut tries = CONDITION_RETRY.tries(fastrand::Rng::new());
        loop {
            let condition = own.borrow_and_update().clone().map(|node| node.network_unavailable);
            match condition {
                Some(Some(status)) if status == "False" => tries.reset(),
                // There is nothing to write it into.
                None => {}
                // Once it is written, the watch will report it.
                Some(_) => {
                    if let Err(error) = set_available(&self.cluster.api, &self.cluster.name).await {
                        let pause = tries.pause().max(error.retry_after.unwrap_or_default());
                        tracing::error!(
                            "Cannot set NetworkUnavailable=False on Node {}: {}; no pods are scheduled here until it is \
                             set; next try in {pause:.0?}",
                            &self.cluster.name,
                            error.into_store_error(&self.cluster.name)
                        );
                        tokio::time::sleep(pause).await;
                        continue;
                    }
                }
            }
            if own.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Announces this node on the subnet that its Node, as it was recalled, has been assigned.
#[derive(Debug)]
struct KubeAttempt {
    store: KubeStore,
    node: NodeView<'static>,
}

#[async_trait]
impl AcquireAttempt for KubeAttempt {
    async fn run(
        self: Box<Self>,
        config: &NetworkConfig,
        claim: &Claim,
        _: &Snapshot,
    ) -> Result<Held, StoreError> {
        let Self { store, node } = *self;
        let subnet = store.named().assigned(config, &node)?;
        store.announce(&node, &claim.attrs).await?;
        // Also if that happened while no daemon ran here, as when the Node was made again.
        if let Some(before) = claim.previous.filter(|before| !before.overlaps(&subnet)) {
            store.events.record_subnet_change(&store.cluster.name, before, Some(subnet));
        }
        Ok(KubeStore::held(Lease { subnet, attrs: claim.attrs.clone() }))
    }
}

/// Last correction of this node's own Node, and when to check again.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LastWrite {
    at: Instant,
    /// Addresses that an operator wanted to be announced instead of the node's.
    overwrites: PublicAddresses,
    again: Option<Instant>,
}

impl LastWrite {
    /// Time at which a Node that differs from what this node announces is written again. An operator's change is followed at
    /// once; another writer that keeps changing flannel's own annotations is answered with growing pauses.
    fn due(
        &self,
        overwrites: PublicAddresses,
        now: Instant,
        pause: impl FnOnce() -> Duration,
    ) -> Instant {
        match self.again {
            _ if self.overwrites != overwrites => self.at + OPERATOR_CHANGE_DELAY,
            Some(again) => again,
            None if now.duration_since(self.at) < CONFLICT_WINDOW => now + pause(),
            None => now,
        }
    }
}

struct NodeWatch {
    cluster: Arc<Cluster>,
    /// Pauses between corrections of this node's own Node.
    tries: Tries,
    nodes: mpsc::Receiver<StoreEvent>,
    config: crate::net_config::NetConfigChanges,
    /// Subnet that Kubernetes has assigned to this node, as last seen.
    assigned: Option<Option<Subnet>>,
    recorder: Recorder,
    clash: Option<Box<str>>,
    /// A receiver that is gone ends the task.
    events: mpsc::Sender<StoreEvent>,
}

impl NodeWatch {
    async fn run(&mut self, config: Option<String>) {
        // It may have changed since it was last read.
        _ = self.events.send(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
        let mut own = self.cluster.own.subscribe();
        self.assigned = Some(assigned(&own.borrow_and_update()));
        let mut written = None;
        loop {
            tokio::select! {
                biased;
                event = self.nodes.recv() => match event {
                    Some(event) => {
                        let near = self.concerns_own_subnet(&event);
                        _ = self.events.send(event).await;
                        if near {
                            self.check_for_clash();
                        }
                    }
                    None => return,
                },
                changed = own.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = assigned(&own.borrow_and_update());
                    self.on_assigned(now).await;
                    written = self.correct_own_node(written).await;
                }
                () = sleep_until(written.and_then(|it: LastWrite| it.again)) => {
                    written = self.correct_own_node(written).await;
                }
                config = self.config.next() => {
                    _ = self.events.send(config.map_or(StoreEvent::ConfigGone, StoreEvent::Config)).await;
                }
            }
        }
    }

    /// Corrects what others have written into this node's own Node, and announces an address written there instead of ours.
    /// With pauses, if another writer keeps changing it too.
    async fn correct_own_node(&mut self, last: Option<LastWrite>) -> Option<LastWrite> {
        let (name, now) = (self.cluster.name.clone(), Instant::now());
        let node = self.cluster.table.lock().own_node.clone()?;
        let overwrites = overwrites(&node.annotations).unwrap_or_else(|why| {
            tracing::warn!("Node {name}: {why}; the node's own address is announced");
            PublicAddresses::default()
        });
        let Some(attrs) = self.cluster.table.lock().overwritten_attrs().cloned() else {
            return last.map(|last| LastWrite { again: None, ..last });
        };
        if let Some(last) = last {
            if now.duration_since(last.at) >= CONFLICT_WINDOW {
                self.tries.reset();
            }
            let due = last.due(overwrites, now, || self.tries.pause());
            if due > now {
                return Some(LastWrite { again: Some(due), ..last });
            }
        }
        match announce(&self.cluster.api, &name, &node, &attrs).await {
            Ok(()) => {
                tracing::warn!("Node {name} did not match what this node announces: written again");
                Some(LastWrite { at: now, overwrites, again: None })
            }
            Err(error) => {
                let pause = self.tries.pause();
                tracing::error!("Cannot announce this node: {error}; next try in {pause:.0?}");
                Some(LastWrite { at: now, overwrites, again: Some(now + pause) })
            }
        }
    }

    fn concerns_own_subnet(&self, event: &StoreEvent) -> bool {
        let own = self.assigned.flatten();
        let overlaps = |subnet: &Subnet| own.is_some_and(|own| own.overlaps(subnet));
        match event {
            StoreEvent::Snapshot(_) => true,
            StoreEvent::Put(stored) => overlaps(&stored.lease.subnet),
            StoreEvent::Gone(subnet) => overlaps(subnet),
            _ => false,
        }
    }

    /// Records an event when another Node has this node's podCIDR, since pods of one of them are cut off.
    fn check_for_clash(&mut self) {
        let other = self.cluster.table.lock().same_subnet();
        if other == self.clash {
            return;
        }
        self.clash = other;
        if let Some(other) = &self.clash {
            self.recorder.record_subnet_clash(&self.cluster.name, other);
        }
    }

    async fn on_assigned(&mut self, now: Option<Subnet>) {
        let before = self.assigned.replace(now);
        if before != Some(now) {
            // Another subnet is recorded when it is announced.
            if let (Some(before), None) = (before.flatten(), now) {
                self.recorder.record_subnet_change(&self.cluster.name, before, None);
            }
            let now = now.and_then(|subnet| subnet_in(subnet, self.cluster.table.lock().families));
            _ = self.events.send(StoreEvent::Assigned(now)).await;
        }
    }
}

fn assigned(node: &Option<NodeView<'static>>) -> Option<Subnet> {
    subnet(node.as_ref()?).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_followed_at_once_and_a_fight_for_annotations_is_not_endless() {
        let at = Instant::now();
        let (pause, second) = (Duration::from_secs(4), Duration::from_secs(1));
        let wanted = |last: u8| PublicAddresses { v4: Some([192, 0, 2, last].into()), v6: None };
        let last = LastWrite { at, overwrites: wanted(1), again: None };
        let waits = |last: LastWrite, now: u8, after: Duration| {
            let now = (wanted(now), at + after);
            last.due(now.0, now.1, || pause).saturating_duration_since(now.1)
        };
        // The second and the third address that an operator writes are taken up as the first one was.
        assert_eq!(waits(last, 2, 2 * second), Duration::ZERO);
        assert_eq!(
            waits(LastWrite { again: Some(at + CONFLICT_WINDOW), ..last }, 3, second),
            Duration::ZERO
        );
        assert!(
            waits(last, 2, Duration::ZERO) <= OPERATOR_CHANGE_DELAY,
            "however often it is changed"
        );
        // What was put right does not last: once after a pause, and then when that has passed.
        assert_eq!(waits(last, 1, second), pause);
        assert_eq!(
            waits(LastWrite { again: Some(at + 3 * second), ..last }, 1, second),
            2 * second
        );
        assert_eq!(waits(last, 1, CONFLICT_WINDOW), Duration::ZERO, "that was another matter");
    }
}
