//! What operators do to leases in etcd.

use flannel_lease::Expiry;
use flannel_store::StoreError;
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::EtcdServer;

use crate::common::*;

#[tokio::test]
async fn a_reservation_is_made_kept_by_its_node_and_undone() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    store
        .set_config(r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan"}}"#, false)
        .await
        .unwrap();
    let of = subnet("10.3.9.0-24");
    store.reserve(&of, &attrs("192.0.2.1")).await.unwrap();
    let held = store.acquire(&v4_network(), &claim("192.0.2.1")).await.unwrap().held;
    assert_eq!((held.lease.subnet, held.expiry), (of, Expiry::Never));
    let taken = store.reserve(&of, &attrs("192.0.2.2")).await;
    assert_eq!(
        taken.unwrap_err().to_string(),
        "cannot reserve 10.3.9.0/24: the lease 10.3.9.0-24 belongs to another node, at 192.0.2.1"
    );
    assert!(matches!(store.revoke(&of).await, Err(StoreError::Rejected { .. })));
    store.unreserve(&of).await.unwrap();
    assert!(matches!(store.list().await.unwrap()[0].expiry, Expiry::At(_)));
    store.revoke(&of).await.unwrap();
    assert_eq!(store.list().await.unwrap(), []);
    for absent in [store.revoke(&of).await, store.unreserve(&of).await] {
        let text = absent.unwrap_err().to_string();
        assert!(
            text.contains("there is no lease 10.3.9.0/24; `flannelctl leases` shows"),
            "{text}"
        );
        assert!(!text.contains("acquire"), "{text}");
    }
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
    store
        .set_config(r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan"}}"#, false)
        .await
        .unwrap();
    store.acquire(&v4_network(), &claim("192.0.2.1")).await.unwrap();
    let other = r#"{"Network":"10.4.0.0/16","Backend":{"Type":"vxlan"}}"#;
    assert!(matches!(store.set_config(other, false).await, Err(StoreError::Rejected { .. })));
    assert!(matches!(store.set_config("{", true).await, Err(StoreError::Rejected { .. })));
    store.set_config(other, true).await.unwrap();
    // With the word that nodes need before they leave their subnets.
    let forced = other.replacen('{', r#"{"Replaces":["10.3.0.0/16"],"#, 1);
    assert_eq!(store.config().await.unwrap().as_deref(), Some(&*forced));
    let nameless = r#"{"Network":"10.3.0.0/16"}"#;
    let refused = store.set_config(nameless, true).await.unwrap_err().to_string();
    assert!(refused.contains("Backend is missing"), "{refused}");
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
    assert!(matches!(store.import(&theirs).await, Err(StoreError::Rejected { .. })));
}

#[tokio::test]
async fn a_node_that_has_a_lease_is_reserved_that_one_and_no_other() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    let held = store.acquire(&v4_network(), &claim("192.0.2.1")).await.unwrap().held;
    let other = subnet("10.3.9.0-24");
    let text = store.reserve(&other, &attrs("192.0.2.1")).await.unwrap_err().to_string();
    let has = held.lease.subnet.to_string();
    assert!(text.contains(&format!("192.0.2.1 has the lease {has}")), "{text}");
    store.reserve(&held.lease.subnet, &attrs("192.0.2.1")).await.unwrap();
    let text = store.reserve(&other, &attrs("192.0.2.1")).await.unwrap_err().to_string();
    assert!(text.contains(&format!("{has} is reserved for 192.0.2.1 already")), "{text}");
    assert_eq!(store.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_full_etcd_says_that_it_is_full() {
    let etcd = EtcdServer::start_small(1 << 20);
    let store = etcd.store(1);
    let config = r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan"}}"#;
    store.set_config(config, false).await.unwrap();
    let large = format!("{config}{}", " ".repeat(1_200_000));
    store.set_config(&large, false).await.unwrap_err();
    let text = store.reserve(&subnet("10.3.9.0-24"), &attrs("192.0.2.1")).await.unwrap_err();
    let text = text.to_string();
    assert!(text.contains("database space exceeded") && text.contains("alarm disarm"), "{text}");
    assert_eq!(store.config_as_written().await.unwrap().as_deref(), Some(config));
}
