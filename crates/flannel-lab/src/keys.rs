//! Keys and values of the store, through etcd's own HTTP gateway: no client program is needed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::error::{LabError, Result};
use crate::etcd::Etcd;

/// Operations that etcd takes in one transaction.
const TRANSACTION: usize = 100;

impl Etcd {
    /// Writes a key.
    pub fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Result<()> {
        self.post("/v3/kv/put", &put(key, value).to_string()).map(drop)
    }

    /// Writes many keys, in few transactions.
    pub fn put_many(&self, pairs: &[(String, String)]) -> Result<()> {
        for pairs in pairs.chunks(TRANSACTION) {
            let puts: Vec<Value> =
                pairs.iter().map(|(key, value)| json!({"requestPut": put(key, value)})).collect();
            self.post("/v3/kv/txn", &json!({"success": puts}).to_string())?;
        }
        Ok(())
    }

    /// Reads a key.
    pub fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(self.range(&json!({"key": BASE64.encode(key)}))?.pop().map(|(_, value)| value))
    }

    /// Reads all keys that begin with `prefix`, in order.
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        self.range(&range_of(prefix))
    }

    /// Removes a key; whether it was there.
    pub fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.remove(&json!({"key": BASE64.encode(key)}))? > 0)
    }

    /// Removes all keys that begin with `prefix`; how many there were.
    pub fn delete_prefix(&self, prefix: &str) -> Result<u64> {
        self.remove(&range_of(prefix))
    }

    fn remove(&self, range: &Value) -> Result<u64> {
        let answer = self.ask("/v3/kv/deleterange", range)?;
        Ok(answer["deleted"].as_str().and_then(|count| count.parse().ok()).unwrap_or(0))
    }

    fn range(&self, range: &Value) -> Result<Vec<(String, String)>> {
        let answer = self.ask("/v3/kv/range", range)?;
        let empty = Vec::new();
        let pairs = answer["kvs"].as_array().unwrap_or(&empty).iter().map(|pair| {
            // An empty value is left out of the answer. Bytes that are not text are shown as such.
            let text = |field: &str| {
                let bytes = BASE64.decode(pair[field].as_str().unwrap_or("")).ok()?;
                Some(String::from_utf8_lossy(&bytes).into_owned())
            };
            Some((text("key")?, text("value")?))
        });
        pairs.collect::<Option<_>>().ok_or_else(|| unreadable("/v3/kv/range", &answer.to_string()))
    }

    fn ask(&self, path: &str, request: &Value) -> Result<Value> {
        let answer = self.post(path, &request.to_string())?;
        serde_json::from_str(&answer).map_err(|_| unreadable(path, &answer))
    }
}

fn put(key: &str, value: impl AsRef<[u8]>) -> Value {
    json!({"key": BASE64.encode(key), "value": BASE64.encode(value)})
}

fn range_of(prefix: &str) -> Value {
    // The end of a prefix's range is the prefix with its last byte one higher; keys are text, so
    // that byte is never the highest.
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    json!({"key": BASE64.encode(prefix), "range_end": BASE64.encode(&end)})
}

fn unreadable(path: &str, answer: &str) -> LabError {
    let start: String = answer.chars().take(200).collect();
    LabError::Store {
        attempt: format!("POST {path}"),
        reason: format!("unreadable answer {start}"),
    }
}
