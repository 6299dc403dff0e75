//! What is asked of a provider, whichever it is.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use ipnet::IpNet;

use crate::credentials::Lent;
use crate::{Access, CloudError, CloudRoute, Fault, Keys, Provider, Table, ali, aws, gce, tencent};

/// A route table as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) id: String,
    pub(crate) routes: Vec<Found>,
}

/// A route that is in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// What the provider knows it by, if that is not its destination.
    pub(crate) id: String,
    pub(crate) destination: IpNet,
    pub(crate) next_hop: String,
    pub(crate) state: State,
    /// Somebody has written it, and not the cloud itself.
    pub(crate) written: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In force, or about to be.
    Active,
    /// Its next hop is gone: packets to it vanish.
    Dead,
    /// Switched off, or of a kind that another provider's routes do not have.
    Off,
}

/// Whether a node's interface may carry packets that are not its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MayForward {
    Yes,
    /// It may now.
    Made,
    /// Nobody tells us: the words for people.
    Unknown(String),
}

/// Speaks to one provider for one node. Credentials are kept while they last.
pub(crate) struct Client {
    access: Arc<Access>,
    lent: Mutex<Option<Lent<Keys>>>,
}

impl Client {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        Self { access, lent: Mutex::new(None) }
    }

    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    pub(crate) async fn view(&self, table: &Table) -> Result<View, CloudError> {
        self.forgetting(match self.access.provider() {
            Provider::AwsVpc => aws::view(self, table).await,
            Provider::AliVpc => ali::view(self, table).await,
            Provider::Gce => gce::view(self, table).await,
            Provider::TencentVpc => tencent::view(self, table).await,
        })
    }

    /// Makes a route what it is to be, whatever is there in its place.
    pub(crate) async fn put(
        &self,
        table: &str,
        route: &CloudRoute,
        existing: Option<&Found>,
    ) -> Result<(), CloudError> {
        let provider = self.access.provider();
        // Only EC2 replaces a route. Elsewhere what is in its place goes first, unless it is the cloud's own.
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

    /// Takes a route away; that it is gone already is as good.
    pub(crate) async fn remove(&self, table: &str, found: &Found) -> Result<(), CloudError> {
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

    pub(crate) async fn let_forward(&self) -> Result<MayForward, CloudError> {
        self.forgetting(match self.access.provider() {
            Provider::AwsVpc => aws::let_forward(self).await,
            Provider::Gce => gce::let_forward(self).await,
            // They drop nothing that a route leads to a machine.
            Provider::AliVpc | Provider::TencentVpc => Ok(MayForward::Yes),
        })
    }

    /// Those of the config, of the environment and the files that it names, or of the machine's role.
    pub(crate) async fn keys(&self) -> Result<Keys, CloudError> {
        if let Some(keys) = &self.access.keys {
            return Ok(keys.clone());
        }
        if let Some(lent) = &*self.lent()
            && lent.lasts(SystemTime::now())
        {
            return Ok(lent.what.clone());
        }
        let lent = match self.access.provider() {
            Provider::AwsVpc => aws::credentials::find(&self.access).await?,
            Provider::AliVpc => ali::metadata::keys(&self.access).await?,
            Provider::Gce => gce::credentials::find(&self.access).await?,
            Provider::TencentVpc => tencent::metadata::keys(&self.access).await?,
        };
        let keys = lent.what.clone();
        *self.lent() = Some(lent);
        Ok(keys)
    }

    /// Credentials that are not taken, or that may not do what is asked, are not kept: others may be there by
    /// now, with a role that was mended.
    fn forgetting<T>(&self, result: Result<T, CloudError>) -> Result<T, CloudError> {
        if let Err(error) = &result
            && matches!(error.fault, Fault::Credentials | Fault::Denied)
        {
            *self.lent() = None;
        }
        result
    }

    fn lent(&self) -> std::sync::MutexGuard<'_, Option<Lent<Keys>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
