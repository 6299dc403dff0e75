//! Operations of an operator at a lease server.

use std::time::{Duration, SystemTime};

use ::http::{Method, StatusCode};
use async_trait::async_trait;
use flannel_https::escape;
use flannel_lease::{Expiry, LeaseAttrs, Subnet};

use super::{RemoteStore, refused, snapshot};
use crate::wire::{self, WireReservation};
use crate::{
    Held, KeptLease, OperatorStore, PoolChange, Snapshot, StoreError, SubnetPool, split_owner,
};

#[async_trait]
impl OperatorStore for RemoteStore {
    async fn config_as_written(&self) -> Result<Option<String>, StoreError> {
        self.learn().await?;
        self.read_config("?raw=true").await
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.learn().await?;
        let (result, _) = self.read_all().await?;
        Ok(snapshot(&result))
    }

    async fn list(&self) -> Result<Vec<Held>, StoreError> {
        let (result, time) = self.read_all().await?;
        let now = SystemTime::now();
        // By our own clock, whatever the server's says.
        let time = time.map(|time| SystemTime::UNIX_EPOCH + Duration::from_millis(time));
        let ours = |expiry: Expiry| match time.and_then(|time| expiry.remaining(time)) {
            Some(left) => Expiry::At(now + left),
            None => expiry,
        };
        let held = |wire: wire::WireLease| {
            let (mut lease, version) = (wire.lease().ok()?, wire.version());
            lease.attrs.owner = wire.owner.map(Into::into);
            let expiry = wire.expiry.map_or(Expiry::Never, ours);
            Some(Held { expiry, version, lease })
        };
        Ok(result.snapshot.unwrap_or_default().into_iter().filter_map(held).collect())
    }

    async fn set_config(&self, text: &str, force: bool) -> Result<(), StoreError> {
        let path = format!("{}/config?force={force}", self.0.base);
        self.ask("write the network config", Method::PUT, &path, text.to_owned()).await.map(drop)
    }

    async fn pool(&self, _: PoolChange) -> Result<&dyn SubnetPool, StoreError> {
        Ok(self)
    }
}

#[async_trait]
impl SubnetPool for RemoteStore {
    async fn reserve(&self, subnet: &Subnet, attrs: &LeaseAttrs) -> Result<(), StoreError> {
        let path = format!("{}/reservations", self.0.base);
        let body = WireReservation::to_json(subnet, attrs);
        self.ask(&format!("reserve {subnet:#}"), Method::POST, &path, body).await.map(drop)
    }

    async fn unreserve(&self, subnet: &Subnet) -> Result<(), StoreError> {
        let path = format!("{}/reservations/{}", self.0.base, escape(&subnet.to_string()));
        let attempted = format!("remove the reservation of {subnet:#}");
        self.ask(&attempted, Method::DELETE, &path, "").await.map(drop)
    }

    async fn release(&self, held: &Held) -> Result<(), StoreError> {
        let attempted = "release the lease";
        let version = held.version.number();
        let path = format!("{}?version={version}", self.lease_path(&held.lease.subnet));
        let answer = self.send(attempted, Method::DELETE, &path, "").await?;
        match answer.status {
            // Gone, another node's, or reserved: not ours to give back.
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(()),
            status if status.is_success() => Ok(()),
            _ => Err(refused(attempted, answer, None)),
        }
    }

    async fn revoke(&self, subnet: &Subnet) -> Result<(), StoreError> {
        let path = self.lease_path(subnet);
        let attempted = format!("release {subnet:#}");
        self.ask(&attempted, Method::DELETE, &path, "").await.map(drop)
    }

    async fn import(&self, held: &Held) -> Result<(), StoreError> {
        let Held { lease, expiry, .. } = held;
        let ttl = expiry.remaining(SystemTime::now());
        let expires = ttl.map(|_| 0);
        let (attrs, owner) = split_owner(lease.attrs.clone());
        let entry = KeptLease::new(attrs, expires, owner);
        let body = wire::lease_json(&lease.subnet, &entry, ttl);
        let path = format!("{}?import=true", self.lease_path(&lease.subnet));
        self.ask(&format!("bring in {}", lease.subnet), Method::PUT, &path, body).await.map(drop)
    }
}
