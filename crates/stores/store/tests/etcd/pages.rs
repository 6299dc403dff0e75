//! Leases listed page by page, and what may happen between two pages.

use std::collections::BTreeMap;

use flannel_lease::{Claimant, Lease, NetworkConfig};
use flannel_store::StoreEvent::{Gone, Put};
use flannel_store::prelude::*;
use flannel_store::testing::EtcdServer;
use flannel_store::{EtcdStore, Page, Recalled, StoreError, StoredLease};

use crate::common::*;

/// Several pages.
const LEASES: u32 = 3_500;

fn large_network() -> NetworkConfig {
    network(r#"{"Network":"10.0.0.0/8"}"#)
}

fn subnet_key(n: u32) -> String {
    format!("10.{}.{}.0-24", 16 + n / 256, n % 256)
}

fn address(n: u32) -> String {
    format!("192.168.{}.{}", n / 256, n % 256)
}

async fn with_leases(etcd: &EtcdServer) {
    let entry = |n: u32| (key(&subnet_key(n)), value(&address(n)));
    etcd.raw().put_all(&(0..LEASES).map(entry).collect::<Vec<_>>()).await;
}

/// The node that has lease number `n`, and knows which one that is or not.
fn node(n: u32, knows: bool) -> Claimant {
    Claimant {
        public_ip: Some(address(n).parse().unwrap()),
        public_ipv6: None,
        previous: knows.then(|| subnet(&subnet_key(n))),
        ..Claimant::default()
    }
}

/// The keys as etcd sorts them.
fn last_key() -> String {
    (0..LEASES).map(subnet_key).max().unwrap()
}

/// Lists, and does something when the first page has come.
async fn recall(
    store: &EtcdStore,
    me: &Claimant,
    meanwhile: impl FnOnce() + Send,
) -> (Result<Recalled, StoreError>, Vec<Page>) {
    let mut pages = Vec::new();
    let mut meanwhile = Some(meanwhile);
    let mut hear = |page| {
        pages.push(page);
        if let Some(meanwhile) = meanwhile.take() {
            meanwhile();
        }
    };
    let recalled = store.recall_by_pages(&large_network(), me, &mut hear).await;
    (recalled, pages)
}

/// Waits for it, in the middle of what waits for nothing.
fn wait_for<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work());
        });
    });
}

fn table(leases: &[StoredLease]) -> BTreeMap<String, Lease> {
    leases.iter().map(|it| (it.lease.subnet.to_string(), it.lease.clone())).collect()
}

fn told(pages: &[Page]) -> Vec<Lease> {
    pages.iter().flat_map(|page| page.leases.iter().cloned()).collect()
}

#[tokio::test]
async fn a_node_that_knows_its_lease_hears_of_every_page_and_of_every_lease_once() {
    let etcd = EtcdServer::start();
    with_leases(&etcd).await;
    let (recalled, pages) = recall(&etcd.store(1), &node(1_234, true), || ()).await;
    let recalled = recalled.unwrap();
    assert_eq!(recalled.announced, Some(attrs(&address(1_234))));
    assert_eq!(recalled.snapshot.leases.len(), LEASES as usize);
    let sizes: Vec<usize> = pages.iter().map(|page| page.leases.len()).collect();
    assert_eq!(sizes, [1_000, 2_000, 500, 0], "and a directory of its own for IPv6");
    let own = lease(&subnet_key(1_234), &address(1_234));
    assert!(pages.iter().all(|page| page.own == own));
    let listed: Vec<Lease> = recalled.snapshot.leases.into_iter().map(|it| it.lease).collect();
    assert!(told(&pages) == listed);
}

#[tokio::test]
async fn a_node_that_does_not_know_its_lease_hears_of_none_and_waits_for_one_answer() {
    let etcd = EtcdServer::start();
    with_leases(&etcd).await;
    let count = || {
        let requests = etcd.requests();
        requests["Txn"] + requests.get("Range").copied().unwrap_or(0)
    };
    let before = count();
    let (recalled, pages) = recall(&etcd.store(1), &node(3_000, false), || ()).await;
    let recalled = recalled.unwrap();
    assert_eq!(recalled.announced, Some(attrs(&address(3_000))));
    assert_eq!(recalled.snapshot.leases.len(), LEASES as usize);
    assert_eq!(pages, []);
    assert_eq!(count() - before, 1);
}

#[tokio::test]
async fn a_node_whose_lease_is_another_nodes_now_hears_of_none_before_all_are_listed() {
    let etcd = EtcdServer::start();
    with_leases(&etcd).await;
    let me = Claimant { public_ip: Some([1, 2, 3, 4].into()), ..node(7, true) };
    let (recalled, pages) = recall(&etcd.store(1), &me, || ()).await;
    assert_eq!(recalled.unwrap().snapshot.leases.len(), LEASES as usize);
    assert_eq!(pages, []);
}

