//! Networks in etcd: a client that may announce an address may have a lease from the pool of the network config.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flannel_lease::{
    Claimant, Expiry, KnownBy, Lease, LeaseAttrs, NetworkConfig, NetworkName, Subnet, Version,
};
use flannel_store::prelude::*;
use flannel_store::{
    Cursor, EtcdOptions, EtcdStore, Held, KeptLease, Millis, Refusal, StoreError, StoredLease,
};

use super::{OpenedNetwork, View};
use crate::embedded::AskError;
use crate::lease_service::{NetworkRequests, ServedNetwork};
use crate::lease_state::{MIN_LIFE_AFTER_START, Reply, Request, Who, check_size};

pub(super) struct EtcdNetworks {
    options: EtcdOptions,
    store: EtcdStore,
}

impl EtcdNetworks {
    pub(super) fn new(options: EtcdOptions) -> Result<Self, StoreError> {
        let store = open(&options, &NetworkName::default())?;
        Ok(Self { options, store })
    }

    pub(super) fn open(&self, name: &NetworkName, view: View) -> Result<OpenedNetwork, AskError> {
        let store = Arc::new(open(&self.options, name)?);
        let events = store.watch(Cursor::BEGINNING);
        let requests = NetworkRequests::new(store.clone());
        Ok((Arc::new(EtcdNetwork { store, view, requests }), events))
    }

    pub(super) async fn names(&self) -> Result<Vec<NetworkName>, StoreError> {
        let names = self.store.networks_below().await?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }
}

fn open(options: &EtcdOptions, network: &NetworkName) -> Result<EtcdStore, StoreError> {
    EtcdStore::new(&options.clone().of_network(network), None, fastrand::u64(..))
}

struct EtcdNetwork {
    store: Arc<EtcdStore>,
    view: View,
    requests: NetworkRequests,
}

#[async_trait]
impl ServedNetwork for EtcdNetwork {
    async fn ask(&self, request: Request) -> Result<Reply, AskError> {
        match request {
            Request::Acquire { attrs, previous, who } => {
                return self.acquire(attrs, previous, &who).await;
            }
            Request::Renew { subnet, attrs, version, who } => {
                return self.renew(subnet, attrs, version, &who).await;
            }
            Request::Release { subnet, version, who } => {
                self.release(subnet, version, &who).await?;
            }
            Request::Reserve { subnet, attrs } => {
                if !self.view.config()?.accepts(&subnet) {
                    return Err(Refusal::NotInPool(subnet).into());
                }
                self.store.reserve(&subnet, &attrs).await?;
            }
            Request::Unreserve { subnet } => self.store.unreserve(&subnet).await?,
            Request::Import { subnet, attrs, left } => {
                KnownBy::Ipv4First.address(&attrs).map_err(Refusal::from)?;
                check_size(&attrs)?;
                let left = left.map(|left| left.max(MIN_LIFE_AFTER_START.as_millis() as Millis));
                let end = |left| Expiry::At(SystemTime::now() + Duration::from_millis(left));
                let expiry = left.map_or(Expiry::Never, end);
                let held =
                    Held { lease: Lease { subnet, attrs }, expiry, version: Version::UNKNOWN };
                self.store.import(&held).await?;
                let kept = self.kept(subnet).await?;
                return Ok(Reply::Lease(subnet, self.view.entry(&kept)));
            }
            Request::SetConfig { text, force } => self.store.set_config(&text, force).await?,
            Request::RemoveNetwork { force } => {
                self.view.config()?;
                let leases = self.view.watch_log.snapshot().leases;
                if !leases.is_empty() && !force {
                    return Err(Refusal::InUse(leases.len()).into());
                }
                for (subnet, entry) in leases {
                    if entry.expires.is_none() {
                        self.store.unreserve(&subnet).await?;
                    }
                    self.store.revoke(&subnet).await?;
                }
                self.store.remove_config().await?;
            }
        }
        Ok(Reply::Done)
    }

