//! One network in etcd: followed for those who watch, changed for those who ask.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flannel_lease::{Expiry, Lease, LeaseAttrs, NetworkConfig, Subnet};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::admin::same_node;
use crate::embedded::AskError;
use crate::etcd::admin::Kept;
use crate::feed::{Event, Feed, Feeds};
use crate::ledger::{Entry, History, LEASE_TTL, NetworkName, Refusal, Reply, Request, Who};
use crate::{Admin as _, Claim, EtcdStore, Held, Store as _, StoreError, StoreEvent};

const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Front {
    store: Arc<EtcdStore>,
    name: NetworkName,
    feed: Arc<Feed>,
    follower: JoinHandle<()>,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Front {
    pub(super) fn follow(store: EtcdStore, name: NetworkName, feeds: Arc<Feeds>) -> Self {
        let store = Arc::new(store);
        let feed = feeds.get_or_create(&name);
        let events = store.watch(0);
        let follower = Follower {
            store: store.clone(),
            name: name.clone(),
            feed: feed.clone(),
            feeds,
            revision: 0,
            history: History { id: 0, since: 0 },
        };
        let follower = tokio::spawn(follower.run(events));
        Self { store, name, feed, follower }
    }

    pub(super) fn store(&self) -> &EtcdStore {
        &self.store
    }

    pub(super) async fn ask(&self, request: Request) -> Result<Reply, AskError> {
        match request {
            Request::Acquire { attrs, previous, who } => self.acquire(attrs, previous, &who).await,
            Request::Renew { subnet, attrs, version, who } => {
                self.renew(subnet, attrs, version, &who).await
            }
            Request::Release { subnet, version, who } => self.release(subnet, version, &who).await,
            Request::Reserve { subnet, attrs } => {
                if !self.config()?.accepts(&subnet) {
                    return Err(Refusal::NotInPool(subnet).into());
                }
                done(self.store.reserve(&subnet, &attrs).await)
            }
            Request::Unreserve { subnet } => done(self.store.unreserve(&subnet).await),
            Request::Import { subnet, attrs, left } => {
                if attrs.public_ip.is_none() && attrs.public_ipv6.is_none() {
                    return Err(Refusal::NoAddress("PublicIP").into());
                }
                let end = |left| Expiry::At(SystemTime::now() + Duration::from_millis(left));
                let expiry = left.map_or(Expiry::Never, end);
                let held = Held { lease: Lease { subnet, attrs }, expiry, version: 0 };
                done(self.store.import(&held).await)?;
                self.kept(subnet).await.map(|kept| reply(&kept))
            }
            Request::SetConfig { text, force } => {
                let config = flannel_backend::judge(&text).map_err(Refusal::from)?.config;
                let all = self.feed.everything();
                let subnets = all.leases.iter().map(|(subnet, _)| subnet);
                let stranded = crate::admin::stranded(&config, subnets).filter(|_| !force);
                if let Some((count, example)) = stranded {
                    return Err(Refusal::Stranded { count, example }.into());
                }
                self.store.set_config(&text, force).await.map_err(unavailable)?;
                Ok(Reply::Done)
            }
            Request::RemoveNetwork { force } => {
                self.config()?;
                let leases = self.feed.everything().leases;
                if !leases.is_empty() && !force {
                    return Err(Refusal::InUse(leases.len()).into());
                }
                for (subnet, entry) in leases {
                    if entry.expires.is_none() {
                        self.store.unreserve(&subnet).await.map_err(unavailable)?;
                    }
                    self.store.revoke(&subnet).await.map_err(unavailable)?;
                }
                self.store.remove_config().await.map_err(unavailable)?;
                Ok(Reply::Done)
            }
        }
    }

    fn config(&self) -> Result<NetworkConfig, AskError> {
        let text = self.feed.config_text().ok_or(Refusal::NoNetwork(self.name.clone()))?;
        Ok(NetworkConfig::parse(&text).map_err(Refusal::from)?)
    }

    async fn kept(&self, subnet: Subnet) -> Result<Kept, AskError> {
        let kept = self.store.kept(&subnet).await.map_err(unavailable)?;
        Ok(kept.ok_or(Refusal::Gone(subnet))?)
    }

    /// One that this client may change.
    async fn own(&self, subnet: Subnet, who: &Who) -> Result<Kept, AskError> {
        self.config()?;
        let kept = self.kept(subnet).await?;
        if !who.owns(None, &kept.lease.attrs) {
            return Err(Refusal::NotYours(subnet).into());
        }
        Ok(kept)
    }

    async fn acquire(
        &self,
        attrs: LeaseAttrs,
        previous: Option<Subnet>,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let config = self.config()?;
        if config.v4.is_some() && attrs.public_ip.is_none() {
            return Err(Refusal::NoAddress("PublicIP").into());
        }
        if config.v4.is_none() && attrs.public_ipv6.is_none() {
            return Err(Refusal::NoAddress("PublicIPv6").into());
        }
        if let Some(address) = who.foreign_address(&attrs) {
            return Err(Refusal::ForeignAddress(address).into());
        }
        let claim = Claim::new(attrs, previous);
        let acquired = self.store.acquire(&config, &claim).await.map_err(unavailable)?;
        Ok(lease_reply(&acquired.held))
    }

    async fn renew(
        &self,
        subnet: Subnet,
        attrs: LeaseAttrs,
        version: Option<u64>,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let kept = self.own(subnet, who).await?;
        if let Some(address) = who.foreign_address(&attrs) {
            return Err(Refusal::ForeignAddress(address).into());
        }
        if !same_node(&kept.lease.attrs, &attrs) && version != Some(kept.version) {
            return Err(Refusal::Taken(subnet, Box::new(entry(&kept))).into());
        }
        let held = self.store.renew(&kept.held(), &attrs).await.map_err(unavailable)?;
        Ok(lease_reply(&held))
    }

    async fn release(
        &self,
        subnet: Subnet,
        version: Option<u64>,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let kept = self.own(subnet, who).await?;
        if version.is_some_and(|version| version != kept.version) {
            return Err(Refusal::Taken(subnet, Box::new(entry(&kept))).into());
        }
        if kept.reserved {
            return Err(Refusal::Reserved(subnet).into());
        }
        self.store.release(&kept.held()).await.map_err(unavailable)?;
        Ok(Reply::Done)
    }
}

fn done(result: Result<(), StoreError>) -> Result<Reply, AskError> {
    result.map(|()| Reply::Done).map_err(unavailable)
}

/// What etcd refuses for good is told as such; all else may pass.
fn unavailable(error: StoreError) -> AskError {
    match error {
        StoreError::OutOfSubnets(error) => Refusal::from(error).into(),
        StoreError::Rejected { refusal, .. } => (*refusal).into(),
        StoreError::Taken { by, .. } => {
            let Lease { subnet, attrs } = *by;
            let entry = Entry { attrs, expires: day(), version: 0, owner: None };
            Refusal::Taken(subnet, Box::new(entry)).into()
        }
        other => AskError::ReadOnly(other.to_string()),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn day() -> Option<u64> {
    Some(now() + LEASE_TTL.as_millis() as u64)
}

/// How long a lease still lasts is not asked for every one: whoever wrote it last gave it a day.
fn entry(kept: &Kept) -> Entry {
    let expires = if kept.reserved { None } else { day() };
    Entry { attrs: kept.lease.attrs.clone(), expires, version: kept.version, owner: None }
}

fn reply(kept: &Kept) -> Reply {
    Reply::Lease(kept.lease.subnet, entry(kept))
}

fn lease_reply(held: &Held) -> Reply {
    let millis = |left: Duration| now() + left.as_millis() as u64;
    let expires = held.expiry.remaining(SystemTime::now()).map(millis);
    let attrs = held.lease.attrs.clone();
    let entry = Entry { attrs, expires, version: held.version, owner: None };
    Reply::Lease(held.lease.subnet, entry)
}

/// Keeps the feed as etcd is.
struct Follower {
    store: Arc<EtcdStore>,
    name: NetworkName,
    feed: Arc<Feed>,
    feeds: Arc<Feeds>,
    revision: u64,
    history: History,
}

impl Follower {
    async fn run(mut self, mut events: mpsc::Receiver<StoreEvent>) {
        let mut config: Option<String> = None;
        while let Some(event) = events.recv().await {
            self.revision += 1;
            let lived = self.feed.config_text().is_some();
            match event {
                StoreEvent::Config(text) if self.history.id == 0 => config = Some(text),
                StoreEvent::ConfigGone if self.history.id == 0 => config = None,
                StoreEvent::Config(text) => self.publish(Event::Config(Some(text))),
                StoreEvent::ConfigGone => self.publish(Event::Config(None)),
                StoreEvent::Snapshot(_) => {
                    let known = self.feed.config_text().or(config.take());
                    self.reset(known.as_deref()).await;
                }
                StoreEvent::Put(lease) => {
                    // One that is gone again will be told of as gone.
                    if let Some(kept) = self.kept(lease.subnet).await {
                        self.publish(Event::Put(lease.subnet, entry(&kept)));
                    }
                }
                StoreEvent::Gone(subnet) => self.publish(Event::Gone(subnet)),
                StoreEvent::Down(why) => tracing::warn!(network = %self.name, "{why}"),
                StoreEvent::Up => tracing::info!(network = %self.name, "etcd is back"),
            }
            let lives = self.feed.config_text().is_some();
            if lived != lives {
                self.feeds.announce(self.revision, lives, &self.name);
            }
        }
    }

    fn publish(&self, event: Event) {
        self.feed.publish(self.revision, None, vec![event]);
    }

    /// Events may have been missed: a new history begins, and every client takes the whole table.
    async fn reset(&mut self, config: Option<&str>) {
        let kept = self.all_kept().await;
        self.history = History { id: fastrand::u64(1..), since: self.revision };
        let leases = kept.iter().map(|kept| (kept.lease.subnet, entry(kept)));
        self.feed.reset(self.revision, &[self.history], config, leases);
    }

    async fn kept(&self, subnet: Subnet) -> Option<Kept> {
        loop {
            match self.store.kept(&subnet).await {
                Ok(kept) => return kept,
                Err(error) => self.pause(&error).await,
            }
        }
    }

    async fn all_kept(&self) -> Vec<Kept> {
        loop {
            match self.store.all_kept().await {
                Ok(kept) => return kept,
                Err(error) => self.pause(&error).await,
            }
        }
    }

    async fn pause(&self, error: &StoreError) {
        tracing::debug!(network = %self.name, "{error}");
        tokio::time::sleep(RETRY).await;
    }
}
