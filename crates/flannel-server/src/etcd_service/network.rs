//! One network in etcd: followed for those who watch, changed for those who ask.

use flannel_lease::LEASE_TTL;
use flannel_store::{
    Admin as _, Cursor, EtcdStore, Held, KeptLease, Millis, Refusal, Store as _, StoreError,
    StoreEvent, StoredLease, split_owner,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flannel_lease::{
    Claimant, Expiry, KnownBy, Lease, LeaseAttrs, NetworkConfig, NetworkName, Subnet, SubnetOrigin,
    Version,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::embedded::AskError;
use crate::lease_state::{GRACE, Reply, Request, ServerRun, Who, check_size};
use crate::watch_log::{Event, WatchLog, WatchLogs};

pub(super) struct EtcdNetwork {
    store: Arc<EtcdStore>,
    name: NetworkName,
    watch_log: Arc<WatchLog>,
    clock: Clock,
    follower: JoinHandle<()>,
}

impl Drop for EtcdNetwork {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl EtcdNetwork {
    pub(super) fn follow(
        store: EtcdStore,
        name: NetworkName,
        watch_logs: Arc<WatchLogs>,
        clock: Clock,
    ) -> Self {
        let store = Arc::new(store);
        let watch_log = watch_logs.get_or_create(&name);
        let events = store.watch(Cursor::BEGINNING);
        let follower = Follower {
            name: name.clone(),
            watch_log: watch_log.clone(),
            watch_logs,
            clock,
            revision: 0,
            history: ServerRun { id: 0, since: 0 },
        };
        let follower = tokio::spawn(follower.run(events));
        Self { store, name, watch_log, clock, follower }
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
                self.done(self.store.reserve(&subnet, &attrs).await)
            }
            Request::Unreserve { subnet } => self.done(self.store.unreserve(&subnet).await),
            Request::Import { subnet, attrs, left } => {
                KnownBy::FirstAddress.address(&attrs).map_err(Refusal::from)?;
                check_size(&attrs)?;
                let left = left.map(|left| left.max(GRACE.as_millis() as Millis));
                let end = |left| Expiry::At(SystemTime::now() + Duration::from_millis(left));
                let expiry = left.map_or(Expiry::Never, end);
                let held =
                    Held { lease: Lease { subnet, attrs }, expiry, version: Version::UNKNOWN };
                self.done(self.store.import(&held).await)?;
                let kept = self.kept(subnet).await?;
                Ok(Reply::Lease(subnet, entry(&kept, self.clock.now())))
            }
            Request::SetConfig { text, force } => {
                let config = flannel_backend::judge(&text, SubnetOrigin::Pool)
                    .map_err(Refusal::from)?
                    .config;
                let all = self.watch_log.everything();
                let subnets = all.leases.iter().map(|(subnet, _)| subnet);
                let stranded = flannel_store::stranded(&config, subnets).filter(|_| !force);
                if let Some((count, example)) = stranded {
                    return Err(Refusal::Stranded { count, example }.into());
                }
                self.store.set_config(&text, force).await.map_err(|e| self.unavailable(e))?;
                Ok(Reply::Done)
            }
            Request::RemoveNetwork { force } => {
                self.config()?;
                let leases = self.watch_log.everything().leases;
                if !leases.is_empty() && !force {
                    return Err(Refusal::InUse(leases.len()).into());
                }
                for (subnet, entry) in leases {
                    if entry.expires.is_none() {
                        self.store.unreserve(&subnet).await.map_err(|e| self.unavailable(e))?;
                    }
                    self.store.revoke(&subnet).await.map_err(|e| self.unavailable(e))?;
                }
                self.store.remove_config().await.map_err(|e| self.unavailable(e))?;
                Ok(Reply::Done)
            }
        }
    }

    fn config(&self) -> Result<NetworkConfig, AskError> {
        let text = self.watch_log.config_text().ok_or(Refusal::NoNetwork(self.name.clone()))?;
        Ok(NetworkConfig::parse(&text).map_err(Refusal::from)?)
    }

    async fn kept(&self, subnet: Subnet) -> Result<StoredLease, AskError> {
        let kept = self.store.stored(&subnet).await.map_err(|e| self.unavailable(e))?;
        Ok(kept.ok_or(Refusal::Gone(subnet))?)
    }

    /// One that this client may change.
    async fn own(&self, subnet: Subnet, who: &Who) -> Result<StoredLease, AskError> {
        self.config()?;
        let kept = self.kept(subnet).await?;
        self.check_own(subnet, &entry(&kept, self.clock.now()), who)?;
        Ok(kept)
    }

    fn check_own(&self, subnet: Subnet, entry: &KeptLease, who: &Who) -> Result<(), AskError> {
        if who.owns(entry.owner.as_deref(), &entry.attrs) {
            return Ok(());
        }
        Err(Refusal::NotYours(subnet, Box::new(entry.clone())).into())
    }

    /// What a client may announce: not too much, and no address at which another node has its lease.
    fn check_attrs(
        &self,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
        who: &Who,
    ) -> Result<(), AskError> {
        check_size(attrs)?;
        if let Some(address) = who.foreign_address(attrs) {
            return Err(Refusal::ForeignAddress(address).into());
        }
        let others = |entry: &KeptLease| {
            flannel_lease::same_node(config, attrs, &entry.attrs)
                && !who.owns(entry.owner.as_deref(), &entry.attrs)
        };
        match self.watch_log.find(others) {
            Some((subnet, entry)) => self.check_own(subnet, &entry, who),
            None => Ok(()),
        }
    }

    async fn acquire(
        &self,
        attrs: LeaseAttrs,
        previous: Option<Subnet>,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let config = self.config()?;
        KnownBy::of(Some(&config)).address(&attrs).map_err(Refusal::from)?;
        self.check_attrs(&config, &attrs, who)?;
        let me = Claimant::new(&attrs, previous);
        let owned = |before: Option<&LeaseAttrs>| {
            owned(attrs.clone(), who, before.and_then(|before| before.owner.as_deref()))
        };
        let recalled = self.store.recall(&config, &me).await.map_err(|e| self.unavailable(e))?;
        let acquired = flannel_store::acquire(&*self.store, &config, &me, recalled, owned).await;
        Ok(self.lease_reply(&acquired.map_err(|e| self.unavailable(e))?.held))
    }

    async fn renew(
        &self,
        subnet: Subnet,
        attrs: LeaseAttrs,
        version: Option<u64>,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let kept = self.own(subnet, who).await?;
        let config = self.config()?;
        self.check_attrs(&config, &attrs, who)?;
        let same_node = flannel_lease::same_node(&config, &kept.lease.attrs, &attrs);
        if !same_node && version.map(Version::new) != Some(kept.version) {
            return Err(self.taken(subnet, &kept));
        }
        let attrs = owned(attrs, who, kept.lease.attrs.owner.as_deref());
        let held = self.store.renew(&kept.held(SystemTime::now()), &attrs).await;
        Ok(self.lease_reply(&held.map_err(|e| self.unavailable(e))?))
    }

    async fn release(
        &self,
        subnet: Subnet,
        version: Option<u64>,
        who: &Who,
    ) -> Result<Reply, AskError> {
        let kept = self.own(subnet, who).await?;
        if version.is_some_and(|version| Version::new(version) != kept.version) {
            return Err(self.taken(subnet, &kept));
        }
        if kept.reserved {
            return Err(Refusal::Reserved(subnet).into());
        }
        self.store.release(&kept.held(SystemTime::now())).await.map_err(|e| self.unavailable(e))?;
        Ok(Reply::Done)
    }
}

impl EtcdNetwork {
    fn done(&self, result: Result<(), StoreError>) -> Result<Reply, AskError> {
        result.map(|()| Reply::Done).map_err(|error| self.unavailable(error))
    }

    fn taken(&self, subnet: Subnet, kept: &StoredLease) -> AskError {
        Refusal::Taken(subnet, Box::new(entry(kept, self.clock.now()))).into()
    }

    /// What etcd refuses for good is told as such; all else may pass.
    fn unavailable(&self, error: StoreError) -> AskError {
        match error {
            StoreError::OutOfSubnets(error) => Refusal::OutOfSubnets(error).into(),
            StoreError::Rejected { refusal, .. } => (*refusal).into(),
            StoreError::Taken { by, .. } => {
                let Lease { subnet, attrs } = *by;
                let (attrs, owner) = split_owner(attrs);
                let expires = Some(self.clock.now() + DAY);
                Refusal::Taken(subnet, Box::new(KeptLease { attrs, expires, version: 0, owner }))
                    .into()
            }
            other => AskError::ReadOnly(other.to_string()),
        }
    }

    fn lease_reply(&self, held: &Held) -> Reply {
        let end = |left: Duration| self.clock.now() + left.as_millis() as Millis;
        let expires = held.expiry.remaining(SystemTime::now()).map(end);
        let (attrs, owner) = split_owner(held.lease.attrs.clone());
        Reply::Lease(
            held.lease.subnet,
            KeptLease { attrs, expires, version: held.version.number(), owner },
        )
    }
}

const DAY: Millis = LEASE_TTL.as_millis() as Millis;

/// With the name of the lease's owner, for the other servers of this etcd and for later.
fn owned(attrs: LeaseAttrs, who: &Who, before: Option<&str>) -> LeaseAttrs {
    let owner = who.owner_after(before.map(Arc::from)).map(|owner| Box::from(&*owner));
    LeaseAttrs { owner, ..attrs }
}

/// How long a lease still lasts is not asked for every one: whoever wrote it last gave it a day.
fn entry(stored: &StoredLease, now: Millis) -> KeptLease {
    let expires = (!stored.reserved).then_some(now + DAY);
    let (attrs, owner) = split_owner(stored.lease.attrs.clone());
    KeptLease { attrs, expires, version: stored.version.number(), owner }
}

/// Keeps the watch log as etcd is.
struct Follower {
    name: NetworkName,
    watch_log: Arc<WatchLog>,
    watch_logs: Arc<WatchLogs>,
    clock: Clock,
    revision: u64,
    history: ServerRun,
}

impl Follower {
    async fn run(mut self, mut events: mpsc::Receiver<StoreEvent>) {
        let mut config: Option<String> = None;
        while let Some(event) = events.recv().await {
            self.revision += 1;
            let lived = self.watch_log.config_text().is_some();
            match event {
                StoreEvent::Config(text) if self.history.id == 0 => config = Some(text),
                StoreEvent::ConfigGone if self.history.id == 0 => config = None,
                StoreEvent::Config(text) => self.publish(Event::Config(Some(text))),
                StoreEvent::ConfigGone => self.publish(Event::Config(None)),
                StoreEvent::Snapshot(leases) => {
                    let known = self.watch_log.config_text().or(config.take());
                    self.reset(known.as_deref(), &leases);
                }
                StoreEvent::Put(stored) => {
                    let entry = entry(&stored, self.clock.now());
                    self.publish(Event::Put(stored.lease.subnet, entry));
                }
                // etcd assigns nothing.
                StoreEvent::Assigned(_) => {}
                StoreEvent::Gone(subnet) => self.publish(Event::Gone(subnet)),
                StoreEvent::Down(why) => tracing::warn!(network = %self.name, "{why}"),
                StoreEvent::Up => tracing::info!(network = %self.name, "etcd is back"),
            }
            let lives = self.watch_log.config_text().is_some();
            if lived != lives {
                self.watch_logs.announce(self.revision, lives, &self.name);
            }
        }
    }

    fn publish(&self, event: Event) {
        self.watch_log.publish(self.revision, None, vec![event]);
    }

    /// Events may have been missed: a new history begins, and every client takes the whole table.
    fn reset(&mut self, config: Option<&str>, leases: &[StoredLease]) {
        self.history = ServerRun { id: fastrand::u64(1..), since: self.revision };
        let now = self.clock.now();
        let leases = leases.iter().map(|stored| (stored.lease.subnet, entry(stored, now)));
        self.watch_log.reset(self.revision, &[self.history], config, leases);
    }
}