    fn requests(&self) -> NetworkRequests {
        self.requests.clone()
    }
}

impl EtcdNetwork {
    async fn kept(&self, subnet: Subnet) -> Result<StoredLease, AskError> {
        Ok(self.store.stored(&subnet).await?.ok_or(Refusal::Gone(subnet))?)
    }

    /// A lease that this client may change.
    async fn own(&self, subnet: Subnet, who: &Who) -> Result<StoredLease, AskError> {
        self.view.config()?;
        let kept = self.kept(subnet).await?;
        self.check_own(subnet, &self.view.entry(&kept), who)?;
        Ok(kept)
    }

    fn check_own(&self, subnet: Subnet, entry: &KeptLease, who: &Who) -> Result<(), AskError> {
        if who.owns(entry.owner.as_deref(), &entry.attrs) {
            return Ok(());
        }
        Err(Refusal::NotYours(subnet, Box::new(entry.clone())).into())
    }

    /// Refuses attributes that are too large, or that another node is known by. `own` is the lease that the client has.
    fn check_attrs(
        &self,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
        who: &Who,
        own: Option<Subnet>,
    ) -> Result<(), AskError> {
        self.view.check_attrs(attrs, who)?;
        let others = |_: &Subnet, entry: &KeptLease| {
            flannel_lease::same_node(config, attrs, &entry.attrs)
                && !who.owns(entry.owner.as_deref(), &entry.attrs)
        };
        if let Some((subnet, entry)) = self.view.watch_log.find(others) {
            self.check_own(subnet, &entry, who)?;
        }
        Ok(self.view.check_identity(config, attrs, who, own)?)
    }

    async fn acquire(
        &self,
        attrs: LeaseAttrs,
        previous: Option<Subnet>,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let config = self.view.config()?;
        KnownBy::of(Some(&config)).address(&attrs).map_err(Refusal::from)?;
        self.check_attrs(&config, &attrs, who, None)?;
        let me = Claimant::new(&attrs, previous);
        let owned = |before: Option<&LeaseAttrs>| {
            owned(attrs.clone(), who, before.and_then(|before| before.owner.as_deref()))
        };
        let recalled = self.store.recall(&config, &me).await?;
        let acquired = flannel_store::acquire(&*self.store, &config, &me, recalled, owned).await;
        Ok(self.view.reply(acquired?.held))
    }

    async fn renew(
        &self,
        subnet: Subnet,
        attrs: LeaseAttrs,
        version: Option<u64>,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let kept = self.own(subnet, who).await?;
        let config = self.view.config()?;
        self.check_attrs(&config, &attrs, who, Some(subnet))?;
        let same_node = flannel_lease::same_node(&config, &kept.lease.attrs, &attrs);
        if !same_node && version.map(Version::new) != Some(kept.version) {
            return Err(self.taken(subnet, &kept));
        }
        let attrs = owned(attrs, who, kept.lease.attrs.owner.as_deref());
        Ok(self.view.reply(self.store.renew(&kept.held(SystemTime::now()), &attrs).await?))
    }

    async fn release(
        &self,
        subnet: Subnet,
        version: Option<u64>,
        who: &Who,
    ) -> Result<(), AskError> {
        let kept = self.own(subnet, who).await?;
        if version.is_some_and(|version| Version::new(version) != kept.version) {
            return Err(self.taken(subnet, &kept));
        }
        if kept.reserved {
            return Err(Refusal::Reserved(subnet).into());
        }
        Ok(self.store.release(&kept.held(SystemTime::now())).await?)
    }

    fn taken(&self, subnet: Subnet, kept: &StoredLease) -> AskError {
        Refusal::Taken(subnet, Box::new(self.view.entry(kept))).into()
    }
}

/// Attributes with the name of the lease's owner, for the other servers in front of this etcd.
fn owned(attrs: LeaseAttrs, who: &Who, before: Option<&str>) -> LeaseAttrs {
    let owner = who.owner_after(before.map(Box::from));
    LeaseAttrs { owner, ..attrs }
}