#[tokio::test]
async fn a_lease_that_the_config_no_longer_allows_is_not_told_as_this_nodes() {
    let etcd = EtcdServer::start();
    with_leases(&etcd).await;
    let me = node(5, true);
    let mut pages = Vec::new();
    let elsewhere = network(r#"{"Network":"10.200.0.0/16"}"#);
    let mut hear = |page| pages.push(page);
    etcd.store(1).recall_by_pages(&elsewhere, &me, &mut hear).await.unwrap();
    assert_eq!(pages, []);
}

#[tokio::test]
async fn what_changes_between_two_pages_is_in_the_watch_and_not_in_the_list() {
    let etcd = EtcdServer::start();
    with_leases(&etcd).await;
    let (store, raw) = (etcd.store(1), etcd.raw());
    let mut keys: Vec<String> = (0..LEASES).map(subnet_key).collect();
    keys.sort();
    let [.., deleted, changed] = keys.as_slice() else { panic!("there are keys") };
    let (recalled, _) = recall(&store, &node(0, true), || {
        wait_for(|| async {
            raw.delete(&key(deleted)).await;
            raw.put(&key(changed), value("1.1.1.1")).await;
            // After all others, and before all others.
            raw.put(&key("10.99.0.0-24"), value("2.2.2.2")).await;
            raw.put(&key("10.1.0.0-24"), value("3.3.3.3")).await;
        });
    })
    .await;
    let snapshot = recalled.unwrap().snapshot;
    let listed = table(&snapshot.leases);
    assert_eq!(listed.len(), LEASES as usize);
    assert!(listed.contains_key(deleted));
    assert_ne!(listed[changed].attrs, attrs("1.1.1.1"));
    let mut events = store.watch(snapshot.cursor);
    assert_eq!(next(&mut events).await, Gone(subnet(deleted)));
    assert_eq!(next(&mut events).await, Put(lease(changed, "1.1.1.1").into()));
    assert_eq!(next(&mut events).await, Put(lease("10.99.0.0-24", "2.2.2.2").into()));
    assert_eq!(next(&mut events).await, Put(lease("10.1.0.0-24", "3.3.3.3").into()));
}

#[tokio::test]
async fn a_list_whose_revision_is_compacted_between_two_pages_is_begun_anew() {
    let etcd = EtcdServer::start();
    with_leases(&etcd).await;
    let (store, raw) = (etcd.store(1), etcd.raw());
    let last = last_key();
    let (recalled, pages) = recall(&store, &node(0, true), || {
        wait_for(|| async {
            raw.delete(&key(&last)).await;
            raw.put(&key("10.99.0.0-24"), value("2.2.2.2")).await;
            raw.compact().await;
        });
    })
    .await;
    let snapshot = recalled.unwrap().snapshot;
    let listed = table(&snapshot.leases);
    assert_eq!(listed.len(), LEASES as usize);
    assert!(!listed.contains_key(&last) && listed.contains_key("10.99.0.0-24"));
    // What was told of the first list is told again.
    let again =
        pages.iter().filter(|page| page.leases.contains(&lease(&subnet_key(0), &address(0))));
    assert_eq!(again.count(), 2);
    let mut events = store.watch(snapshot.cursor);
    raw.put(&key("10.98.0.0-24"), value("4.4.4.4")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.98.0.0-24", "4.4.4.4").into()));
}

#[tokio::test]
async fn an_etcd_that_dies_between_two_pages_is_an_error_that_passes() {
    let mut etcd = EtcdServer::start();
    with_leases(&etcd).await;
    let store = etcd.store(1);
    let (recalled, pages) = recall(&store, &node(0, true), || etcd.kill()).await;
    let error = recalled.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("/coreos.com/network/subnets/"), "{error}");
    assert!(told(&pages).len() < LEASES as usize);
    etcd.restart();
    let (recalled, pages) = recall(&store, &node(0, true), || ()).await;
    assert_eq!(recalled.unwrap().snapshot.leases.len(), LEASES as usize);
    assert_eq!(told(&pages).len(), LEASES as usize);
}

#[tokio::test]
async fn an_etcd_that_is_back_before_it_is_missed_goes_on_with_the_same_list() {
    let mut etcd = EtcdServer::start();
    with_leases(&etcd).await;
    let store = etcd.store(1);
    let (recalled, pages) = recall(&store, &node(0, true), || {
        etcd.kill();
        etcd.restart();
    })
    .await;
    assert_eq!(recalled.unwrap().snapshot.leases.len(), LEASES as usize);
    assert!(told(&pages).len() >= LEASES as usize);
}

#[tokio::test]
async fn an_etcd_that_comes_back_older_between_two_pages_is_listed_anew() {
    let mut etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    with_leases(&etcd).await;
    let backup = etcd.back_up();
    for _ in 0..10 {
        raw.put(&key("10.99.0.0-24"), value("2.2.2.2")).await;
    }
    let (recalled, _) = recall(&store, &node(0, true), || etcd.restore(&backup)).await;
    let snapshot = recalled.unwrap().snapshot;
    let listed = table(&snapshot.leases);
    assert_eq!(listed.len(), LEASES as usize, "without what the backup does not have");
    let mut events = store.watch(snapshot.cursor);
    raw.put(&key("10.98.0.0-24"), value("4.4.4.4")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.98.0.0-24", "4.4.4.4").into()));
}
