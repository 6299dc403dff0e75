//! Client of a provider, whichever it is.

use std::sync::Arc;
use std::time::SystemTime;

use flannel_entries::cloud::{Access, CloudNode, CloudRoute, Keys, NodeQuery, Provider, Table};
use ipnet::IpNet;
use parking_lot::Mutex;

use crate::credentials::ExpiringKeys;
use crate::instance::Dialect;
use crate::{CloudError, Fault, Result, ali, aws, gce, tencent};

pub async fn query_node(query: &NodeQuery) -> Result<CloudNode> {
    let place = query.metadata.as_deref();
    match Dialect::of(query.provider) {
        Some(dialect) => dialect.node(place).await,
        None => gce::metadata::node(place).await,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableView {
    pub(crate) id: String,
    pub(crate) routes: Vec<TableRoute>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableRoute {
    /// The provider's identifier, if that is not the destination.
    pub(crate) id: String,
    pub(crate) destination: IpNet,
    pub(crate) next_hop: String,
    pub(crate) state: RouteState,
    /// Whether somebody has written it, and not the cloud itself.
    pub(crate) written: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteState {
    /// In force, or about to be.
    Active,
    /// Its next hop is gone: packets to it vanish.
    Dead,
    /// Switched off, or of a kind that another provider's routes do not have.
    Off,
}

/// Whether a node's interface may forward packets that are not its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MayForward {
    Yes,
    Made,
    Unknown(String),
}

/// Client of one provider for one node. Credentials are kept until they expire.
pub(crate) struct Client {
    pub(crate) access: Arc<Access>,
    cached: Mutex<Option<ExpiringKeys>>,
}

impl Client {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        Self { access, cached: Mutex::new(None) }
    }

    pub(crate) async fn view(&self, table: &Table) -> Result<TableView> {
        self.forgetting(match self.access.provider() {
            Provider::AwsVpc => aws::view(self, table).await,
            Provider::AliVpc => ali::view(self, table).await,
            Provider::Gce => gce::view(self, table).await,
            Provider::TencentVpc => tencent::view(self, table).await,
        })
    }

    /// Writes a route, whatever is there in its place.
    pub(crate) async fn put(
        &self,
        table: &str,
        route: &CloudRoute,
        existing: Option<&TableRoute>,
    ) -> Result<()> {
        let provider = self.access.provider();
        // Only EC2 replaces a route. Elsewhere the existing one is removed first, unless it is the cloud's own.
        let in_place = existing.filter(|found| found.written && provider != Provider::AwsVpc);
        if let Some(found) = in_place {
            self.remove(table, found).await?;
        }
        self.forgetting(match provider {
            Provider::AwsVpc => aws::put(self, table, route, existing).await,
            Provider::AliVpc => ali::put(self, table, route).await,
            Provider::Gce => gce::put(self, route).await,
            Provider::TencentVpc => tencent::put(self, table, route).await,
        })
    }

    /// Removes a route; one that is gone already is a success.
    pub(crate) async fn remove(&self, table: &str, found: &TableRoute) -> Result<()> {
        let removed = match self.access.provider() {
            Provider::AwsVpc => aws::remove(self, table, found).await,
            Provider::AliVpc => ali::remove(self, table, found).await,
            Provider::Gce => gce::remove(self, table, found).await,
            Provider::TencentVpc => tencent::remove(self, table, found).await,
        };
        match self.forgetting(removed) {
            Err(error) if error.fault == Fault::NotFound => Ok(()),
            other => other,
        }
    }

    pub(crate) async fn let_forward(&self) -> Result<MayForward> {
        self.forgetting(match self.access.provider() {
            Provider::AwsVpc => aws::let_forward(self).await,
            Provider::Gce => gce::let_forward(self).await,
            // They drop nothing that a route leads to a machine.
            Provider::AliVpc | Provider::TencentVpc => Ok(MayForward::Yes),
        })
    }

    pub(crate) fn no_table(attempt: &str, of: &str) -> CloudError {
        CloudError::new(Fault::NotFound, attempt, &format!("there is none for {of}"))
            .with_fix("name one that there is in Backend.RouteTableID")
    }

    /// Keys of the config, of the environment and the files that it names, or of the machine's role.
    pub(crate) async fn keys(&self) -> Result<Keys> {
        if let Some(keys) = &self.access.keys {
            return Ok(keys.clone());
        }
        if let Some(cached) = &*self.cached.lock()
            && cached.is_valid(SystemTime::now())
        {
            return Ok(cached.keys.clone());
        }
        let cached = match Dialect::of(self.access.provider()) {
            Some(dialect) => dialect.keys(&self.access).await?,
            None => gce::credentials::find(&self.access).await?,
        };
        let keys = cached.keys.clone();
        *self.cached.lock() = Some(cached);
        Ok(keys)
    }

    /// Drops credentials that were refused or lack a permission: with a corrected role there are others.
    fn forgetting<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && matches!(error.fault, Fault::Credentials | Fault::Denied)
        {
            *self.cached.lock() = None;
        }
        result
    }
}
