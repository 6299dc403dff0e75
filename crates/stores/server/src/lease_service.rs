//! Service behind the lease server's API: it carries out requests and keeps the watch logs of their results.

use std::sync::Arc;

use async_trait::async_trait;
use flannel_lease::{NetworkName, SubnetOrigin};
use flannel_store::{Millis, NodeNetwork, PublicAddresses, RequestStore, Requests, StoreFindings};
use tokio::sync::watch;

use crate::embedded::{AskError, Embedded};
use crate::lease_state::{Reply, Request, Who};
use crate::metrics::LogFigures;
use crate::watch_log::WatchLogs;

#[async_trait]
pub trait LeaseService: Send + Sync {
    fn watch_logs(&self) -> &Arc<WatchLogs>;

    /// Time by which leases end, which does not jump when the machine's clock is set.
    fn now(&self) -> Millis;

    /// Figures of its log, if it keeps leases itself.
    fn log_figures(&self) -> Option<&LogFigures> {
        None
    }

    /// Origin of the nodes' subnets.
    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Pool
    }

    /// Addresses at which an operator wants this client to be known to others.
    async fn public_addresses(
        &self,
        _network: &NetworkName,
        _who: &Who,
    ) -> Result<PublicAddresses, AskError> {
        Ok(PublicAddresses::default())
    }

    /// Records whether this client's network works.
    async fn report(
        &self,
        _network: &NetworkName,
        _who: &Who,
        _how: &NodeNetwork,
    ) -> Result<(), AskError> {
        Ok(())
    }

    /// Carries out a request. Its result is durable when this returns.
    async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError>;

    /// Requests of operators to nodes of a network.
    fn requests(&self, network: &NetworkName) -> Result<NetworkRequests, AskError>;

    /// Nodes that get no packets, where a store behind the server assigns subnets.
    fn findings(
        &self,
        _network: &NetworkName,
    ) -> Result<Option<watch::Receiver<StoreFindings>>, AskError> {
        Ok(None)
    }
}

/// Requests of one network, as the server's clients see them.
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

#[async_trait]
impl LeaseService for Embedded {
    fn watch_logs(&self) -> &Arc<WatchLogs> {
        Self::watch_logs(self)
    }

    fn now(&self) -> Millis {
        Self::now(self)
    }

    fn log_figures(&self) -> Option<&LogFigures> {
        Some(&self.log_figures)
    }

    async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError> {
        Self::ask(self, network, request).await
    }

    fn requests(&self, network: &NetworkName) -> Result<NetworkRequests, AskError> {
        Ok(NetworkRequests::new(Arc::new(self.requests.of(network))))
    }
}
