//! etcd itself, for tests that look at what the store wrote, or meddle with it.

use flannel_lease::Version;
use prost::Message;
use prost::bytes::Bytes;

use super::EtcdOptions;
use super::client::Client;
use super::keys::KeyRange;
use super::proto::{
    DeleteRangeRequest, Ignored, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest,
};

use super::txn;

/// Panics where a store would return an error.
#[derive(Clone, Debug)]
pub struct RawEtcd(Client);

/// A key as etcd has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RawKey {
    pub key: String,
    pub value: String,
    pub mod_revision: i64,
    /// 0 when the key does not expire.
    pub lease: i64,
}

impl RawKey {
    /// What a store says of it.
    pub fn version(&self) -> Version {
        Version::new(self.mod_revision.unsigned_abs())
    }
}

impl RawEtcd {
    pub fn new(options: &EtcdOptions) -> Self {
        Self(Client::new(options, fastrand::Rng::with_seed(0)).expect("options are right"))
    }

    pub async fn put(&self, key: &str, value: impl Into<Bytes>) {
        self.put_with_lease(key, value, 0).await;
    }

    pub async fn put_with_lease(&self, key: &str, value: impl Into<Bytes>, lease: i64) {
        let key = key.to_owned().into();
        let put = PutRequest { key, value: value.into(), lease, prev_kv: false };
        let Ignored {} = self.call("/etcdserverpb.KV/Put", put).await;
    }

    /// Many keys that do not expire, a hundred per request.
    pub async fn put_all(&self, entries: &[(String, String)]) {
        for chunk in entries.chunks(100) {
            let put = |(key, value): &(String, String)| {
                txn::put(&key.clone().into(), &value.clone().into(), 0)
            };
            let request = txn::all(chunk.iter().map(put).collect());
            self.0.txn(request).await.expect("etcd answers");
        }
    }

    /// A new etcd lease.
    pub async fn grant(&self, ttl_seconds: i64) -> i64 {
        let grant = LeaseGrantRequest { ttl: ttl_seconds, id: 0 };
        let answer: LeaseGrantResponse = self.call("/etcdserverpb.Lease/LeaseGrant", grant).await;
        answer.id
    }

    pub async fn delete(&self, key: &str) {
        let delete = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
        let Ignored {} = self.call("/etcdserverpb.KV/DeleteRange", delete).await;
    }

    pub async fn get(&self, key: &str) -> Option<RawKey> {
        let request = RangeRequest { key: key.to_owned().into(), ..Default::default() };
        self.range(request).await.into_iter().next()
    }

    /// All keys that begin so.
    pub async fn list(&self, directory: &str) -> Vec<RawKey> {
        let range = KeyRange::directory(directory);
        let request = RangeRequest { key: range.start, range_end: range.end, ..Default::default() };
        self.range(request).await
    }

    pub async fn revision(&self) -> i64 {
        let request = RangeRequest { key: Bytes::from_static(b"x"), ..Default::default() };
        let answer = self.0.range(request).await.expect("etcd answers");
        answer.header.expect("an answer has a header").revision
    }

    /// Forgets all history before now.
    pub async fn compact(&self) {
        let compaction = Compaction { revision: self.revision().await, physical: true };
        let Ignored {} = self.call("/etcdserverpb.KV/Compact", compaction).await;
    }

    /// The etcd leases there are.
    pub async fn leases(&self) -> Vec<i64> {
        let answer: Leases = self.call("/etcdserverpb.Lease/LeaseLeases", Ignored {}).await;
        answer.leases.into_iter().map(|lease| lease.id).collect()
    }

    /// Seconds until an etcd lease ends, -1 when it has.
    pub async fn time_to_live(&self, lease: i64) -> i64 {
        self.0.lease_time_to_live(lease).await.expect("etcd answers").ttl
    }

    /// Makes users, each with a password and the key prefixes it may read, and read and write; then
    /// switches authentication on.
    pub async fn enable_auth(&self, users: &[RawUser<'_>]) {
        for user in [RawUser { name: "root", password: "root", reads: &[], writes: &[] }]
            .iter()
            .chain(users)
        {
            let name = user.name.to_owned();
            let add = UserAdd { name: name.clone(), password: user.password.to_owned() };
            let Ignored {} = self.call("/etcdserverpb.Auth/UserAdd", add).await;
            let Ignored {} =
                self.call("/etcdserverpb.Auth/RoleAdd", Named { name: name.clone() }).await;
            let grant = UserGrantRole { user: name.clone(), role: name.clone() };
            let Ignored {} = self.call("/etcdserverpb.Auth/UserGrantRole", grant).await;
            let (read, read_write) = (0, 2);
            let rights = user.reads.iter().map(|prefix| (prefix, read));
            for (prefix, kind) in
                rights.chain(user.writes.iter().map(|prefix| (prefix, read_write)))
            {
                let mut end = prefix.as_bytes().to_vec();
                if let Some(last) = end.last_mut() {
                    *last += 1;
                }
                let permission =
                    Permission { kind, key: prefix.as_bytes().to_vec(), range_end: end };
                let grant =
                    RoleGrantPermission { name: name.clone(), permission: Some(permission) };
                let Ignored {} = self.call("/etcdserverpb.Auth/RoleGrantPermission", grant).await;
            }
        }
        let Ignored {} = self.call("/etcdserverpb.Auth/AuthEnable", Ignored {}).await;
    }

    /// Ends all of the user's sessions, even when the password is the old one.
    pub async fn set_password(&self, user: &str, password: &str) {
        let change = UserAdd { name: user.to_owned(), password: password.to_owned() };
        let Ignored {} = self.call("/etcdserverpb.Auth/UserChangePassword", change).await;
    }

    async fn range(&self, request: RangeRequest) -> Vec<RawKey> {
        let answer = self.0.range(request).await.expect("etcd answers");
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let raw = |kv: super::proto::KeyValue| RawKey {
            key: text(&kv.key),
            value: text(&kv.value),
            mod_revision: kv.mod_revision,
            lease: kv.lease,
        };
        answer.kvs.into_iter().map(raw).collect()
    }

    async fn call<Q, A>(&self, rpc: &'static str, request: Q) -> A
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.0.unary(rpc, request).await.unwrap_or_else(|fault| panic!("{rpc}: {}", fault.reason))
    }
}

/// Somebody who may use etcd.
#[derive(Clone, Copy, Debug)]
pub struct RawUser<'a> {
    pub name: &'a str,
    pub password: &'a str,
    pub reads: &'a [&'a str],
    pub writes: &'a [&'a str],
}

#[derive(Clone, PartialEq, Message)]
struct Compaction {
    #[prost(int64, tag = "1")]
    revision: i64,
    #[prost(bool, tag = "2")]
    physical: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Leases {
    #[prost(message, repeated, tag = "2")]
    leases: Vec<LeaseStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseStatus {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct UserAdd {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    password: String,
}

#[derive(Clone, PartialEq, Message)]
struct UserGrantRole {
    #[prost(string, tag = "1")]
    user: String,
    #[prost(string, tag = "2")]
    role: String,
}

#[derive(Clone, PartialEq, Message)]
struct RoleGrantPermission {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    permission: Option<Permission>,
}

#[derive(Clone, PartialEq, Message)]
struct Permission {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    range_end: Vec<u8>,
}
