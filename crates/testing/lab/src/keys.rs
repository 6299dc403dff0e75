//! Keys and values of the store.

use flannel_store::testing::EtcdKeys;
use flannel_store::{EtcdOptions, StoreError};

use crate::error::{LabError, Result};
use crate::etcd::{CLIENT_PORT, Etcd};

impl Etcd {
    /// Writes a key.
    pub fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Result<()> {
        let value = value.as_ref();
        self.ask(async |keys| keys.put(key, value.to_vec()).await)
    }

    /// Writes many keys, in few transactions.
    pub fn put_many(&self, pairs: &[(String, String)]) -> Result<()> {
        self.ask(async |keys| keys.put_all(pairs).await)
    }

    /// Reads a key.
    pub fn get(&self, key: &str) -> Result<Option<String>> {
        self.ask(async |keys| Ok(keys.get(key).await?.map(|found| found.value)))
    }

    /// Reads all keys that begin with `prefix`, in order.
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        let found = self.ask(async |keys| keys.list(prefix).await)?;
        Ok(found.into_iter().map(|found| (found.key, found.value)).collect())
    }

    /// Removes a key; whether it was there.
    pub fn delete(&self, key: &str) -> Result<bool> {
        self.ask(async |keys| keys.delete(key).await)
    }

    /// Removes all keys that begin with `prefix`; how many there were.
    pub fn delete_prefix(&self, prefix: &str) -> Result<u64> {
        self.ask(async |keys| keys.delete_prefix(prefix).await)
    }

    /// Asks the first member that answers, each in its own namespace: what happens to the network between them
    /// does not matter.
    fn ask<T: Send>(
        &self,
        request: impl AsyncFn(EtcdKeys) -> Result<T, StoreError> + Sync,
    ) -> Result<T> {
        let mut reason = String::from("no member runs");
        for member in (0..self.members()).filter(|member| self.pid(*member).is_some()) {
            let endpoints = vec![format!("http://127.0.0.1:{CLIENT_PORT}")];
            let options = EtcdOptions { endpoints, ..EtcdOptions::default() };
            let answer = self.namespace(member)?.block_on(async || {
                Ok(match EtcdKeys::new(&options, 0) {
                    Ok(keys) => request(keys).await,
                    Err(error) => Err(error),
                })
            })?;
            match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => reason = error.to_string(),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(LabError::Store { attempt: "read or write keys".into(), reason })
    }
}
