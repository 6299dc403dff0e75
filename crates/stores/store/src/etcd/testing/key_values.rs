//! etcd's raw keys and values, for reading and writing them directly.

use flannel_lease::Version;
use prost::Message;
use prost::bytes::Bytes;

use crate::StoreError;
use crate::etcd::client::Client;
use crate::etcd::keys::KeyRange;
use crate::etcd::proto::{DeleteRangeRequest, DeleteRangeResponse, Empty, KeyValue, PutRequest};
use crate::etcd::{EtcdOptions, txn};

/// Most keys that one transaction writes.
const MAX_KEYS_PER_TXN: usize = 100;

#[derive(Clone, Debug)]
pub struct EtcdKeys(Client);

/// A key as etcd has it. Bytes that are not text are shown as such.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdKey {
    pub key: String,
    pub value: String,
    pub mod_revision: i64,
    /// 0 when the key does not expire.
    pub lease: i64,
}

impl EtcdKey {
    /// Version of the key, as a store has it.
    pub fn version(&self) -> Version {
        Version::new(self.mod_revision.unsigned_abs())
    }
}

impl EtcdKeys {
    /// Needs no etcd yet. `previous` is for the name only; `seed` decides on endpoint, subnet and pauses.
    pub fn new(options: &EtcdOptions, seed: u64) -> Result<Self, StoreError> {
        Ok(Self(Client::new(options, fastrand::Rng::with_seed(seed))?))
    }

    /// Writes a key that does not expire.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>) -> Result<(), StoreError> {
        self.put_with_lease(key, value, 0).await
    }

    /// Writes a key that ends with an etcd lease; with `lease` 0 it does not end.
    pub async fn put_with_lease(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        lease: i64,
    ) -> Result<(), StoreError> {
        let (key, value) = (key.to_owned().into(), value.into());
        let put = PutRequest { key, value, lease, prev_kv: false };
        let Empty {} = self.call("write a key", "/etcdserverpb.KV/Put", put).await?;
        Ok(())
    }

    /// Writes many keys that do not expire, in few transactions.
    pub async fn put_all(&self, pairs: &[(String, String)]) -> Result<(), StoreError> {
        for pairs in pairs.chunks(MAX_KEYS_PER_TXN) {
            let put = |(key, value): &(String, String)| {
                txn::put(&key.clone().into(), &value.clone().into(), 0)
            };
            let request = txn::all(pairs.iter().map(put).collect());
            self.0.txn(request).await.map_err(|fault| fault.during("write keys"))?;
        }
        Ok(())
    }

    pub async fn get(&self, key: &str) -> Result<Option<EtcdKey>, StoreError> {
        Ok(self.range(KeyRange::single(key)).await?.pop())
    }

    /// All keys that begin so, in order.
    pub async fn list(&self, prefix: &str) -> Result<Vec<EtcdKey>, StoreError> {
        self.range(beginning(prefix)).await
    }

    /// Whether it was there.
    pub async fn delete(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.delete_range(KeyRange::single(key)).await? > 0)
    }

    /// Removes all keys that begin so; how many there were.
    pub async fn delete_prefix(&self, prefix: &str) -> Result<u64, StoreError> {
        self.delete_range(beginning(prefix)).await
    }

    async fn delete_range(&self, range: KeyRange) -> Result<u64, StoreError> {
        let delete = DeleteRangeRequest { key: range.start, range_end: range.end, prev_kv: false };
        let answer: DeleteRangeResponse =
            self.call("remove keys", "/etcdserverpb.KV/DeleteRange", delete).await?;
        Ok(answer.deleted.unsigned_abs())
    }

    async fn range(&self, range: KeyRange) -> Result<Vec<EtcdKey>, StoreError> {
        let answer = self.0.range(range.into()).await.map_err(|fault| fault.during("read keys"))?;
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let read = |kv: KeyValue| EtcdKey {
            key: text(&kv.key),
            value: text(&kv.value),
            mod_revision: kv.mod_revision,
            lease: kv.lease,
        };
        Ok(answer.kvs.into_iter().map(read).collect())
    }

    pub(super) async fn call<Q, A>(
        &self,
        attempted: &str,
        rpc: &'static str,
        request: Q,
    ) -> Result<A, StoreError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.0.unary(rpc, request).await.map_err(|fault| fault.during(attempted))
    }

    pub(super) fn client(&self) -> &Client {
        &self.0
    }
}

/// All keys that begin so.
fn beginning(prefix: &str) -> KeyRange {
    // Keys are text, so the last byte of a prefix is never the highest.
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    KeyRange { start: prefix.to_owned().into(), end: end.into() }
}
