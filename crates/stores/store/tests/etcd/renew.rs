//! Keeping a lease and giving it back.

use std::time::{Duration, SystemTime};

use flannel_lease::{Expiry, LeaseAttrs, RawJson, Version};
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::{EtcdServer, RawEtcd};
use flannel_store::{EtcdStore, Held, StoreError};

use crate::common::*;

async fn held_lease() -> (EtcdServer, EtcdStore, RawEtcd, Held) {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let held = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap().held;
    (etcd, store, raw, held)
}

fn key_of(held: &Held) -> String {
    key(&held.lease.subnet.to_string())
}

#[tokio::test]
async fn a_renewed_lease_lives_a_day_and_keeps_its_attributes() {
    let (_etcd, store, raw, held) = held_lease().await;
    let renewed = store.renew(&held, &held.lease.attrs).await.unwrap();
    assert_eq!(renewed.lease, held.lease);
    assert_ne!(renewed.version, held.version);
    let Expiry::At(expiry) = renewed.expiry else { panic!("a lease ends") };
    assert!(expiry.duration_since(SystemTime::now()).unwrap() > Duration::from_secs(86_300));
    assert_eq!(raw.get(&key_of(&held)).await.unwrap().value, value("1.2.3.4"));
}

#[tokio::test]
async fn attributes_can_change_with_a_renewal() {
    let (_etcd, store, raw, held) = held_lease().await;
    let mac = RawJson::read(r#"{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}"#).unwrap();
    let moved = LeaseAttrs { backend_type: "vxlan".into(), backend_data: mac, ..attrs("5.6.7.8") };
    let renewed = store.renew(&held, &moved).await.unwrap();
    assert_eq!(renewed.lease.attrs, moved);
    assert_eq!(
        raw.get(&key_of(&held)).await.unwrap().value,
        concat!(
            r#"{"PublicIP":"5.6.7.8","PublicIPv6":null,"BackendType":"vxlan","#,
            r#""BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#
        )
    );
}

#[tokio::test]
async fn defect_15_renewing_leaves_no_etcd_lease_behind() {
    let (_etcd, store, raw, mut held) = held_lease().await;
    for _ in 0..5 {
        held = store.renew(&held, &held.lease.attrs).await.unwrap();
    }
    eventually("one etcd lease is left", || async { raw.leases().await.len() == 1 }).await;
    let stored =
        raw.get(&key_of(&held)).await.expect("revoking the old ones has not deleted the key");
    assert_eq!(raw.leases().await, [stored.lease]);
}

#[tokio::test]
async fn defect_15_a_lease_another_node_wrote_is_not_overwritten() {
    let (_etcd, store, raw, held) = held_lease().await;
    let leases = raw.leases().await;
    raw.put(&key_of(&held), value("9.9.9.9")).await;
    let error = store.renew(&held, &held.lease.attrs).await.unwrap_err();
    let message = error.to_string();
    let StoreError::Taken { by, .. } = error else { panic!("{message}") };
    assert_eq!(by.attrs, attrs("9.9.9.9"));
    assert!(message.contains("9.9.9.9") && message.contains(&key_of(&held)), "{message}");
    assert_eq!(raw.get(&key_of(&held)).await.unwrap().value, value("9.9.9.9"));
    eventually("no etcd lease was made for nothing", || async { raw.leases().await == leases })
        .await;
}

#[tokio::test]
async fn a_lease_that_is_gone_is_lost_and_not_made_anew() {
    let (_etcd, store, raw, held) = held_lease().await;
    raw.delete(&key_of(&held)).await;
    let error = store.renew(&held, &held.lease.attrs).await.unwrap_err();
    assert!(matches!(error, StoreError::Lost { .. }), "{error}");
    assert_eq!(raw.list(&subnets()).await, []);
}

#[tokio::test]
async fn a_renewal_whose_answer_got_lost_is_recognised_as_our_own() {
    let (_etcd, store, raw, held) = held_lease().await;
    // Renewed, but we never learnt the new version.
    store.renew(&held, &held.lease.attrs).await.unwrap();
    let renewed = store.renew(&held, &held.lease.attrs).await.unwrap();
    assert_eq!(raw.get(&key_of(&held)).await.unwrap().version(), renewed.version);

    // The same when the lost renewal had new attributes.
    store.renew(&renewed, &attrs("5.6.7.8")).await.unwrap();
    store.renew(&renewed, &attrs("5.6.7.8")).await.unwrap();
    eventually("one etcd lease is left", || async { raw.leases().await.len() == 1 }).await;
}

#[tokio::test]
async fn defect_10_a_renewed_reservation_stays_one() {
    let (_etcd, store, raw, held) = held_lease().await;
    // An operator takes the time limit off a lease in use.
    raw.put(&key_of(&held), value("1.2.3.4")).await;
    let renewed = store.renew(&held, &held.lease.attrs).await.unwrap();
    assert_eq!(renewed.expiry, Expiry::Never);
    assert_eq!(raw.get(&key_of(&held)).await.unwrap().lease, 0);

    let renewed = store.renew(&renewed, &attrs("5.6.7.8")).await.unwrap();
    assert_eq!(renewed.expiry, Expiry::Never);
    let stored = raw.get(&key_of(&held)).await.unwrap();
    assert_eq!((stored.lease, stored.value), (0, value("5.6.7.8")));
}

#[tokio::test]
async fn a_released_lease_is_gone_with_its_etcd_lease() {
    let (_etcd, store, raw, held) = held_lease().await;
    store.release(&held).await.unwrap();
    assert_eq!(raw.list(&subnets()).await, []);
    eventually("the etcd lease is revoked", || async { raw.leases().await.is_empty() }).await;
    store.release(&held).await.expect("releasing what is gone is not an error");
}

#[tokio::test]
async fn releasing_touches_neither_reservations_nor_other_nodes_leases() {
    let (_etcd, store, raw, held) = held_lease().await;
    raw.put(&key_of(&held), value("9.9.9.9")).await;
    store.release(&held).await.unwrap();
    assert_eq!(raw.get(&key_of(&held)).await.unwrap().value, value("9.9.9.9"));

    let reserved = Held { expiry: Expiry::Never, version: Version::new(1), ..held.clone() };
    store.release(&reserved).await.unwrap();
    assert_eq!(raw.list(&subnets()).await.len(), 1);
}
