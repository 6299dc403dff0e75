//! What the lease server serves: somebody who carries out requests and keeps the watch logs of what
//! became of them.

use flannel_store::{
    Millis, NodeAnswer, NodeNetwork, NodeRequest, PublicAddresses, RequestId, Requests,
    StoreFindings,
};
use std::sync::Arc;

use async_trait::async_trait;
use flannel_lease::{NetworkName, SubnetOrigin};
use tokio::sync::watch;

use crate::embedded::{AskError, Embedded};
use crate::lease_state::{Reply, Request, Who};
use crate::metrics::LogFigures;
use crate::watch_log::WatchLogs;

#[async_trait]
pub trait LeaseService: Send + Sync {
    fn watch_logs(&self) -> &Arc<WatchLogs>;

    /// The time by which leases end: it does not jump when the machine's clock is set.
    fn now(&self) -> Millis;

    /// How it goes with its log, if it keeps leases itself.
    fn log_figures(&self) -> Option<&LogFigures> {
        None
    }

    /// Where nodes have their subnets from.
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

    /// Takes note of how this client's network is.
    async fn report(
        &self,
        _network: &NetworkName,
        _who: &Who,
        _how: &NodeNetwork,
    ) -> Result<(), AskError> {
        Ok(())
    }

    /// When this returns, what the request led to is durable.
    async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError>;

    /// What operators ask of nodes, see [`NodeRequest`].
    fn requests(&self, network: &NetworkName) -> Result<watch::Receiver<Requests>, AskError>;

    /// Nodes that get no packets, where a store behind the server assigns subnets.
    fn findings(
        &self,
        _network: &NetworkName,
    ) -> Result<Option<watch::Receiver<StoreFindings>>, AskError> {
        Ok(None)
    }

    async fn place(&self, network: &NetworkName, request: NodeRequest) -> Result<(), AskError>;

    async fn withdraw(&self, network: &NetworkName, id: &RequestId) -> Result<(), AskError>;

    /// Whether there is such a request, and it is about this node.
    async fn answer(
        &self,
        network: &NetworkName,
        to: &RequestId,
        answer: NodeAnswer,
    ) -> Result<bool, AskError>;

    async fn answers(
        &self,
        network: &NetworkName,
        to: &RequestId,
    ) -> Result<Vec<NodeAnswer>, AskError>;
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
        Some(Self::log_figures(self))
    }

    async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError> {
        Self::ask(self, network, request).await
    }

    fn requests(&self, network: &NetworkName) -> Result<watch::Receiver<Requests>, AskError> {
        Ok(self.board().listen(network))
    }

    async fn place(&self, network: &NetworkName, request: NodeRequest) -> Result<(), AskError> {
        Ok(self.board().place(network, request)?)
    }

    async fn withdraw(&self, network: &NetworkName, id: &RequestId) -> Result<(), AskError> {
        self.board().withdraw(network, id);
        Ok(())
    }

    async fn answer(
        &self,
        network: &NetworkName,
        to: &RequestId,
        answer: NodeAnswer,
    ) -> Result<bool, AskError> {
        Ok(self.board().answer(network, to, answer))
    }

    async fn answers(
        &self,
        network: &NetworkName,
        to: &RequestId,
    ) -> Result<Vec<NodeAnswer>, AskError> {
        Ok(self.board().answers(network, to))
    }
}
