//! User name and password.

use flannel_store::StoreEvent::{Put, Up};
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::{EtcdServer, RawEtcd, RawUser};
use flannel_store::{EtcdOptions, EtcdStore, NodeAnswer, NodeRequest, Secret, StoreError};

use crate::common::*;

const FLANNEL: RawUser<'_> = RawUser {
    name: "flannel",
    password: "correct horse",
    reads: &[],
    writes: &["/coreos.com/network/"],
};

fn options(etcd: &EtcdServer, username: &str, password: &str) -> EtcdOptions {
    EtcdOptions {
        username: Some(username.to_owned()),
        password: Some(Secret::new(password)),
        ..etcd.options()
    }
}

fn store(etcd: &EtcdServer, username: &str, password: &str) -> EtcdStore {
    EtcdStore::new(&options(etcd, username, password), None, 1).unwrap()
}

fn raw_as_root(etcd: &EtcdServer) -> RawEtcd {
    RawEtcd::new(&options(etcd, "root", "root"))
}

#[tokio::test]
async fn a_user_with_a_password_gets_in() {
    let etcd = EtcdServer::start();
    etcd.raw().enable_auth(&[FLANNEL]).await;
    let store = store(&etcd, "flannel", "correct horse");
    let acquired = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let mut events = store.watch(acquired.snapshot.cursor.clone());
    assert_eq!(next(&mut events).await, Put(acquired.held.lease.clone().into()));
    store.renew(&acquired.held, &acquired.held.lease.attrs).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_not_shown() {
    let etcd = EtcdServer::start();
    etcd.raw().enable_auth(&[FLANNEL]).await;
    let store = store(&etcd, "flannel", "battery staple");
    let error = store.config().await.unwrap_err();
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    assert!(!error.is_transient());
    for shown in [error.to_string(), format!("{error:?}"), format!("{store:?}")] {
        assert!(!shown.contains("battery staple"), "{shown}");
    }
}

#[tokio::test]
async fn nobody_is_denied_when_etcd_wants_to_know_who_asks() {
    let etcd = EtcdServer::start();
    etcd.raw().enable_auth(&[FLANNEL]).await;
    let error = etcd.store(1).config().await.unwrap_err();
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
}

#[tokio::test]
async fn a_password_is_no_hindrance_when_etcd_does_not_ask_and_is_used_when_it_begins_to() {
    let etcd = EtcdServer::start();
    let store = store(&etcd, "flannel", "correct horse");
    assert_eq!(store.config().await.unwrap(), None);
    etcd.raw().enable_auth(&[FLANNEL]).await;
    assert_eq!(store.config().await.unwrap(), None);
}

#[tokio::test]
async fn a_token_that_is_no_longer_valid_is_replaced() {
    let mut etcd = EtcdServer::start();
    etcd.raw().enable_auth(&[FLANNEL]).await;
    let store = store(&etcd, "flannel", "correct horse");
    let acquired = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let mut events = store.watch(acquired.snapshot.cursor.clone());
    next(&mut events).await;

    raw_as_root(&etcd).set_password("flannel", "correct horse").await;
    let held = store.renew(&acquired.held, &acquired.held.lease.attrs).await.unwrap();
    until(&mut events, |event| *event == Put(held.lease.clone().into())).await;

    // The watch has to log in anew as well.
    raw_as_root(&etcd).set_password("flannel", "correct horse").await;
    etcd.restart();
    until(&mut events, |event| *event == Up).await;
    raw_as_root(&etcd).put(&key("10.3.200.0-24"), value("9.9.9.9")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.3.200.0-24", "9.9.9.9").into()));
}

#[tokio::test]
async fn a_role_made_for_the_go_flannel_is_enough() {
    let etcd = EtcdServer::start();
    let narrow = RawUser {
        reads: &["/coreos.com/network/config"],
        writes: &["/coreos.com/network/subnets"],
        ..FLANNEL
    };
    etcd.raw().enable_auth(&[narrow]).await;
    let store = store(&etcd, "flannel", "correct horse");
    assert_eq!(store.config().await.unwrap(), None);
    let acquired = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let mut events = store.watch(acquired.snapshot.cursor.clone());
    assert_eq!(next(&mut events).await, Put(acquired.held.lease.clone().into()));
    store.renew(&acquired.held, &acquired.held.lease.attrs).await.unwrap();
    assert_eq!(next(&mut events).await, Put(acquired.held.lease.clone().into()));

    // The same when the watch is the first to learn of it.
    let late = self::store(&etcd, "flannel", "correct horse");
    let mut events = late.watch(acquired.snapshot.cursor);
    assert_eq!(next(&mut events).await, Put(acquired.held.lease.clone().into()));
    raw_as_root(&etcd).put(&key("10.3.200.0-24"), value("9.9.9.9")).await;
    until(&mut events, |event| *event == Put(lease("10.3.200.0-24", "9.9.9.9").into())).await;
}

#[tokio::test]
async fn a_user_without_rights_is_denied_and_told_on_which_key() {
    let etcd = EtcdServer::start();
    etcd.raw().enable_auth(&[RawUser { writes: &["/elsewhere/"], ..FLANNEL }]).await;
    let store = store(&etcd, "flannel", "correct horse");
    let error = store.snapshot().await.unwrap_err();
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    assert!(error.to_string().contains("/coreos.com/network/subnets/"), "{error}");
}

/// As docs/lease-server.md has it.
#[tokio::test]
async fn with_the_role_of_a_node_leases_are_written_and_the_config_is_not() {
    let node = RawUser {
        name: "node",
        password: "correct horse",
        reads: &["/coreos.com/network/"],
        writes: &[
            "/coreos.com/network/subnets/",
            "/coreos.com/network/v6-subnets/",
            "/coreos.com/network/answers/",
        ],
    };
    let etcd = EtcdServer::start();
    etcd.raw().enable_auth(&[node]).await;
    let (node, operator) = (store(&etcd, "node", "correct horse"), store(&etcd, "root", "root"));
    let config = r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan"}}"#;
    operator.set_config(config, false).await.unwrap();
    let acquired = node.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let mut events = node.watch(acquired.snapshot.cursor.clone());
    assert_eq!(next(&mut events).await, Put(acquired.held.lease.clone().into()));
    node.renew(&acquired.held, &acquired.held.lease.attrs).await.unwrap();
    let request = NodeRequest {
        id: "r1".parse().unwrap(),
        kind: "test".to_owned(),
        nodes: vec![acquired.held.lease.subnet],
        limit: std::time::Duration::from_secs(60),
        body: serde_json::Value::Null,
    };
    operator.requests().place(&request).await.unwrap();
    let answer = NodeAnswer { node: acquired.held.lease.subnet, body: serde_json::Value::Null };
    node.requests().answer(&request.id, &answer).await.unwrap();
    operator.requests().withdraw(&request.id).await.unwrap();
    for denied in [node.set_config(config, true).await, node.requests().place(&request).await] {
        assert!(matches!(denied, Err(StoreError::Denied { .. })), "{denied:?}");
    }
}
