//! The lease server in front of a store that others write to as well: it keeps nothing itself, so several of
//! them serve side by side. Each follows the store and tells its clients; cursors are its own, and a client
//! that comes from another server takes the whole table.

mod etcd;
mod follower;
mod kube;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flannel_kube::KubeNodes;
use flannel_lease::{
    KnownBy, LEASE_TTL, LeaseAttrs, NetworkConfig, NetworkName, Subnet, SubnetOrigin,
};
use flannel_store::{
    EtcdOptions, Held, KeptLease, Millis, NodeAnswer, NodeNetwork, NodeRequest, PublicAddresses,
    Refusal, RequestId, Requests, StoreError, StoreEvent, StoreFindings, StoredLease, split_owner,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use self::etcd::EtcdNetworks;
use self::follower::Follower;
use self::kube::KubeNetwork;
use crate::LeaseService;
use crate::clock::{self, Clock};
use crate::embedded::AskError;
use crate::lease_state::{Reply, Request, Who};
use crate::watch_log::{WatchLog, WatchLogs};

/// How often it is looked for networks that others have made.
const LOOK: Duration = Duration::from_secs(15);
/// And how soon again when that has failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const DAY: Millis = LEASE_TTL.as_millis() as Millis;

/// The networks of a store.
#[async_trait]
trait Networks: Send + Sync {
    /// For people.
    fn name(&self) -> &'static str;

    fn subnets(&self) -> SubnetOrigin;

    /// One of them, whether it has a config yet or not.
    fn open(&self, name: &NetworkName, view: View) -> Result<Arc<dyn Network>, AskError>;

    /// Those that have a name.
    async fn names(&self) -> Result<Vec<NetworkName>, StoreError>;
}

/// One network of a store.
#[async_trait]
trait Network: Send + Sync {
    /// All there is, and what becomes of it.
    fn watch(&self) -> mpsc::Receiver<StoreEvent>;

    async fn ask(&self, request: Request) -> Result<Reply, AskError>;

    async fn public_addresses(&self, _who: &Who) -> Result<PublicAddresses, AskError> {
        Ok(PublicAddresses::default())
    }

    async fn report(&self, _who: &Who, _network: &NodeNetwork) -> Result<(), AskError> {
        Ok(())
    }

    /// What operators ask of nodes.
    fn requests(&self) -> watch::Receiver<Requests>;

    /// Nodes that get no packets.
    fn findings(&self) -> Option<watch::Receiver<StoreFindings>> {
        None
    }

    async fn place(&self, request: &NodeRequest) -> Result<(), StoreError>;

    async fn withdraw(&self, id: &RequestId) -> Result<(), StoreError>;

    async fn answer(&self, to: &RequestId, answer: &NodeAnswer) -> Result<(), StoreError>;

    async fn answers(&self, to: &RequestId) -> Result<Vec<NodeAnswer>, StoreError>;
}

/// What the server's clients see of a network.
#[derive(Clone)]
struct View {
    name: NetworkName,
    watch_log: Arc<WatchLog>,
    clock: Clock,
    subnets: SubnetOrigin,
}

impl View {
    fn config(&self) -> Result<NetworkConfig, AskError> {
        let text = self.watch_log.config_text().ok_or(Refusal::NoNetwork(self.name.clone()))?;
        Ok(NetworkConfig::read(&text, self.subnets).map_err(Refusal::from)?)
    }

    /// Nobody announces what another node is known by. `own` is the lease that the client has.
    fn check_identity(
        &self,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
        who: &Who,
        own: Option<Subnet>,
    ) -> Result<(), Refusal> {
        let known_by = KnownBy::of(Some(config));
        for identity in flannel_backend::link_identities(attrs) {
            let anothers = |subnet: &Subnet, entry: &KeptLease| {
                // One of its families may be new to the client.
                own.is_none_or(|own| !own.overlaps(subnet))
                    && flannel_backend::link_identities(&entry.attrs).contains(&identity)
                    && !who.is_same_client(known_by, attrs, entry)
            };
            if let Some((subnet, entry)) = self.watch_log.find(anothers) {
                return Err(Refusal::IdentityTaken { identity, subnet, entry: Box::new(entry) });
            }
        }
        Ok(())
    }

    /// How long a lease still lasts is not asked for every one: whoever wrote it last gave it a day.
    fn entry(&self, stored: &StoredLease) -> KeptLease {
        let expires = (!stored.reserved).then(|| self.clock.now() + DAY);
        let (attrs, owner) = split_owner(stored.lease.attrs.clone());
        let (version, since) = (stored.version.number(), stored.since);
        KeptLease { attrs, expires, version, owner, since }
    }

    fn reply(&self, held: Held) -> Reply {
        let end = |left: Duration| self.clock.now() + left.as_millis() as Millis;
        let expires = held.expiry.remaining(SystemTime::now()).map(end);
        let (attrs, owner) = split_owner(held.lease.attrs);
        let version = held.version.number();
        Reply::Lease(held.lease.subnet, KeptLease { attrs, expires, version, owner, since: None })
    }

    /// What the store refuses for good is told as such; all else may pass.
    fn failed(&self, error: StoreError, subnet: Option<Subnet>) -> AskError {
        match error {
            StoreError::OutOfSubnets(error) => Refusal::OutOfSubnets(error).into(),
            StoreError::Rejected { refusal, .. } => (*refusal).into(),
            StoreError::NotAssignedYet { reason, fix } => {
                Refusal::NotAssignedYet { reason, fix }.into()
            }
            StoreError::Lost { .. } if let Some(subnet) = subnet => Refusal::Gone(subnet).into(),
            StoreError::Taken { by, .. } => {
                let (attrs, owner) = split_owner(by.attrs);
                let expires = Some(self.clock.now() + DAY);
                let kept = KeptLease { attrs, expires, version: 0, owner, since: None };
                Refusal::Taken(by.subnet, Box::new(kept)).into()
            }
            other => AskError::ReadOnly(other.to_string()),
        }
    }
}

/// A network that is followed.
struct Followed {
    network: Arc<dyn Network>,
    follower: JoinHandle<()>,
    requests: watch::Receiver<Requests>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

pub struct StoreService {
    shared: Arc<Shared>,
    look: JoinHandle<()>,
}

struct Shared {
    networks: Box<dyn Networks>,
    watch_logs: Arc<WatchLogs>,
    clock: Clock,
    followed: Mutex<BTreeMap<NetworkName, Arc<Followed>>>,
}

impl Drop for StoreService {
    fn drop(&mut self) {
        self.look.abort();
    }
}

impl StoreService {
    /// In front of etcd. Must be called within a tokio runtime; etcd need not be there yet.
    pub fn etcd(options: EtcdOptions) -> Result<Self, StoreError> {
        Ok(Self::start(Box::new(EtcdNetworks::new(options)?)))
    }

    /// In front of Kubernetes, likewise.
    pub fn kubernetes(nodes: KubeNodes) -> Self {
        Self::start(Box::new(KubeNetwork::new(nodes)))
    }

    fn start(networks: Box<dyn Networks>) -> Self {
        let watch_logs = Arc::new(WatchLogs::of(networks.subnets()));
        let clock = Clock::start(clock::wall());
        let shared = Arc::new(Shared { networks, watch_logs, clock, followed: Mutex::default() });
        let looking = shared.clone();
        if let Err(error) = shared.network(&NetworkName::default()) {
            tracing::error!("The network without a name cannot be served: {error}");
        }
        let look = tokio::spawn(async move {
            let (store, mut failing) = (looking.networks.name(), false);
            loop {
                let listed = looking.networks.names().await;
                match &listed {
                    Ok(_) if failing => {
                        tracing::info!("The networks in {store} can be listed again");
                    }
                    // A repeated failure is not logged again.
                    Err(error) if !failing => tracing::error!(
                        "The networks in {store} cannot be listed: {error}; those not known yet are not served, \
                         trying every second"
                    ),
                    _ => {}
                }
                failing = listed.is_err();
                for name in listed.unwrap_or_default() {
                    if let Err(error) = looking.network(&name) {
                        tracing::warn!(%name, "the network cannot be served: {error}");
                    }
                }
                tokio::time::sleep(if failing { LOOK_AGAIN } else { LOOK }).await;
            }
        });
        Self { shared, look }
    }

    /// One that is there.
    fn network(&self, name: &NetworkName) -> Result<Arc<Followed>, AskError> {
        let followed = self.shared.followed().get(name).cloned();
        followed.ok_or_else(|| Refusal::NoNetwork(name.clone()).into())
    }
}

impl Shared {
    /// The network is followed from the first time it is asked about.
    fn network(&self, name: &NetworkName) -> Result<Arc<Followed>, AskError> {
        if let Some(followed) = self.followed().get(name) {
            return Ok(followed.clone());
        }
        let view = View {
            name: name.clone(),
            watch_log: self.watch_logs.get_or_create(name),
            clock: self.clock,
            subnets: self.networks.subnets(),
        };
        let network = self.networks.open(name, view.clone())?;
        let follower = Follower::new(view, self.watch_logs.clone(), self.networks.name());
        let follower = tokio::spawn(follower.run(network.watch()));
        let requests = network.requests();
        let followed = Arc::new(Followed { network, follower, requests });
        Ok(self.followed().entry(name.clone()).or_insert(followed).clone())
    }

    fn followed(&self) -> MutexGuard<'_, BTreeMap<NetworkName, Arc<Followed>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LeaseService for StoreService {
    fn watch_logs(&self) -> &Arc<WatchLogs> {
        &self.shared.watch_logs
    }

    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    fn subnets(&self) -> SubnetOrigin {
        self.shared.networks.subnets()
    }

    async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError> {
        let followed = match request {
            Request::SetConfig { .. } => self.shared.network(network)?,
            _ => self.network(network)?,
        };
        followed.network.ask(request).await
    }

    async fn public_addresses(
        &self,
        network: &NetworkName,
        who: &Who,
    ) -> Result<PublicAddresses, AskError> {
        self.network(network)?.network.public_addresses(who).await
    }

    async fn report(
        &self,
        network: &NetworkName,
        who: &Who,
        how: &NodeNetwork,
    ) -> Result<(), AskError> {
        self.network(network)?.network.report(who, how).await
    }

    fn requests(&self, network: &NetworkName) -> Result<watch::Receiver<Requests>, AskError> {
        Ok(self.network(network)?.requests.clone())
    }

    fn findings(
        &self,
        network: &NetworkName,
    ) -> Result<Option<watch::Receiver<StoreFindings>>, AskError> {
        Ok(self.network(network)?.network.findings())
    }

    async fn place(&self, network: &NetworkName, request: NodeRequest) -> Result<(), AskError> {
        self.network(network)?.network.place(&request).await.map_err(told)
    }

    async fn withdraw(&self, network: &NetworkName, id: &RequestId) -> Result<(), AskError> {
        self.network(network)?.network.withdraw(id).await.map_err(told)
    }

    async fn answer(
        &self,
        network: &NetworkName,
        to: &RequestId,
        answer: NodeAnswer,
    ) -> Result<bool, AskError> {
        let followed = self.network(network)?;
        let stands = |request: &NodeRequest| request.id == *to && request.concerns(&answer.node);
        if !followed.requests.borrow().iter().any(stands) {
            return Ok(false);
        }
        match followed.network.answer(to, &answer).await {
            Ok(()) => Ok(true),
            Err(StoreError::Lost { .. }) => Ok(false),
            Err(error) => Err(told(error)),
        }
    }

    async fn answers(
        &self,
        network: &NetworkName,
        to: &RequestId,
    ) -> Result<Vec<NodeAnswer>, AskError> {
        self.network(network)?.network.answers(to).await.map_err(told)
    }
}

/// What the store behind says to what is asked through it.
fn told(error: StoreError) -> AskError {
    match error {
        StoreError::Rejected { refusal, .. } => (*refusal).into(),
        other => AskError::ReadOnly(other.to_string()),
    }
}
