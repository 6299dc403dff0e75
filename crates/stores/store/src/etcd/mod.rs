//! The etcd v3 store, sharing its keys and values with the Go flannel.

mod acquire;
mod announced_history;
mod client;
mod cluster_pin;
mod fault;
mod keys;
mod leases;
mod listing;
mod login;
mod operator;
mod options;
mod proto;
mod renew;
mod requests;
mod rpc;
#[cfg(feature = "test-util")]
pub(crate) mod testing;
mod timing;
mod tls;
mod transport;
mod txn;
mod unreadable;
mod watch;
mod watch_progress;

use std::sync::Arc;

use async_trait::async_trait;
use flannel_lease::{Claimant, LeaseAttrs, NetworkConfig, Subnet};
use tokio::sync::mpsc;

use self::leases::EtcdLeases;
use crate::{
    Contact, Cursor, Held, NodeStore, Pages, Recalled, RequestStore, Store, StoreError, StoreEvent,
};

pub use self::cluster_pin::ClusterPin;
pub use self::options::{EtcdOptions, Secret};

#[derive(Debug)]
pub struct EtcdStore {
    leases: Arc<EtcdLeases>,
    previous: Option<Subnet>,
}

impl EtcdStore {
    /// Needs no etcd yet. `previous` is for the name only; `seed` decides on endpoint, subnet and pauses.
    pub fn new(
        options: &EtcdOptions,
        previous: Option<Subnet>,
        seed: u64,
    ) -> Result<Self, StoreError> {
        Ok(Self { leases: Arc::new(EtcdLeases::new(options, seed)?), previous })
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn name(&self) -> String {
        let previous = self.previous.and_then(|subnet| subnet.nets().next());
        let previous = previous.map_or_else(|| "None".to_owned(), |net| net.to_string());
        format!("Etcd Local Manager with Previous Subnet: {previous}")
    }

    fn description(&self) -> String {
        format!("etcd at {}", self.leases.client.endpoint())
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.leases.contact.clone())
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        self.leases.config().await
    }

    fn how_to_write_config(&self) -> String {
        let key = &self.leases.keys.config;
        format!(
            "`etcdctl put {key} '{}'`, or with `flannelctl config set FILE`",
            crate::store::EXAMPLE_CONFIG
        )
    }

    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent> {
        watch::start(self.leases.clone(), &cursor)
    }

    fn requests(&self) -> &dyn RequestStore {
        self
    }
}

#[async_trait]
impl NodeStore for EtcdStore {
    async fn recall(&self, config: &NetworkConfig, me: &Claimant) -> Result<Recalled, StoreError> {
        self.leases.recall(config, me, None).await
    }

    async fn recall_by_pages(
        &self,
        config: &NetworkConfig,
        me: &Claimant,
        pages: Pages<'_>,
    ) -> Result<Recalled, StoreError> {
        self.leases.recall(config, me, Some(pages)).await
    }

    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        self.leases.renew(held, attrs).await
    }

    fn node_moved(&self) {
        self.leases.client.reconnect();
    }
}
