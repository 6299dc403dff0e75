//! Getting a subnet.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use flannel_lease::{Expiry, LeaseAttrs, NetworkConfig};
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::EtcdServer;
use flannel_store::{Acquired, Claim, StoreError};

use crate::common::*;

#[tokio::test]
async fn the_same_address_gets_the_same_subnet_again() {
    let etcd = EtcdServer::start();
    let first = etcd.store(1).acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let again = etcd.store(2).acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let other = etcd.store(3).acquire(&v4_network(), &claim("1.2.3.5")).await.unwrap();

    assert!(v4_network().accepts(&first.held.lease.subnet));
    assert_eq!(again.held.lease, first.held.lease);
    assert_ne!(again.held.version, first.held.version);
    assert_ne!(other.held.lease.subnet, first.held.lease.subnet);
}

#[tokio::test]
async fn the_snapshot_of_acquiring_holds_the_others_and_ourselves() {
    let etcd = EtcdServer::start();
    etcd.raw().put(&key("10.3.7.0-24"), value("7.7.7.7")).await;
    let store = etcd.store(1);
    let acquired = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    assert_eq!(
        acquired.snapshot.leases,
        [lease("10.3.7.0-24", "7.7.7.7"), acquired.held.lease.clone()]
    );

    // And once more, now that the list read has us in it already.
    let again = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let plain = |acquired: &Acquired| {
        acquired.snapshot.leases.iter().map(|s| s.lease.clone()).collect::<Vec<_>>()
    };
    assert_eq!(plain(&again), plain(&acquired));
}

