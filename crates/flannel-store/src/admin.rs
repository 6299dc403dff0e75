//! What operators do to a store, whichever it is.

use async_trait::async_trait;
use flannel_lease::{LeaseAttrs, NetworkConfig, Subnet};

use crate::{Held, NodeAnswer, NodeRequest, RequestId, Snapshot, Store, StoreError};

#[async_trait]
pub trait Admin: Store {
    /// The network config byte for byte as somebody wrote it.
    async fn config_as_written(&self) -> Result<Option<String>, StoreError> {
        self.config().await
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError>;

    /// All leases with when they end.
    async fn list(&self) -> Result<Vec<Held>, StoreError>;

    /// Checks the config and writes it. One that would leave live leases outside the network is refused unless
    /// `force` says otherwise.
    async fn set_config(&self, text: &str, force: bool) -> Result<(), StoreError>;

    /// Keeps the subnet for the node with these addresses, for ever.
    async fn reserve(&self, subnet: &Subnet, attrs: &LeaseAttrs) -> Result<(), StoreError>;

    /// Makes a reservation a lease of a day.
    async fn unreserve(&self, subnet: &Subnet) -> Result<(), StoreError>;

    /// Gives a lease back that somebody holds. A reservation stays, and so does a lease that another node has
    /// taken since.
    async fn release(&self, held: &Held) -> Result<(), StoreError>;

    /// Takes a lease away. A reservation is refused.
    async fn revoke(&self, subnet: &Subnet) -> Result<(), StoreError>;

    /// Puts a lease there as it was elsewhere. One that another node has is refused.
    async fn import(&self, held: &Held) -> Result<(), StoreError>;

    /// Asks nodes for something, in place of what was asked by that name before. It stands for [`crate::LIFE`], and as
    /// long again whenever it is placed again.
    async fn place(&self, request: &NodeRequest) -> Result<(), StoreError>;

    /// What nodes have said to it so far.
    async fn answers(&self, to: &RequestId) -> Result<Vec<NodeAnswer>, StoreError>;

    /// Withdraws a request, with its answers. It is not an error if it is already gone.
    async fn withdraw(&self, request: &RequestId) -> Result<(), StoreError>;
}

/// How many leases a config would strand, and one of them.
pub fn stranded<'a>(
    config: &NetworkConfig,
    leases: impl IntoIterator<Item = &'a Subnet>,
) -> Option<(usize, Subnet)> {
    let mut stranded = leases.into_iter().filter(|subnet| !config.accepts(subnet));
    let example = *stranded.next()?;
    Some((1 + stranded.count(), example))
}
