//! The store: the subnet of a node is what Kubernetes has assigned to it, and what it announces is written
//! into its Node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use flannel_common::{Backoff, Tries};
use flannel_lease::{
    Claimant, Expiry, Lease, LeaseAttrs, NetworkConfig, Subnet, SubnetOrigin, Version,
};
use flannel_store::{
    Acquired, Claim, Contact, Cursor, Held, NodeAnswer, NodeNetwork, PublicAddresses, Recalled,
    RequestId, Requests, Snapshot, Store, StoreError, StoreEvent, StoreFindings,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::api::Api;
use crate::cluster::{Cluster, ClusterEvent};
use crate::events::{Bound, Reason, Recorder, subnet_changed, subnet_clash};
use crate::lease::{Families, Overwrites, attrs, subnet, subnet_in};
use crate::named_node::{NamedNode, announce};
use crate::net_config::NetConfigFile;
use crate::node::NodeView;
use crate::nodes::store_event;
use crate::options::KubeOptions;
use crate::table::LeaseChange;

const QUEUE: usize = 1_024;
const ANNOUNCE_RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// An operator is followed this soon after the last change.
const OPERATOR_PAUSE: Duration = Duration::from_secs(1);
/// What is changed again within this time is a fight between two writers.
const PEACE: Duration = Duration::from_secs(30);
const CONDITION_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

#[derive(Debug)]
pub struct KubeStore {
    cluster: Arc<Cluster>,
    net_config: NetConfigFile,
    set_condition: bool,
    events: Recorder,
    /// That the network did not work has been said.
    failed: AtomicBool,
}

impl KubeStore {
    /// Needs no API server, unless it is to be asked for the node's name.
    pub async fn open(
        options: &KubeOptions,
        variable: impl Fn(&str) -> Option<String>,
        seed: u64,
    ) -> Result<Self, StoreError> {
        let api = options.api(&variable)?;
        let name = node_name(&api, variable).await?;
        let cluster = Arc::new(Cluster::new(api, &name, seed));
        Ok(Self {
            events: Recorder::start(cluster.clone(), Bound::NODE),
            failed: AtomicBool::new(false),
            cluster,
            net_config: NetConfigFile::new(options.net_config.clone()),
            set_condition: options.set_node_network_unavailable,
        })
    }

    fn node(&self) -> &str {
        self.cluster.name()
    }

    /// This node's own Node.
    fn named(&self) -> NamedNode<'_> {
        NamedNode {
            api: self.cluster.api(),
            name: self.cluster.name(),
            if_missing: "the kubelet makes it; check that it runs, and that NODE_NAME is this node's name there",
            net_config: self.net_config.path(),
        }
    }

    async fn announce(&self, node: &NodeView<'_>, attrs: &LeaseAttrs) -> Result<(), StoreError> {
        // Before the Node can say so itself.
        self.cluster.table().announce(attrs.clone());
        self.named().announce(node, attrs).await
    }

    pub(crate) fn held(lease: Lease) -> Held {
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

#[async_trait]
impl Store for KubeStore {
    fn name(&self) -> String {
        format!("Kubernetes Subnet Manager - {}", self.node())
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.cluster.contact().clone())
    }

    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Store
    }

    fn findings(&self) -> StoreFindings {
        self.cluster.table().findings()
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        self.net_config.text()
    }

    async fn public_addresses(&self) -> Result<PublicAddresses, StoreError> {
        self.named().public_addresses().await
    }

    fn how_to_write_config(&self) -> String {
        self.net_config.how_to_write()
    }

    async fn recall(&self, config: &NetworkConfig, _me: &Claimant) -> Result<Recalled, StoreError> {
        let node = self.named().get().await?;
        // Before all the others are asked for: without it they are of no use.
        self.named().assigned(config, &node)?;
        self.cluster.table().set_families(Families::of(config));
        let listed = self.cluster.leases().await.map_err(|error| error.into_store_error(""))?;
        let announced =
            attrs(&node.annotations).ok().filter(|attrs| !attrs.backend_type.is_empty());
        let snapshot = Snapshot { leases: listed.leases, cursor: Cursor::new(listed.version) };
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
            None => self.named().get().await?,
        };
        let subnet = self.named().assigned(config, &node)?;
        self.announce(&node, &claim.attrs).await?;
        // Also if that happened while no daemon ran here, as when the Node was made anew.
        if let Some(before) = claim.previous.filter(|before| !before.overlaps(&subnet)) {
            let text = subnet_changed(before, Some(subnet));
            self.events.say(self.node(), Reason::SubnetChanged, text);
        }
        let lease = Lease { subnet, attrs: claim.attrs.clone() };
        Ok(recalled.acquired(config, Self::held(lease)))
    }

    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        let node = self.named().get().await?;
        self.announce(&node, attrs).await?;
        Ok(Self::held(Lease { subnet: held.lease.subnet, attrs: attrs.clone() }))
    }

    fn node_moved(&self) {
        self.cluster.api().node_moved();
    }

    /// Only whoever recreates the Node resets the condition, so it is watched from then on.
    async fn report(&self, network: &NodeNetwork) {
        match network {
            NodeNetwork::Fails(why) => {
                self.failed.store(true, Ordering::Relaxed);
                self.events.say(self.node(), Reason::NotReady, why);
                return;
            }
            NodeNetwork::Works => {
                if self.failed.swap(false, Ordering::Relaxed) {
                    self.events.say(
                        self.node(),
                        Reason::Ready,
                        "pods of this node reach others again",
                    );
                }
            }
        }
        if !self.set_condition {
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
                    let Err(error) = self.named().network_works().await else {
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
            recorder: self.events.clone(),
            clash: None,
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

    fn requests(&self) -> watch::Receiver<Requests> {
        crate::requests::hear(self.cluster.clone())
    }

    async fn answer(&self, to: &RequestId, answer: &NodeAnswer) -> Result<(), StoreError> {
        self.cluster.answer(self.node(), to, answer).await
    }
}

/// When this node's own Node was last put right, and when to look again.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Written {
    at: Instant,
    /// What an operator wanted to be announced instead of the node's addresses.
    overwrites: Overwrites,
    again: Option<Instant>,
}

impl Written {
    /// When a Node that does not say what this node announces is to be written again. An operator who changes what is to
    /// be announced is followed at once; somebody who keeps changing flannel's own annotations is not met endlessly.
    fn due(
        &self,
        overwrites: Overwrites,
        now: Instant,
        pause: impl FnOnce() -> Duration,
    ) -> Instant {
        match self.again {
            _ if self.overwrites != overwrites => self.at + OPERATOR_PAUSE,
            Some(again) => again,
            None if now.duration_since(self.at) < PEACE => now + pause(),
            None => now,
        }
    }
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
    recorder: Recorder,
    /// Another Node that was seen to have this node's subnet.
    clash: Option<Box<str>>,
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
                    Some(event) => {
                        let near = self.is_near(&event);
                        self.tell(store_event(event)).await;
                        if near {
                            self.look_for_a_clash();
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

    /// Corrects what somebody else has written into this node's own Node, and announces an address written there instead
    /// of ours. Not endlessly, if somebody else keeps changing it too.
    async fn look_at_own_node(&mut self, last: Option<Written>) -> Option<Written> {
        let (name, now) = (self.cluster.name().to_owned(), Instant::now());
        let node = self.cluster.table().own().cloned()?;
        let overwrites = Overwrites::read(&node.annotations).unwrap_or_else(|why| {
            tracing::warn!("Node {name}: {why}; the node's own address is announced");
            Overwrites::default()
        });
        let Some(attrs) = self.cluster.table().contradicted().cloned() else {
            return last.map(|last| Written { again: None, ..last });
        };
        if let Some(last) = last {
            if now.duration_since(last.at) >= PEACE {
                self.tries.reset();
            }
            let due = last.due(overwrites, now, || self.tries.pause());
            if due > now {
                return Some(Written { again: Some(due), ..last });
            }
        }
        match announce(self.cluster.api(), &name, &node, &attrs).await {
            Ok(()) => {
                tracing::warn!("Node {name} did not match what this node announces: written again");
                Some(Written { at: now, overwrites, again: None })
            }
            Err(error) => {
                let pause = self.tries.pause();
                tracing::error!("Cannot announce this node: {error}; next try in {pause:.0?}");
                Some(Written { at: now, overwrites, again: Some(now + pause) })
            }
        }
    }

    /// Whether it is about this node's own subnet.
    fn is_near(&self, event: &ClusterEvent) -> bool {
        let own = self.assigned.flatten();
        let overlaps = |subnet: &Subnet| own.is_some_and(|own| own.overlaps(subnet));
        match event {
            ClusterEvent::Snapshot(_) => true,
            ClusterEvent::Changed(LeaseChange::Put(stored)) => overlaps(&stored.lease.subnet),
            ClusterEvent::Changed(LeaseChange::Gone(subnet)) => overlaps(subnet),
            ClusterEvent::Down(_) | ClusterEvent::Up => false,
        }
    }

    /// Two Nodes with one podCIDR are a mistake of whoever made them, and pods of one of them are cut off.
    fn look_for_a_clash(&mut self) {
        let other = self.cluster.table().twin();
        if other == self.clash {
            return;
        }
        self.clash = other;
        if let Some(other) = &self.clash {
            self.recorder.say(self.cluster.name(), Reason::SubnetClash, subnet_clash(other));
        }
    }

    async fn on_assigned(&mut self, now: Option<Subnet>) {
        let before = self.assigned.replace(now);
        if before != Some(now) {
            // That it has another one is told when that is announced.
            if let (Some(before), None) = (before.flatten(), now) {
                let text = subnet_changed(before, None);
                self.recorder.say(self.cluster.name(), Reason::SubnetChanged, text);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_followed_at_once_and_a_fight_for_annotations_is_not_endless() {
        let at = Instant::now();
        let (pause, second) = (Duration::from_secs(4), Duration::from_secs(1));
        let wanted = |last: u8| Overwrites { v4: Some([192, 0, 2, last].into()), v6: None };
        let last = Written { at, overwrites: wanted(1), again: None };
        let waits = |last: Written, now: u8, after: Duration| {
            let now = (wanted(now), at + after);
            last.due(now.0, now.1, || pause).saturating_duration_since(now.1)
        };
        // The second and the third address that an operator writes are taken up as the first one was.
        assert_eq!(waits(last, 2, 2 * second), Duration::ZERO);
        assert_eq!(waits(Written { again: Some(at + PEACE), ..last }, 3, second), Duration::ZERO);
        assert!(waits(last, 2, Duration::ZERO) <= OPERATOR_PAUSE, "however often it is changed");
        // What was put right does not last: once after a pause, and then when that has passed.
        assert_eq!(waits(last, 1, second), pause);
        assert_eq!(waits(Written { again: Some(at + 3 * second), ..last }, 1, second), 2 * second);
        assert_eq!(waits(last, 1, PEACE), Duration::ZERO, "that was another matter");
    }
}
