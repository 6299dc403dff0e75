//! Operations of an operator on a store: the network config, all leases, and changes of the pool.

use async_trait::async_trait;
use flannel_lease::{LeaseAttrs, NetworkConfig, Subnet};

use crate::{Held, Refusal, Snapshot, Store, StoreError};

#[async_trait]
pub trait OperatorStore: Store {
    /// The network config byte for byte as it was written.
    async fn config_as_written(&self) -> Result<Option<String>, StoreError> {
        self.config().await
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError>;

    async fn list(&self) -> Result<Vec<Held>, StoreError>;

    /// Checks and writes the config. One that would leave live leases outside is refused, unless with `force`.
    async fn set_config(&self, text: &str, force: bool) -> Result<(), StoreError>;

    /// The pool, for a change of it. Where subnets are assigned, the error says what to do instead.
    async fn pool(&self, change: PoolChange) -> Result<&dyn SubnetPool, StoreError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolChange {
    Reserve(Subnet),
    Unreserve(Subnet),
    Release(Subnet),
}

/// A pool that nodes take their subnets from.
#[async_trait]
pub trait SubnetPool: OperatorStore {
    /// Keeps the subnet for the node with these addresses, for ever.
    async fn reserve(&self, subnet: &Subnet, attrs: &LeaseAttrs) -> Result<(), StoreError>;

    /// Makes a reservation a lease of a day.
    async fn unreserve(&self, subnet: &Subnet) -> Result<(), StoreError>;

    /// Gives a lease back that a node holds; not a reservation, nor what another node has taken since.
    async fn release(&self, held: &Held) -> Result<(), StoreError>;

    /// Takes a lease away. A reservation is refused.
    async fn revoke(&self, subnet: &Subnet) -> Result<(), StoreError>;

    /// Puts a lease there as it was elsewhere. One that another node has is refused.
    async fn import(&self, held: &Held) -> Result<(), StoreError>;
}

/// Text to write in place of `former`. One that strands leases is refused, or, with `force`, lets nodes move.
pub fn replace_config<'a>(
    text: &str,
    config: &NetworkConfig,
    former: Option<&NetworkConfig>,
    leases: impl IntoIterator<Item = &'a Subnet>,
    force: bool,
) -> Result<String, Refusal> {
    let mut stranded = leases.into_iter().filter(|subnet| !config.accepts(subnet));
    let Some(example) = stranded.next() else { return Ok(text.to_owned()) };
    if !force {
        return Err(Refusal::Stranded { count: 1 + stranded.count(), example: *example });
    }
    let former = former.into_iter().flat_map(NetworkConfig::networks);
    Ok(NetworkConfig::with_replaces(text, former))
}
