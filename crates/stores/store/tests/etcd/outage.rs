//! etcd goes away, hangs, comes back, comes back older.

use std::time::Duration;

use flannel_lease::{Expiry, Version};
use flannel_store::Cursor;
use flannel_store::StoreEvent::{self, ConfigGone, Down, Gone, Put, Snapshot, Up};
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::{EtcdServer, free_ports};
use flannel_store::{EtcdOptions, EtcdStore, Held, StoreError};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::common::*;
use crate::proxy::{Proxy, black_hole, slow_line};

/// Whoever still waits after this waits for ever.
const FAR: Duration = Duration::from_secs(120);

fn is_down(event: &StoreEvent) -> bool {
    matches!(event, Down(_))
}

fn store_at(endpoints: &[&str], seed: u64) -> EtcdStore {
    let endpoints = endpoints.iter().map(|&e| e.to_owned()).collect();
    let prefix = EtcdServer::PREFIX.to_owned();
    EtcdStore::new(&EtcdOptions { endpoints, prefix, ..Default::default() }, None, seed).unwrap()
}

#[tokio::test]
async fn an_etcd_that_is_killed_and_comes_back_costs_two_events_and_no_lease() {
    let mut etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    raw.put(&key("10.3.2.0-24"), value("2.2.2.2")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.3.2.0-24", "2.2.2.2").into()));

    etcd.kill();
    let Down(why) = next(&mut events).await else { panic!("down comes first") };
    assert!(
        why.contains(&etcd.endpoint()) && why.contains("/coreos.com/network/subnets/"),
        "{why}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    etcd.restart();
    assert_eq!(next(&mut events).await, Up);

    // Nothing is told twice, nothing is listed anew.
    raw.put(&key("10.3.3.0-24"), value("3.3.3.3")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.3.3.0-24", "3.3.3.3").into()));
}

/// A watch whose connection is cut, and then one lease comes and another goes. With the port where the
/// connection can be made again.
async fn changed_without_the_watch() -> (EtcdServer, u16, mpsc::Receiver<StoreEvent>) {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    let proxy = Proxy::to(etcd.address()).await;
    let store = store_at(&[&proxy.endpoint()], 1);
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    next(&mut events).await;

    let port = proxy.end();
    assert!(is_down(&next(&mut events).await));
    raw.put(&key("10.3.2.0-24"), value("2.2.2.2")).await;
    raw.delete(&key("10.3.1.0-24")).await;
    (etcd, port, events)
}

#[tokio::test]
async fn what_happened_while_the_connection_was_gone_is_told_afterwards() {
    let (etcd, port, mut events) = changed_without_the_watch().await;
    let _proxy = Proxy::at(port, etcd.address()).await;

    assert_eq!(next(&mut events).await, Up);
    assert_eq!(next(&mut events).await, Put(lease("10.3.2.0-24", "2.2.2.2").into()));
    assert_eq!(next(&mut events).await, Gone(subnet("10.3.1.0-24")));
}

#[tokio::test]
async fn what_was_compacted_while_the_connection_was_gone_is_replaced_by_a_snapshot() {
    let (etcd, port, mut events) = changed_without_the_watch().await;
    etcd.raw().compact().await;
    let _proxy = Proxy::at(port, etcd.address()).await;

    assert_eq!(next(&mut events).await, Up);
    assert_eq!(next(&mut events).await, ConfigGone);
    assert_eq!(next(&mut events).await, Snapshot(vec![lease("10.3.2.0-24", "2.2.2.2").into()]));
}

#[tokio::test]
async fn an_etcd_restored_from_an_older_backup_is_noticed_and_listed_anew() {
    let mut etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    let backup = etcd.back_up();
    raw.put(&key("10.3.2.0-24"), value("2.2.2.2")).await;
    raw.put(&key("10.3.3.0-24"), value("3.3.3.3")).await;
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.leases.len(), 3);
    let mut events = store.watch(snapshot.cursor);
    raw.delete(&key("10.3.3.0-24")).await;
    assert_eq!(next(&mut events).await, Gone(subnet("10.3.3.0-24")));

    etcd.restore(&backup);

    assert!(is_down(&next(&mut events).await));
    assert_eq!(next(&mut events).await, Up);
    assert_eq!(next(&mut events).await, ConfigGone);
    assert_eq!(next(&mut events).await, Snapshot(vec![lease("10.3.1.0-24", "1.1.1.1").into()]));
    // The restored etcd is at a revision below our old cursor; its events are heard all the same.
    raw.put(&key("10.3.4.0-24"), value("4.4.4.4")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.3.4.0-24", "4.4.4.4").into()));
}

#[tokio::test]
async fn a_lease_that_a_restored_etcd_does_not_know_is_lost() {
    let mut etcd = EtcdServer::start();
    let store = etcd.store(1);
    etcd.raw().put(&config_key(), "{}").await;
    let backup = etcd.back_up();
    let held = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap().held;
    etcd.restore(&backup);
    let error = store.renew(&held, &held.lease.attrs).await.unwrap_err();
    assert!(matches!(error, StoreError::Lost { .. }), "{error}");
    let previous = Some(held.lease.subnet);
    let again = flannel_store::Claim { previous, ..claim("1.2.3.4") };
    let again = store.acquire(&v4_network(), &again).await.unwrap().held;
    assert_eq!(again.lease, held.lease, "the same subnet is acquired again");
}

#[tokio::test]
async fn defect_2_a_first_listing_that_fails_is_tried_until_it_works() {
    let mut etcd = EtcdServer::start();
    etcd.raw().put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    etcd.kill();
    let mut events = etcd.store(1).watch(Cursor::BEGINNING);
    assert!(is_down(&next(&mut events).await));
    etcd.restart();
    assert_eq!(next(&mut events).await, Up);
    assert_eq!(next(&mut events).await, ConfigGone);
    assert_eq!(next(&mut events).await, Snapshot(vec![lease("10.3.1.0-24", "1.1.1.1").into()]));
}

#[tokio::test]
async fn defect_17_an_etcd_that_is_away_is_an_error_in_time_and_no_obstacle_later() {
    let mut etcd = EtcdServer::start();
    etcd.kill();
    let store = etcd.store(1);
    let error = store.config().await.unwrap_err();
    assert!(error.is_transient());
    assert!(error.to_string().contains(&etcd.endpoint()), "{error}");
    assert!(error.to_string().contains("refused"), "not that time has run out: {error}");
    etcd.restart();
    assert_eq!(store.config().await.unwrap(), None);
}

#[tokio::test]
async fn defect_17_a_server_that_never_answers_is_given_up_in_time() {
    let (endpoint, _task) = black_hole().await;
    let store = store_at(&[&endpoint], 1);
    let error = timeout(FAR, store.snapshot()).await.expect("it is given up").unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");

    let mut events = store.watch(Cursor::new("1"));
    assert!(is_down(&next(&mut events).await));
}

#[tokio::test]
async fn a_server_that_never_answers_does_not_keep_us_from_one_that_does() {
    let etcd = EtcdServer::start();
    let (hole, _task) = black_hole().await;
    for seed in 0..4 {
        let store = store_at(&[&hole, &etcd.endpoint()], seed);
        assert_eq!(store.config().await.unwrap(), None);
        // Each that went to the other one first would wait for seconds.
        let many = async {
            for _ in 0..200 {
                assert_eq!(store.config().await.unwrap(), None);
            }
        };
        timeout(FAR, many).await.expect("the one that works stays in use");
    }
}

#[tokio::test]
async fn a_dead_endpoint_costs_no_request() {
    let etcd = EtcdServer::start();
    let [dead] = free_ports();
    let dead = format!("http://127.0.0.1:{dead}");
    for seed in 0..8 {
        let store = store_at(&[&dead, &etcd.endpoint()], seed);
        for _ in 0..25 {
            store.config().await.unwrap();
        }
        let mut events = store.watch(Cursor::BEGINNING);
        assert_eq!(next(&mut events).await, ConfigGone);
    }
}

#[tokio::test]
async fn requests_and_watch_move_to_another_endpoint_when_theirs_dies() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    // The seed decides which endpoint is used first: one of the two loses it.
    for seed in 0..4 {
        let (one, two) = (Proxy::to(etcd.address()).await, Proxy::to(etcd.address()).await);
        let store = store_at(&[&one.endpoint(), &two.endpoint()], seed);
        let mut events = store.watch(store.snapshot().await.unwrap().cursor);
        raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
        next(&mut events).await;
        drop(one);
        store.config().await.unwrap();
        raw.put(&key("10.3.2.0-24"), value("2.2.2.2")).await;
        until(&mut events, |event| *event == Put(lease("10.3.2.0-24", "2.2.2.2").into())).await;
    }
}

#[tokio::test]
async fn a_hanging_etcd_is_noticed_by_the_watch() {
    let etcd = EtcdServer::start();
    let store = etcd.store(1);
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    etcd.raw().put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    next(&mut events).await;

    etcd.signal(libc::SIGSTOP);
    assert!(is_down(&timeout(FAR, events.recv()).await.expect("it is noticed").unwrap()));
    etcd.signal(libc::SIGCONT);
    assert_eq!(next(&mut events).await, Up);
}

#[tokio::test]
async fn a_listing_that_takes_long_is_given_more_time_instead_of_being_asked_for_again_and_again() {
    let etcd = EtcdServer::start();
    let entry = |n: u32| (key(&format!("10.{}.{}.0-24", n / 256, n % 256)), value("1.1.1.1"));
    etcd.raw().put_all(&(0..1_000).map(entry).collect::<Vec<_>>()).await;
    // Some 110 kB at 15 kB/s.
    let (endpoint, _task) = slow_line(etcd.address(), 15_000).await;
    let store = store_at(&[&endpoint], 1);
    assert!(store.snapshot().await.unwrap_err().is_transient());
    assert_eq!(store.snapshot().await.unwrap().leases.len(), 1_000);
}

#[tokio::test]
async fn a_cluster_that_loses_its_leader_goes_on() {
    let mut members = EtcdServer::start_cluster::<3>();
    let endpoints: Vec<String> = members.iter().map(EtcdServer::endpoint).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let store = store_at(&endpoints, 1);
    let acquired = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let mut events = store.watch(acquired.snapshot.cursor);
    next(&mut events).await;
    let mut held = acquired.held;

    for member in &mut members {
        member.kill();
        held = patiently(&store, &held).await;
        until(&mut events, |event| *event == Put(held.lease.clone().into())).await;
        member.restart();
    }
}

async fn patiently(store: &EtcdStore, held: &Held) -> Held {
    loop {
        match store.renew(held, &held.lease.attrs).await {
            Ok(held) => return held,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_member_cut_off_from_the_others_is_no_store() {
    let mut members = EtcdServer::start_cluster::<3>();
    let store = members[0].store(1);
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    members[0].raw().put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    next(&mut events).await;

    members[1].kill();
    members[2].kill();
    assert!(is_down(&next(&mut events).await), "it runs, but cannot know what the others decide");
    let error = store
        .renew(&Held { version: Version::new(1), ..some_lease() }, &attrs("1.2.3.4"))
        .await
        .unwrap_err();
    assert!(error.is_transient(), "{error}");

    members[1].restart();
    assert_eq!(next(&mut events).await, Up);
}

fn some_lease() -> Held {
    Held {
        lease: lease("10.3.1.0-24", "1.2.3.4"),
        expiry: Expiry::Never,
        version: Version::UNKNOWN,
    }
}

#[tokio::test]
async fn a_node_that_moved_does_not_wait_for_its_dead_connections() {
    let etcd = EtcdServer::start();
    let proxy = Proxy::to(etcd.address()).await;
    let store = store_at(&[&proxy.endpoint()], 1);
    let held = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let mut events = store.watch(held.snapshot.cursor);
    etcd.raw().put(&key("10.3.7.0-24"), value("7.7.7.7")).await;
    while next(&mut events).await != StoreEvent::Put(lease("10.3.7.0-24", "7.7.7.7").into()) {}

    proxy.freeze();
    store.node_moved();
    store.renew(&held.held, &attrs("1.2.3.5")).await.unwrap();
    etcd.raw().put(&key("10.3.8.0-24"), value("8.8.8.8")).await;
    loop {
        match events.recv().await.unwrap() {
            StoreEvent::Put(put) if put == lease("10.3.8.0-24", "8.8.8.8") => break,
            StoreEvent::Down(why) => panic!("nothing was away: {why}"),
            _ => {}
        }
    }
}
