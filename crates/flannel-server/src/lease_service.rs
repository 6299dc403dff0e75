//! What the lease server serves: somebody who carries out requests and keeps the watch logs of what
//! became of them.

use flannel_store::{Millis, NodeNetwork, PublicAddresses};
use std::sync::Arc;

use async_trait::async_trait;
use flannel_lease::{NetworkName, SubnetOrigin};

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
}
