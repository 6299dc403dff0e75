//! Operations of an operator in etcd. Every write compares with what was read before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flannel_lease::{Expiry, KnownBy, LEASE_TTL, LeaseAttrs, NetworkConfig, Subnet, SubnetOrigin};
use prost::bytes::Bytes;

use super::keys::KeyRange;
use super::leases::{EtcdLeases, Grant};
use super::listing::{ListedLease, Listing};
use super::proto::{Compare, RangeRequest, RequestOp, TxnRequest};
use super::{EtcdStore, txn};
use crate::{
    Held, KeptLease, Millis, OperatorStore, PoolChange, Refusal, Snapshot, StoreError, StoredLease,
    SubnetPool, replace_config,
};

#[async_trait]
impl OperatorStore for EtcdStore {
    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(self.leases.list().await?.into_snapshot())
    }

    async fn list(&self) -> Result<Vec<Held>, StoreError> {
        let listing = self.leases.list().await?;
        let mut ends: BTreeMap<i64, Expiry> = BTreeMap::from([(Grant::NONE.id, Expiry::Never)]);
        let mut held = Vec::with_capacity(listing.entries.len());
        for entry in listing.entries {
            let id = entry.kv.lease;
            let Some(StoredLease { lease, version, .. }) = entry.stored() else { continue };
            let expiry = match ends.entry(id) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => *new.insert(self.leases.end_of(id).await?),
            };
            held.push(Held { lease, expiry, version });
        }
        Ok(held)
    }

    async fn set_config(&self, text: &str, force: bool) -> Result<(), StoreError> {
        let key = &self.leases.keys.config;
        let attempted = format!("write the network config {key}");
        let config = flannel_backend::judge_config_to_write(text, SubnetOrigin::Pool)
            .map_err(|error| StoreError::rejected(&attempted, error))?
            .config;
        let listing = self.leases.list().await?;
        let subnets = listing.entries.iter().map(|entry| &entry.subnet);
        let text = replace_config(text, &config, listing.network().as_ref(), subnets, force)
            .map_err(|refusal| StoreError::rejected(&attempted, refusal))?;
        let (key, value) = (Bytes::from(key.to_owned()), Bytes::from(text));
        self.leases.change(vec![], txn::put(&key, &value, 0), "write the network config").await
    }

    async fn pool(&self, _: PoolChange) -> Result<&dyn SubnetPool, StoreError> {
        Ok(self)
    }
}

#[async_trait]
impl SubnetPool for EtcdStore {
    async fn reserve(&self, subnet: &Subnet, attrs: &LeaseAttrs) -> Result<(), StoreError> {
        let attempted = format!("reserve {subnet:#}");
        match self.leases.look(subnet).await? {
            Some(entry) => {
                self.leases.check_node(&entry, attrs, &attempted).await?;
                let put = txn::put(&entry.kv.key, &entry.kv.value, Grant::NONE.id);
                self.leases.change(vec![entry.is_unchanged()], put, &attempted).await?;
                self.leases.retire(entry.kv.lease);
                Ok(())
            }
            None => {
                self.leases.check_without_lease(attrs, &attempted).await?;
                self.leases.create(subnet, attrs, Grant::NONE, &attempted).await
            }
        }
    }

    async fn unreserve(&self, subnet: &Subnet) -> Result<(), StoreError> {
        let attempted = format!("remove the reservation of {subnet:#}");
        let entry = self.leases.find(subnet, &attempted).await?;
        if !entry.is_reserved() {
            return Ok(());
        }
        let grant = self.leases.grant().await.map_err(|fault| fault.during(&attempted))?;
        let put = txn::put(&entry.kv.key, &entry.kv.value, grant.id);
        self.leases.change(vec![entry.is_unchanged()], put, &attempted).await
    }

    async fn release(&self, held: &Held) -> Result<(), StoreError> {
        self.leases.release(held).await
    }

    async fn revoke(&self, subnet: &Subnet) -> Result<(), StoreError> {
        let attempted = format!("release {subnet:#}");
        let entry = self.leases.find(subnet, &attempted).await?;
        if entry.is_reserved() {
            return Err(StoreError::rejected(&attempted, Refusal::Reserved(*subnet)));
        }
        let delete = txn::delete(&entry.kv.key);
        self.leases.change(vec![entry.is_unchanged()], delete, &attempted).await?;
        self.leases.retire(entry.kv.lease);
        Ok(())
    }

    async fn import(&self, held: &Held) -> Result<(), StoreError> {
        let Held { lease, expiry, .. } = held;
        let attempted = format!("bring in {}", lease.subnet);
        let grant = match expiry.remaining(SystemTime::now()) {
            None => Grant::NONE,
            Some(left) => {
                let left = left.clamp(Duration::from_secs(60), LEASE_TTL);
                let granted = self.leases.client.lease_grant(left.as_secs() as i64).await;
                let granted = granted.map_err(|fault| fault.during(&attempted))?;
                Grant { id: granted.id, expiry: *expiry }
            }
        };
        match self.leases.look(&lease.subnet).await? {
            Some(entry) => {
                self.leases.check_node(&entry, &lease.attrs, &attempted).await?;
                let value = Bytes::from(lease.attrs.to_json());
                let put = txn::put(&entry.kv.key, &value, grant.id);
                self.leases.change(vec![entry.is_unchanged()], put, &attempted).await
            }
            None => self.leases.create(&lease.subnet, &lease.attrs, grant, &attempted).await,
        }
    }
}

