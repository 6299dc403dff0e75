//! The lease server in front of a store that others write to as well. It keeps nothing itself, so several can serve side by
//! side. Each follows the store and its clients follow it; cursors are its own, and a client that comes from another
//! server gets a snapshot.

mod etcd;
mod follower;
mod kube;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flannel_common::Task;
use flannel_kube::KubeNodes;
use flannel_lease::{
    KnownBy, LEASE_TTL, LeaseAttrs, NetworkConfig, NetworkName, Subnet, SubnetOrigin,
};
use flannel_store::{
    EtcdOptions, Held, KeptLease, Millis, Refusal, StoreError, StoreEvent, StoredLease, split_owner,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use self::etcd::EtcdNetworks;
use self::follower::Follower;
use self::kube::ServedNodes;
use crate::clock::{self, Clock};
use crate::embedded::AskError;
use crate::lease_service::{LeaseService, ServedNetwork};
use crate::lease_state::{Reply, Who, check_size};
use crate::watch_log::{WatchLog, WatchLogs};

const NETWORK_LIST_INTERVAL: Duration = Duration::from_secs(15);
const NETWORK_LIST_RETRY: Duration = Duration::from_secs(1);
const LEASE_TTL_MILLIS: Millis = LEASE_TTL.as_millis() as Millis;

/// A network, and its events, beginning with a snapshot.
type OpenedNetwork = (Arc<dyn ServedNetwork>, mpsc::Receiver<StoreEvent>);

enum NetworkStore {
    Etcd(EtcdNetworks),
    /// Kubernetes has one network, without a name.
    Kubernetes(Arc<KubeNodes>),
}

impl NetworkStore {
    fn name(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            Self::Kubernetes(_) => "Kubernetes",
        }
    }

    fn subnets(&self) -> SubnetOrigin {
        match self {
            Self::Etcd(_) => SubnetOrigin::Pool,
            Self::Kubernetes(_) => SubnetOrigin::Store,
        }
    }

    /// Opens a network, whether it has a config yet or not.
    fn open(&self, name: &NetworkName, view: View) -> Result<OpenedNetwork, AskError> {
        match self {
            Self::Etcd(networks) => networks.open(name, view),
            Self::Kubernetes(nodes) if name.is_default() => Ok(ServedNodes::open(nodes, view)),
            Self::Kubernetes(_) => Err(Refusal::NoNetwork(name.clone()).into()),
        }
    }

    async fn names(&self) -> Result<Vec<NetworkName>, StoreError> {
        match self {
            Self::Etcd(networks) => networks.names().await,
            Self::Kubernetes(_) => Ok(Vec::new()),
        }
    }
}

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

    /// Refuses attributes that are too large, or with an address that is not this client's to announce.
    fn check_attrs(&self, attrs: &LeaseAttrs, who: &Who) -> Result<(), Refusal> {
        check_size(attrs)?;
        who.check_addresses(attrs)
    }

    /// Refuses attributes that another node is known by. `own` is the lease that the client has.
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

    /// The lease for clients. Its remaining time is not read from the store: it was a day when it was last written.
    fn entry(&self, stored: &StoredLease) -> KeptLease {
        let expires = (!stored.reserved).then(|| self.clock.now() + LEASE_TTL_MILLIS);
        let (attrs, owner) = split_owner(stored.lease.attrs.clone());
        let (version, since) = (stored.version.number(), stored.since);
        KeptLease { attrs, expires, version, owner, since }
    }

    /// The lease after a write, which keeps the date of its announcement unless it begins to announce what another has.
    fn dated_entry(&self, stored: &StoredLease) -> KeptLease {
        let entry = self.entry(stored);
        let subnet = stored.lease.subnet;
        let Some(before) = self.watch_log.lease(&subnet) else { return entry };
        let mut added = flannel_backend::link_identities(&entry.attrs);
        let had = flannel_backend::link_identities(&before.attrs);
        added.retain(|identity| !had.contains(identity));
        let announces_added = |other: &Subnet, entry: &KeptLease| {
            let has = flannel_backend::link_identities(&entry.attrs);
            *other != subnet && has.iter().any(|identity| added.contains(identity))
        };
        let copies = !added.is_empty() && self.watch_log.find(announces_added).is_some();
        KeptLease { since: if copies { entry.since } else { before.since }, ..entry }
    }

    fn reply(&self, held: Held) -> Reply {
        let end = |left: Duration| self.clock.now() + left.as_millis() as Millis;
        let expires = held.expiry.remaining(SystemTime::now()).map(end);
        let (attrs, owner) = split_owner(held.lease.attrs);
        let (version, entry) = (held.version.number(), KeptLease::new(attrs, expires, owner));
        Reply::Lease(held.lease.subnet, KeptLease { version, ..entry })
    }
}

