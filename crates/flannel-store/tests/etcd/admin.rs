//! What operators do to leases in etcd.

use flannel_lease::Expiry;
use flannel_store::testing::EtcdServer;
use flannel_store::{Admin as _, Store as _, StoreError};

use crate::common::*;

#[tokio::test]
async fn a_reservation_is_made_kept_by_its_node_and_undone() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    store.set_config(r#"{"Network":"10.3.0.0/16"}"#, false).await.unwrap();
    let of = subnet("10.3.9.0-24");
    store.reserve(&of, &attrs("192.0.2.1")).await.unwrap();
    let held = store.acquire(&v4_network(), &claim("192.0.2.1")).await.unwrap().held;
    assert_eq!((held.lease.subnet, held.expiry), (of, Expiry::Never));
    let taken = store.reserve(&of, &attrs("192.0.2.2")).await;
    assert!(matches!(taken, Err(StoreError::Taken { .. })), "{taken:?}");
    assert!(matches!(store.revoke(&of).await, Err(StoreError::Refused { .. })));
    store.unreserve(&of).await.unwrap();
    assert!(matches!(store.list().await.unwrap()[0].expiry, Expiry::At(_)));
    store.revoke(&of).await.unwrap();
    assert_eq!(store.list().await.unwrap(), []);
    assert!(matches!(store.revoke(&of).await, Err(StoreError::Lost { .. })));
}

#[tokio::test]
async fn a_running_lease_becomes_a_reservation() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    let held = store.acquire(&v4_network(), &claim("192.0.2.1")).await.unwrap().held;
    store.reserve(&held.lease.subnet, &attrs("192.0.2.1")).await.unwrap();
    assert_eq!(store.list().await.unwrap()[0].expiry, Expiry::Never);
    assert_eq!(store.renew(&held, &held.lease.attrs).await.unwrap().expiry, Expiry::Never);
}

#[tokio::test]
async fn a_config_that_strands_leases_needs_force() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    store.set_config(r#"{"Network":"10.3.0.0/16"}"#, false).await.unwrap();
    store.acquire(&v4_network(), &claim("192.0.2.1")).await.unwrap();
    let other = r#"{"Network":"10.4.0.0/16"}"#;
    assert!(matches!(store.set_config(other, false).await, Err(StoreError::Refused { .. })));
    assert!(matches!(store.set_config("{", true).await, Err(StoreError::Refused { .. })));
    store.set_config(other, true).await.unwrap();
    assert_eq!(store.config().await.unwrap().as_deref(), Some(other));
}

#[tokio::test]
async fn a_lease_is_brought_in_as_it_was_and_never_over_another() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    let held = store.acquire(&v4_network(), &claim("192.0.2.1")).await.unwrap().held;
    store.revoke(&held.lease.subnet).await.unwrap();
    store.import(&held).await.unwrap();
    store.import(&held).await.unwrap();
    let now = store.list().await.unwrap();
    assert_eq!(now.len(), 1);
    assert_eq!(now[0].lease, held.lease);
    let mut theirs = held.clone();
    theirs.lease.attrs = attrs("192.0.2.2");
    assert!(matches!(store.import(&theirs).await, Err(StoreError::Taken { .. })));
}
