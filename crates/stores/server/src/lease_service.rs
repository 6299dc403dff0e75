//! Service behind the lease server's API: it carries out requests and keeps the watch logs of their results.

use std::sync::Arc;

use async_trait::async_trait;
use flannel_lease::{NetworkName, SubnetOrigin};
use flannel_store::{Millis, NodeNetwork, PublicAddresses, RequestStore, Requests, StoreFindings};
use tokio::sync::watch;

use crate::embedded::{AskError, Embedded, EmbeddedStore};
use crate::lease_state::{Reply, Request, Who};
use crate::metrics::LogFigures;
use crate::watch_log::WatchLogs;

pub trait LeaseService: Send + Sync {
    fn watch_logs(&self) -> &Arc<WatchLogs>;

    /// Time by which leases end, which does not jump when the machine's clock is set.
    fn now(&self) -> Millis;

    /// Figures of its log, if it keeps leases itself.
    fn log_figures(&self) -> Option<&LogFigures> {
        None
    }

    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Pool
    }

    fn network(&self, name: &NetworkName) -> Result<Arc<dyn ServedNetwork>, AskError>;

    /// A network that may be about to get its first config.
    fn new_network(&self, name: &NetworkName) -> Result<Arc<dyn ServedNetwork>, AskError> {
        self.network(name)
    }
}

#[async_trait]
pub trait ServedNetwork: Send + Sync {
    /// Carries out a request. Its result is durable when this returns.
    async fn ask(&self, request: Request) -> Result<Reply, AskError>;

    /// Addresses at which an operator wants this client to be known to others.
    async fn public_addresses(&self, _who: &Who) -> Result<PublicAddresses, AskError> {
        Ok(PublicAddresses::default())
    }

    /// Records whether this client's network works.
    async fn report(&self, _who: &Who, _network: &NodeNetwork) -> Result<(), AskError> {
        Ok(())
    }

    fn requests(&self) -> NetworkRequests;

    /// Nodes that get no packets, where a store behind the server assigns subnets.
    fn findings(&self) -> Option<watch::Receiver<StoreFindings>> {
        None
    }
}

#[derive(Clone)]
pub struct NetworkRequests {
    pub store: Arc<dyn RequestStore>,
    /// Requests that stand, followed once for all clients.
    pub standing: watch::Receiver<Requests>,
}

impl NetworkRequests {
    /// Must be called within a tokio runtime.
    pub fn new(store: Arc<dyn RequestStore>) -> Self {
        Self { standing: store.follow(), store }
    }
}

impl LeaseService for Embedded {
    fn watch_logs(&self) -> &Arc<WatchLogs> {
        &self.watch_logs
    }

    fn now(&self) -> Millis {
        self.clock.now()
    }

    fn log_figures(&self) -> Option<&LogFigures> {
        Some(&self.log_figures)
    }

    fn network(&self, name: &NetworkName) -> Result<Arc<dyn ServedNetwork>, AskError> {
        Ok(Arc::new(EmbeddedStore::new(self.clone(), name.clone())))
    }
}

#[async_trait]
impl ServedNetwork for EmbeddedStore {
    async fn ask(&self, request: Request) -> Result<Reply, AskError> {
        self.embedded.ask(&self.network, request).await
    }

    fn requests(&self) -> NetworkRequests {
        NetworkRequests::new(Arc::new(self.requests.clone()))
    }
}