/// A network with the task that follows it.
type FollowedNetwork = (Arc<dyn ServedNetwork>, Task);

pub struct StoreService {
    shared: Arc<Shared>,
    _network_list: Task,
}

struct Shared {
    networks: NetworkStore,
    watch_logs: Arc<WatchLogs>,
    clock: Clock,
    followed: Mutex<BTreeMap<NetworkName, FollowedNetwork>>,
}

impl StoreService {
    /// In front of etcd. Must be called within a tokio runtime; etcd need not be there yet.
    pub fn etcd(options: EtcdOptions) -> Result<Self, StoreError> {
        Ok(Self::start(NetworkStore::Etcd(EtcdNetworks::new(options)?)))
    }

    pub fn kubernetes(nodes: KubeNodes) -> Self {
        Self::start(NetworkStore::Kubernetes(Arc::new(nodes)))
    }

    fn start(networks: NetworkStore) -> Self {
        let watch_logs = Arc::new(WatchLogs::of(networks.subnets()));
        let clock = Clock::start(clock::wall());
        let shared = Arc::new(Shared { networks, watch_logs, clock, followed: Mutex::default() });
        let listing = shared.clone();
        if let Err(error) = shared.network(&NetworkName::default()) {
            tracing::error!("Cannot serve the network without a name: {error}");
        }
        let network_list = Task::spawn("list of networks", async move {
            let (store, mut failing) = (listing.networks.name(), false);
            loop {
                let listed = listing.networks.names().await;
                match &listed {
                    Ok(_) if failing => {
                        tracing::info!("Listing the networks in {store} works again");
                    }
                    // A repeated failure is not logged again.
                    Err(error) if !failing => tracing::error!(
                        "Cannot list the networks in {store}: {error}; unknown ones are not served, trying again every second"
                    ),
                    _ => {}
                }
                failing = listed.is_err();
                for name in listed.unwrap_or_default() {
                    if let Err(error) = listing.network(&name) {
                        tracing::warn!(%name, "cannot serve the network: {error}");
                    }
                }
                tokio::time::sleep(if failing {
                    NETWORK_LIST_RETRY
                } else {
                    NETWORK_LIST_INTERVAL
                })
                .await;
            }
        });
        Self { shared, _network_list: network_list }
    }
}

impl Shared {
    fn network(&self, name: &NetworkName) -> Result<Arc<dyn ServedNetwork>, AskError> {
        if let Some((network, _)) = self.followed.lock().get(name) {
            return Ok(network.clone());
        }
        let view = View {
            name: name.clone(),
            watch_log: self.watch_logs.get_or_create(name),
            clock: self.clock,
            subnets: self.networks.subnets(),
        };
        let (network, events) = self.networks.open(name, view.clone())?;
        let follower = Follower::new(view, self.watch_logs.clone(), self.networks.name());
        let follower = Task::spawn("watch of a network", follower.run(events));
        let mut all = self.followed.lock();
        Ok(all.entry(name.clone()).or_insert((network, follower)).0.clone())
    }
}

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

    fn network(&self, name: &NetworkName) -> Result<Arc<dyn ServedNetwork>, AskError> {
        let followed = self.shared.followed.lock().get(name).map(|(network, _)| network.clone());
        followed.ok_or_else(|| Refusal::NoNetwork(name.clone()).into())
    }

    fn new_network(&self, name: &NetworkName) -> Result<Arc<dyn ServedNetwork>, AskError> {
        self.shared.network(name)
    }
}
