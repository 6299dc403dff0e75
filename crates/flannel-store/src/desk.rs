//! What the lease server serves: somebody who carries out requests and keeps the feeds of what
//! became of them.

use std::sync::Arc;

use async_trait::async_trait;
use flannel_lease::NetworkName;

use crate::embedded::{AskError, Embedded};
use crate::feed::Feeds;
use crate::ledger::{Millis, Reply, Request};

#[async_trait]
pub trait Desk: Send + Sync {
    fn feeds(&self) -> &Arc<Feeds>;

    /// The time by which leases end: it does not jump when the machine's clock is set.
    fn now(&self) -> Millis;

    /// When this returns, what the request led to is durable.
    async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError>;
}

#[async_trait]
impl Desk for Embedded {
    fn feeds(&self) -> &Arc<Feeds> {
        Self::feeds(self)
    }

    fn now(&self) -> Millis {
        Self::now(self)
    }

    async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError> {
        Self::ask(self, network, request).await
    }
}