#[tokio::test]
async fn a_node_is_told_what_it_was_known_by_before_it_announces_itself() {
    let etcd = EtcdServer::start();
    let announce = |first: &str| {
        let first = first.to_owned();
        move |before: Option<&LeaseAttrs>| LeaseAttrs {
            backend_type: before.map_or(first.clone().into(), |known| known.backend_type.clone()),
            ..attrs("1.2.3.4")
        }
    };
    let me = claim("1.2.3.4").claimant();
    let acquire = async |node, config: &NetworkConfig, first: &str| {
        let store = etcd.store(node);
        let recalled = store.recall(config, &me).await.unwrap();
        let acquired = flannel_store::acquire(&store, config, &me, recalled, announce(first)).await;
        acquired.unwrap()
    };
    let new = acquire(1, &v4_network(), "first").await;
    assert_eq!(new.held.lease.attrs.backend_type, "first".into());
    let again = acquire(2, &v4_network(), "second").await;
    assert_eq!(again.held.lease.attrs.backend_type, "first".into(), "it was known by that");

    let elsewhere = network(r#"{"Network":"10.9.0.0/16"}"#);
    let moved = acquire(3, &elsewhere, "third").await;
    assert_eq!(moved.held.lease.attrs.backend_type, "first".into(), "even on a new subnet");
}

#[tokio::test]
async fn the_previous_subnet_is_taken_when_it_is_free_and_fits() {
    let etcd = EtcdServer::start();
    let with_previous = |ip, previous| Claim::new(attrs(ip), Some(subnet(previous)));
    let store = etcd.store(1);

    let held =
        store.acquire(&v4_network(), &with_previous("1.1.1.1", "10.3.99.0-24")).await.unwrap().held;
    assert_eq!(held.lease.subnet, subnet("10.3.99.0-24"));

    let held =
        store.acquire(&v4_network(), &with_previous("2.2.2.2", "10.3.99.0-24")).await.unwrap().held;
    assert_ne!(held.lease.subnet, subnet("10.3.99.0-24"), "it is another node's");

    let held =
        store.acquire(&v4_network(), &with_previous("3.3.3.3", "10.9.99.0-24")).await.unwrap().held;
    assert!(
        v4_network().accepts(&held.lease.subnet),
        "{} is outside of the network",
        held.lease.subnet
    );
}

#[tokio::test]
async fn a_change_of_the_network_moves_the_lease() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    let old = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap().held;

    let new_network = network(r#"{"Network":"10.4.0.0/16"}"#);
    let new = store.acquire(&new_network, &claim("1.2.3.4")).await.unwrap();

    assert!(new_network.accepts(&new.held.lease.subnet));
    assert_eq!(new.snapshot.leases, std::slice::from_ref(&new.held.lease));
    let raw = etcd.raw();
    let keys: Vec<String> = raw.list(&subnets()).await.into_iter().map(|k| k.key).collect();
    assert_eq!(keys, [key(&new.held.lease.subnet.to_string())], "{} is gone", old.lease.subnet);
    eventually("the old key's etcd lease is revoked", || async { raw.leases().await.len() == 1 })
        .await;
}

#[tokio::test]
async fn defect_9_nodes_that_pick_the_same_subnet_try_again() {
    let etcd = EtcdServer::start();
    // 63 subnets for 60 nodes that all start at once: nearly every node collides at least once.
    let tight = network(r#"{"Network":"10.3.0.0/24","SubnetLen":30}"#);
    let nodes = (0..60u8).map(|n| {
        let (store, config) = (etcd.store(u64::from(n)), tight.clone());
        let claim = claim(&Ipv4Addr::new(192, 168, 0, n + 1).to_string());
        tokio::spawn(async move { patiently(&store, &config, &claim).await })
    });
    let mut subnets_given = BTreeSet::new();
    for node in nodes.collect::<Vec<_>>() {
        subnets_given.insert(node.await.unwrap());
    }
    assert_eq!(subnets_given.len(), 60);
    assert_eq!(etcd.raw().list(&subnets()).await.len(), 60);
}

/// As the daemon does: what is transient is tried again.
async fn patiently(
    store: &dyn flannel_store::NodeStore,
    config: &flannel_lease::NetworkConfig,
    claim: &Claim,
) -> flannel_lease::Subnet {
    loop {
        match store.acquire(config, claim).await {
            Ok(acquired) => return acquired.held.lease.subnet,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
}

#[tokio::test]
async fn two_families_picked_apart_never_overlap_in_either() {
    let etcd = EtcdServer::start();
    // Keys differ as soon as one family does, so unequal keys alone do not keep nodes apart.
    let dual = network(
        r#"{"Network":"10.3.0.0/24","SubnetLen":29,
            "EnableIPv6":true,"IPv6Network":"fd00:3::/64","IPv6SubnetLen":69}"#,
    );
    let nodes = (0..20u8).map(|n| {
        let (store, config) = (etcd.store(100 + u64::from(n)), dual.clone());
        let claim = claim(&Ipv4Addr::new(192, 168, 0, n + 1).to_string());
        tokio::spawn(async move { patiently(&store, &config, &claim).await })
    });
    let mut given = vec![];
    for node in nodes.collect::<Vec<_>>() {
        given.push(node.await.unwrap());
    }
    for (n, one) in given.iter().enumerate() {
        for other in &given[n + 1..] {
            assert!(!one.overlaps(other), "{one} and {other}");
        }
    }
    assert_eq!(etcd.raw().list(&subnets()).await.len(), given.len());
}

#[tokio::test]
async fn a_full_network_says_so() {
    let etcd = EtcdServer::start();
    let tiny = network(r#"{"Network":"10.3.0.0/28","SubnetLen":30}"#);
    let store = etcd.store(1);
    for n in 1..=3 {
        store.acquire(&tiny, &claim(&format!("192.168.0.{n}"))).await.unwrap();
    }
    let error = store.acquire(&tiny, &claim("192.168.0.9")).await.unwrap_err();
    assert!(matches!(error, StoreError::OutOfSubnets(_)), "{error}");
    assert!(!error.is_transient());
}

#[tokio::test]
async fn defect_10_a_reservation_is_reused_and_stays_one() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    raw.put(&key("10.3.50.0-24"), value("1.2.3.4")).await;
    let claim = Claim::new(LeaseAttrs { backend_type: "vxlan".into(), ..attrs("1.2.3.4") }, None);

    let held = etcd.store(1).acquire(&v4_network(), &claim).await.unwrap().held;

    assert_eq!((held.lease.subnet, held.expiry), (subnet("10.3.50.0-24"), Expiry::Never));
    let stored = raw.get(&key("10.3.50.0-24")).await.unwrap();
    assert_eq!(stored.lease, 0, "it does not expire");
    assert!(stored.value.contains("vxlan"), "its attributes are ours: {}", stored.value);
    assert!(raw.leases().await.is_empty(), "no etcd lease is made for nothing");
}

#[tokio::test]
async fn defect_10_another_nodes_reservation_is_not_handed_out() {
    let etcd = EtcdServer::start();
    let tiny = network(r#"{"Network":"10.3.0.0/28","SubnetLen":30}"#);
    etcd.raw().put(&key("10.3.0.4-30"), value("9.9.9.9")).await;
    etcd.raw().put(&key("10.3.0.8-30"), value("9.9.9.8")).await;
    let held = etcd.store(1).acquire(&tiny, &claim("1.2.3.4")).await.unwrap().held;
    assert_eq!(held.lease.subnet, subnet("10.3.0.12-30"));
}

#[tokio::test]
async fn a_subnet_whose_value_cannot_be_read_is_in_use_all_the_same() {
    let etcd = EtcdServer::start();
    let tiny = network(r#"{"Network":"10.3.0.0/28","SubnetLen":30}"#);
    etcd.raw().put(&key("10.3.0.4-30"), "{").await;
    etcd.raw().put(&key("10.3.0.8-30"), "junk").await;
    etcd.raw().put(&key("junk"), "junk").await;
    let acquired = etcd.store(1).acquire(&tiny, &claim("1.2.3.4")).await.unwrap();
    assert_eq!(acquired.held.lease.subnet, subnet("10.3.0.12-30"));
    assert_eq!(acquired.snapshot.leases, std::slice::from_ref(&acquired.held.lease));
}

#[tokio::test]
async fn defect_11_nodes_of_an_ipv6_only_network_get_subnets_of_their_own() {
    let etcd = EtcdServer::start();
    let v6_only = network(
        r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:3::/48","IPv6SubnetLen":64}"#,
    );
    let claim = |ip: &str| {
        Claim::new(
            LeaseAttrs { public_ipv6: Some(ip.parse().unwrap()), ..LeaseAttrs::default() },
            None,
        )
    };
    let store = etcd.store(1);
    let one = store.acquire(&v6_only, &claim("fc00::1")).await.unwrap().held.lease;
    let two = store.acquire(&v6_only, &claim("fc00::2")).await.unwrap().held.lease;
    let one_again = store.acquire(&v6_only, &claim("fc00::1")).await.unwrap().held.lease;
    assert_ne!(one.subnet, two.subnet);
    assert_eq!(one, one_again);

    let raw = etcd.raw();
    assert_eq!(
        raw.list(&subnets()).await,
        [],
        "the Go flannel would drop its peers for such a key"
    );
    assert_eq!(raw.list(&v6_subnets()).await.len(), 2);
}

#[tokio::test]
async fn an_ipv6_only_lease_written_by_the_go_flannel_is_kept_where_it_is() {
    let etcd = EtcdServer::start();
    let v6_only = network(
        r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:3::/48","IPv6SubnetLen":64}"#,
    );
    let go_key = key("0.0.0.0-0&fd00:3:0:7::-64");
    let raw = etcd.raw();
    let lease = raw.grant(86_400).await;
    raw.put_with_lease(&go_key, r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::1"}"#, lease).await;
    let attrs =
        LeaseAttrs { public_ipv6: Some("fc00::1".parse().unwrap()), ..LeaseAttrs::default() };
    let claim = Claim::new(attrs.clone(), None);

    let store = etcd.store(1);
    let held = store.acquire(&v6_only, &claim).await.unwrap().held;
    assert_eq!(held.lease.subnet, subnet("fd00:3:0:7::-64"));
    let held = store.renew(&held, &attrs).await.unwrap();
    assert_eq!(raw.get(&go_key).await.unwrap().version(), held.version);
    assert_eq!(raw.list(&v6_subnets()).await, []);
    store.release(&held).await.unwrap();
    assert_eq!(raw.get(&go_key).await, None);
}

#[tokio::test]
async fn defect_12_dual_stack_can_be_turned_on_over_existing_leases() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    let other = store.acquire(&v4_network(), &claim("9.9.9.9")).await.unwrap().held.lease;
    let old = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap().held.lease;
    let dual = network(
        r#"{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:3::/48","IPv6SubnetLen":64}"#,
    );
    let acquired = store.acquire(&dual, &claim("1.2.3.4")).await.unwrap();
    assert!(dual.accepts(&acquired.held.lease.subnet));
    assert_eq!(acquired.held.lease.subnet.v4(), old.subnet.v4(), "the IPv4 half stays");
    assert_eq!(acquired.snapshot.leases, [other, acquired.held.lease.clone()]);
}

#[tokio::test]
async fn defect_15_taking_a_lease_over_leaves_no_etcd_lease_behind() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    for seed in 0..5 {
        etcd.store(seed).acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    }
    eventually("one etcd lease is left", || async { raw.leases().await.len() == 1 }).await;
    let stored = raw.list(&subnets()).await;
    assert_eq!(raw.leases().await, [stored[0].lease], "and it is the one in use");
}

#[tokio::test]
async fn an_etcd_lease_that_others_use_too_is_left_alone() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    let shared = raw.grant(86_400).await;
    raw.put_with_lease(&key("10.3.1.0-24"), value("1.2.3.4"), shared).await;
    raw.put_with_lease(&key("10.3.2.0-24"), value("2.2.2.2"), shared).await;

    let store = etcd.store(1);
    let held = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap().held;
    store.renew(&held, &attrs("1.2.3.4")).await.unwrap();
    // The first grant is gone when the work behind the back is done.
    eventually("two etcd leases are left", || async { raw.leases().await.len() == 2 }).await;

    assert!(raw.leases().await.contains(&shared));
    assert_eq!(raw.get(&key("10.3.2.0-24")).await.unwrap().lease, shared);
}

#[tokio::test]
async fn somebody_who_was_quicker_is_noticed_at_the_one_try() {
    let etcd = EtcdServer::start();
    let (store, config) = (etcd.store(1), v4_network());
    let mine = Claim::new(attrs("1.2.3.4"), Some(subnet("10.3.9.0-24")));
    let recalled = store.recall(&config, &mine.claimant()).await.unwrap();
    etcd.raw().put(&key("10.3.9.0-24"), value("9.9.9.9")).await;
    let error = recalled.try_acquire(&config, &mine).await.unwrap_err();
    assert!(matches!(error, StoreError::Contended { .. }), "{error}");
    eventually("the unused etcd lease is gone", async || etcd.raw().leases().await.is_empty())
        .await;
}
