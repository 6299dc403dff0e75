//! The lease server in front of etcd: it keeps nothing itself, so several of them serve side by side.
//! Each follows etcd and tells its clients; cursors are its own, and a client that comes from another
//! server takes the whole table.

mod network;

use flannel_store::{EtcdOptions, EtcdStore, Millis, Refusal, StoreError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flannel_lease::NetworkName;
use tokio::task::JoinHandle;

use self::network::EtcdNetwork;
use crate::LeaseService;
use crate::clock::{self, Clock};
use crate::embedded::AskError;
use crate::lease_state::{Reply, Request};
use crate::watch_log::WatchLogs;

/// How often it is looked for networks that others have made.
const LOOK: Duration = Duration::from_secs(15);
/// And how soon again when that has failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub struct EtcdService {
    shared: Arc<Shared>,
    look: JoinHandle<()>,
}

struct Shared {
    options: EtcdOptions,
    watch_logs: Arc<WatchLogs>,
    clock: Clock,
    networks: Mutex<BTreeMap<NetworkName, Arc<EtcdNetwork>>>,
}

impl Drop for EtcdService {
    fn drop(&mut self) {
        self.look.abort();
    }
}

impl EtcdService {
    /// Must be called within a tokio runtime; etcd need not be there yet.
    pub fn start(options: EtcdOptions) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared {
            options,
            watch_logs: Arc::new(WatchLogs::default()),
            clock: Clock::start(clock::wall()),
            networks: Mutex::default(),
        });
        let default = shared.network(&NetworkName::default())?;
        let looking = shared.clone();
        let look = tokio::spawn(async move {
            let mut failing = false;
            loop {
                let listed = default.store().networks_below().await;
                match &listed {
                    Ok(_) if failing => tracing::info!("The networks in etcd can be listed again"),
                    // That it still fails is told by nothing having been said since.
                    Err(error) if !failing => tracing::error!(
                        "The networks in etcd cannot be listed: {error}; those not known yet are not served, \
                         trying every second"
                    ),
                    _ => {}
                }
                failing = listed.is_err();
                for name in listed.unwrap_or_default() {
                    if let Ok(name) = name.parse::<NetworkName>()
                        && let Err(error) = looking.network(&name)
                    {
                        tracing::warn!(%name, "the network cannot be served: {error}");
                    }
                }
                tokio::time::sleep(if failing { LOOK_AGAIN } else { LOOK }).await;
            }
        });
        Ok(Self { shared, look })
    }
}

impl Shared {
    /// The network is followed from the first time it is asked about.
    fn network(&self, name: &NetworkName) -> Result<Arc<EtcdNetwork>, StoreError> {
        if let Some(followed) = self.networks().get(name) {
            return Ok(followed.clone());
        }
        let options = self.options.clone().of_network(name);
        let store = EtcdStore::new(&options, None, fastrand::u64(..))?;
        let followed =
            Arc::new(EtcdNetwork::follow(store, name.clone(), self.watch_logs.clone(), self.clock));
        Ok(self.networks().entry(name.clone()).or_insert(followed).clone())
    }

    fn networks(&self) -> MutexGuard<'_, BTreeMap<NetworkName, Arc<EtcdNetwork>>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LeaseService for EtcdService {
    fn watch_logs(&self) -> &Arc<WatchLogs> {
        &self.shared.watch_logs
    }

    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError> {
        let known = self.shared.networks().contains_key(network);
        if !known && !matches!(request, Request::SetConfig { .. }) {
            return Err(Refusal::NoNetwork(network.clone()).into());
        }
        let followed =
            self.shared.network(network).map_err(|e| AskError::ReadOnly(e.to_string()))?;
        followed.ask(request).await
    }
}
