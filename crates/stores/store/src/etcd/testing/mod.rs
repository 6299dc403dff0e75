//! etcd itself, for tests that look at what the store wrote, or meddle with it.

mod key_values;

use prost::Message;
use prost::bytes::Bytes;

use super::EtcdOptions;
use super::proto::{Empty, LeaseGrantRequest, LeaseResponse, RangeRequest};

pub use self::key_values::{EtcdKey, EtcdKeys};

/// Panics where a store would return an error.
#[derive(Clone, Debug)]
pub struct RawEtcd(EtcdKeys);

impl RawEtcd {
    pub fn new(options: &EtcdOptions) -> Self {
        Self(EtcdKeys::new(options, 0).expect("options are right"))
    }

    pub async fn put(&self, key: &str, value: impl Into<Bytes>) {
        self.0.put(key, value).await.expect("etcd answers");
    }

    pub async fn put_with_lease(&self, key: &str, value: impl Into<Bytes>, lease: i64) {
        self.0.put_with_lease(key, value, lease).await.expect("etcd answers");
    }

    /// Many keys that do not expire.
    pub async fn put_all(&self, entries: &[(String, String)]) {
        self.0.put_all(entries).await.expect("etcd answers");
    }

    /// A new etcd lease.
    pub async fn grant(&self, ttl_seconds: i64) -> i64 {
        let grant = LeaseGrantRequest { ttl: ttl_seconds };
        let answer: LeaseResponse = self.call("/etcdserverpb.Lease/LeaseGrant", grant).await;
        answer.id
    }

    pub async fn delete(&self, key: &str) {
        self.0.delete(key).await.expect("etcd answers");
    }

    pub async fn get(&self, key: &str) -> Option<EtcdKey> {
        self.0.get(key).await.expect("etcd answers")
    }

    /// All keys that begin so.
    pub async fn list(&self, prefix: &str) -> Vec<EtcdKey> {
        self.0.list(prefix).await.expect("etcd answers")
    }

    pub async fn revision(&self) -> i64 {
        let request = RangeRequest { key: Bytes::from_static(b"x"), ..Default::default() };
        let answer = self.0.client().range(request).await.expect("etcd answers");
        answer.header.expect("an answer has a header").revision
    }

    /// Forgets all history before now.
    pub async fn compact(&self) {
        let compaction = Compaction { revision: self.revision().await, physical: true };
        let Empty {} = self.call("/etcdserverpb.KV/Compact", compaction).await;
    }

    /// The etcd leases there are.
    pub async fn leases(&self) -> Vec<i64> {
        let answer: Leases = self.call("/etcdserverpb.Lease/LeaseLeases", Empty {}).await;
        answer.leases.into_iter().map(|lease| lease.id).collect()
    }

    /// Seconds until an etcd lease ends, -1 when it has.
    pub async fn time_to_live(&self, lease: i64) -> i64 {
        self.0.client().lease_time_to_live(lease).await.expect("etcd answers").ttl
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
            let Empty {} = self.call("/etcdserverpb.Auth/UserAdd", add).await;
            let Empty {} =
                self.call("/etcdserverpb.Auth/RoleAdd", Named { name: name.clone() }).await;
            let grant = UserGrantRole { user: name.clone(), role: name.clone() };
            let Empty {} = self.call("/etcdserverpb.Auth/UserGrantRole", grant).await;
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
                let Empty {} = self.call("/etcdserverpb.Auth/RoleGrantPermission", grant).await;
            }
        }
        let Empty {} = self.call("/etcdserverpb.Auth/AuthEnable", Empty {}).await;
    }

    /// Ends all of the user's sessions, even when the password is the old one.
    pub async fn set_password(&self, user: &str, password: &str) {
        let change = UserAdd { name: user.to_owned(), password: password.to_owned() };
        let Empty {} = self.call("/etcdserverpb.Auth/UserChangePassword", change).await;
    }

    async fn call<Q, A>(&self, rpc: &'static str, request: Q) -> A
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.0.call(rpc, rpc, request).await.unwrap_or_else(|error| panic!("{error}"))
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