impl EtcdLeases {
    async fn end_of(&self, lease: i64) -> Result<Expiry, StoreError> {
        let now = SystemTime::now();
        let answer = self.client.lease_time_to_live(lease).await;
        let answer = answer.map_err(|fault| fault.during("ask how long a lease lasts"))?;
        Ok(Expiry::At(now + Duration::from_secs(answer.ttl.max(0).unsigned_abs())))
    }

    /// One lease as it is now.
    async fn look(&self, subnet: &Subnet) -> Result<Option<ListedLease>, StoreError> {
        for key in self.keys.names(subnet) {
            let found = self.client.get(Bytes::from(key.clone()), 0).await;
            if let Some(kv) = found.map_err(|fault| fault.during(format!("read {key}")))? {
                let attrs = LeaseAttrs::from_json(&kv.value).ok();
                return Ok(Some(ListedLease::created(*subnet, attrs, kv)));
            }
        }
        Ok(None)
    }

    async fn find(&self, subnet: &Subnet, attempted: &str) -> Result<ListedLease, StoreError> {
        let gone = || StoreError::rejected(attempted, Refusal::Gone(*subnet));
        self.look(subnet).await?.ok_or_else(gone)
    }

    /// A node with a lease keeps it. A second one would be taken some day, by chance.
    async fn check_without_lease(
        &self,
        attrs: &LeaseAttrs,
        attempted: &str,
    ) -> Result<(), StoreError> {
        let listing = self.list().await?;
        let known_by = KnownBy::of(listing.network().as_ref());
        let node = known_by.address(attrs).map_err(|e| StoreError::rejected(attempted, e))?;
        let is_node = |entry: &&ListedLease| {
            entry.attrs.as_ref().is_some_and(|of| known_by.same_node(of, attrs))
        };
        let Some(entry) = listing.entries.iter().find(is_node) else { return Ok(()) };
        let (has, reserved) = (entry.subnet, entry.is_reserved());
        Err(StoreError::rejected(attempted, Refusal::NodeHasLease { node, has, reserved }))
    }

    async fn check_node(
        &self,
        entry: &ListedLease,
        attrs: &LeaseAttrs,
        attempted: &str,
    ) -> Result<(), StoreError> {
        let config = self.config().await?.and_then(|text| NetworkConfig::parse(&text).ok());
        let theirs = entry.attrs.clone().unwrap_or_default();
        if KnownBy::of(config.as_ref()).same_node(&theirs, attrs) {
            return Ok(());
        }
        // How long it lasts was not asked; the one who wrote it gave it a day.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let in_a_day = (now + LEASE_TTL).as_millis() as Millis;
        let expires = (!entry.is_reserved()).then_some(in_a_day);
        let version = entry.version().number();
        let kept = KeptLease { version, ..KeptLease::new(theirs, expires, None) };
        Err(StoreError::rejected(attempted, Refusal::Taken(entry.subnet, Box::new(kept))))
    }

    /// Writes a lease that is not there yet and that no other overlaps.
    async fn create(
        &self,
        subnet: &Subnet,
        attrs: &LeaseAttrs,
        grant: Grant,
        attempted: &str,
    ) -> Result<(), StoreError> {
        let listing = self.list().await?;
        if let Some(other) = listing.entries.iter().find(|entry| entry.subnet.overlaps(subnet)) {
            let refusal = Refusal::Overlaps(*subnet, other.subnet);
            return Err(StoreError::rejected(attempted, refusal));
        }
        if listing.network().is_some_and(|config| !config.accepts(subnet)) {
            return Err(StoreError::rejected(attempted, Refusal::NotInPool(*subnet)));
        }
        let key = Bytes::from(self.keys.lease(subnet));
        let value = Bytes::from(attrs.to_json());
        let put = txn::put(&key, &value, grant.id);
        self.change(vec![txn::is_absent(&key)], put, attempted).await
    }

    async fn change(
        &self,
        compare: Vec<Compare>,
        operation: RequestOp,
        attempted: &str,
    ) -> Result<(), StoreError> {
        let request = TxnRequest { compare, success: vec![operation], failure: vec![] };
        let answer = self.client.txn(request).await.map_err(|fault| fault.during(attempted))?;
        if answer.succeeded {
            return Ok(());
        }
        let text = "somebody else has changed it in the same moment: try again".to_owned();
        Err(StoreError::rejected(attempted, Refusal::Elsewhere(text)))
    }
}

impl Listing {
    fn network(&self) -> Option<NetworkConfig> {
        NetworkConfig::parse(std::str::from_utf8(self.config.as_ref()?).ok()?).ok()
    }
}

impl EtcdStore {
    /// One lease as it is now.
    pub async fn stored(&self, subnet: &Subnet) -> Result<Option<StoredLease>, StoreError> {
        Ok(self.leases.look(subnet).await?.and_then(ListedLease::stored))
    }

    pub async fn remove_config(&self) -> Result<(), StoreError> {
        let key = Bytes::from(self.leases.keys.config.clone());
        self.leases.change(vec![], txn::delete(&key), "remove the network config").await
    }

    /// The names of the directories beside our own keys that hold a config.
    pub async fn networks_below(&self) -> Result<Vec<String>, StoreError> {
        let config = &self.leases.keys.config;
        let root = config.strip_suffix("config").unwrap_or(config);
        let range = KeyRange::directory(root);
        let request = RangeRequest { keys_only: true, ..range.into() };
        let answer = self.leases.client.range(request).await;
        let answer = answer.map_err(|fault| fault.during("list the networks"))?;
        let name = |key: &[u8]| {
            let rest = std::str::from_utf8(key).ok()?.strip_prefix(root)?;
            let name = rest.strip_suffix("/config")?;
            (!name.contains('/')).then(|| name.to_owned())
        };
        Ok(answer.kvs.iter().filter_map(|kv| name(&kv.key)).collect())
    }
}
