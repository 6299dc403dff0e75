//! Hearing of changes.

use std::time::Duration;

use flannel_lease::{Change, LeaseTable};
use flannel_store::Cursor;
use flannel_store::StoreEvent::{Config, ConfigGone, Gone, Put, Snapshot};
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::EtcdServer;
use tokio::time::timeout;

use crate::common::*;

#[tokio::test]
async fn leases_that_come_change_and_go_are_told_in_order() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    raw.put(&key("10.3.1.0-24"), value("2.2.2.2")).await;
    raw.delete(&key("10.3.1.0-24")).await;
    raw.put(&(v6_subnets() + "fd00:3::-64"), value("3.3.3.3")).await;

    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(next(&mut events).await);
    }
    // etcd promises no order between two directories.
    let v6 = Put(lease("fd00:3::-64", "3.3.3.3").into());
    let place = told.iter().position(|event| *event == v6).expect("the lease of the other one");
    told.remove(place);
    let first = Put(lease("10.3.1.0-24", "1.1.1.1").into());
    let second = Put(lease("10.3.1.0-24", "2.2.2.2").into());
    assert_eq!(told, [first, second, Gone(subnet("10.3.1.0-24"))]);
}

#[tokio::test]
async fn what_happened_between_the_snapshot_and_the_watch_is_told() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let cursor = store.snapshot().await.unwrap().cursor;
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    let mut events = store.watch(cursor);
    assert_eq!(next(&mut events).await, Put(lease("10.3.1.0-24", "1.1.1.1").into()));
}

#[tokio::test]
async fn a_lease_that_expires_is_gone() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    raw.put_with_lease(&key("10.3.1.0-24"), value("1.1.1.1"), raw.grant(1).await).await;
    assert_eq!(next(&mut events).await, Put(lease("10.3.1.0-24", "1.1.1.1").into()));
    assert_eq!(next(&mut events).await, Gone(subnet("10.3.1.0-24")));
}

#[tokio::test]
async fn the_own_lease_is_told_like_any_other_and_the_table_ignores_it() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let acquired = store.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let own = acquired.held.lease.clone();
    let mut table = LeaseTable::new();
    table.set_own(Some(own.subnet));
    assert_eq!(table.snapshot(acquired.snapshot.leases.into_iter().map(|stored| stored.lease)), []);

    let mut events = store.watch(acquired.snapshot.cursor);
    assert_eq!(next(&mut events).await, Put(own.clone().into()), "made");
    store.renew(&acquired.held, &own.attrs).await.unwrap();
    assert_eq!(next(&mut events).await, Put(own.clone().into()), "renewed");
    assert_eq!(table.put(own.clone()), None);
    raw.delete(&key(&own.subnet.to_string())).await;
    assert_eq!(next(&mut events).await, Gone(own.subnet), "deleted");
}

#[tokio::test]
async fn the_config_is_told_when_it_changes_and_when_it_goes() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    raw.put(&config_key(), "{}").await;
    assert_eq!(next(&mut events).await, Config("{}".to_owned()));
    raw.put(&config_key(), vec![0xff]).await;
    raw.delete(&config_key()).await;
    assert_eq!(next(&mut events).await, ConfigGone, "what is not text is skipped");
}

#[tokio::test]
async fn a_config_that_changed_while_the_subnet_was_acquired_is_told() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    raw.put(&config_key(), r#"{"Network":"10.3.0.0/16"}"#).await;
    let config = network(&store.config().await.unwrap().unwrap());
    raw.put(&config_key(), r#"{"Network":"10.4.0.0/16"}"#).await;
    let acquired = store.acquire(&config, &claim("1.2.3.4")).await.unwrap();

    let mut events = store.watch(acquired.snapshot.cursor);
    let changed = Config(r#"{"Network":"10.4.0.0/16"}"#.to_owned());
    until(&mut events, |event| *event == changed).await;
}

#[tokio::test]
async fn a_watch_from_zero_begins_with_everything() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    let mut events = store.watch(Cursor::BEGINNING);
    assert_eq!(next(&mut events).await, ConfigGone);
    assert_eq!(next(&mut events).await, Snapshot(vec![lease("10.3.1.0-24", "1.1.1.1").into()]));
}

#[tokio::test]
async fn defect_1_keys_and_values_that_cannot_be_read_are_skipped_and_no_peer_is_lost() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    let snapshot = store.snapshot().await.unwrap();
    let mut table = LeaseTable::new();
    table.snapshot(snapshot.leases.into_iter().map(|stored| stored.lease));
    let mut events = store.watch(snapshot.cursor);

    raw.put(&key("junk"), value("1.1.1.1")).await;
    raw.put(&key("10.3.9.0-24/deeper"), value("1.1.1.1")).await;
    raw.put(&key("10.3.2.0-24"), "{").await;
    raw.put(&key("10.3.1.0-24"), r#"{"PublicIP":"one"}"#).await;
    raw.delete(&key("junk")).await;
    raw.put(&key("10.3.3.0-24"), value("3.3.3.3")).await;

    assert_eq!(next(&mut events).await, Put(lease("10.3.3.0-24", "3.3.3.3").into()));
    assert_eq!(
        table.put(lease("10.3.3.0-24", "3.3.3.3")),
        Some(Change::New(lease("10.3.3.0-24", "3.3.3.3")))
    );
    assert_eq!(table.len(), 2);
}

#[tokio::test]
async fn defect_1_a_lease_whose_value_became_bad_goes_on_as_it_was() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    let good = vec![lease("10.3.1.0-24", "1.1.1.1")];
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    raw.put(&key("10.3.1.0-24"), "{").await;
    raw.put(&key("10.3.1.0-24"), "{{").await;
    raw.put(&config_key(), "{}").await;
    until(&mut events, |event| *event == Config("{}".to_owned())).await;

    assert_eq!(store.snapshot().await.unwrap().leases, good);
    raw.compact().await;
    assert_eq!(store.snapshot().await.unwrap().leases, good, "remembered when etcd forgets");

    raw.put(&key("10.3.1.0-24"), value("2.2.2.2")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.3.1.0-24", "2.2.2.2").into()));
    assert_eq!(store.snapshot().await.unwrap().leases, [lease("10.3.1.0-24", "2.2.2.2")]);
}

#[tokio::test]
async fn a_node_that_starts_later_finds_the_last_good_value_in_etcds_history() {
    let etcd = EtcdServer::start();
    let raw = etcd.raw();
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    raw.put(&key("10.3.1.0-24"), "{").await;
    assert_eq!(etcd.store(1).snapshot().await.unwrap().leases, [lease("10.3.1.0-24", "1.1.1.1")]);
    raw.compact().await;
    assert!(etcd.store(2).snapshot().await.unwrap().leases.is_empty());
}

#[tokio::test]
async fn defect_16_a_dual_stack_key_is_not_taken_for_the_one_it_begins_with() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    raw.put(&key("10.3.1.0-24&fd00:1::-64"), value("1.1.1.1")).await;
    raw.delete(&key("10.3.1.0-24&fd00:1::-64")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.3.1.0-24", "1.1.1.1").into()));
    assert_eq!(next(&mut events).await, Put(lease("10.3.1.0-24&fd00:1::-64", "1.1.1.1").into()));
    assert_eq!(next(&mut events).await, Gone(subnet("10.3.1.0-24&fd00:1::-64")));
}

#[tokio::test]
async fn a_watch_from_below_the_compaction_begins_with_everything_and_goes_on_live() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let cursor = store.snapshot().await.unwrap().cursor;
    raw.put(&config_key(), "{}").await;
    raw.put(&key("10.3.1.0-24"), value("1.1.1.1")).await;
    raw.put(&key("10.3.2.0-24"), value("2.2.2.2")).await;
    raw.delete(&key("10.3.1.0-24")).await;
    raw.compact().await;

    let mut events = store.watch(cursor);
    let whole = until(&mut events, |event| matches!(event, Snapshot(_))).await;
    assert!(whole.contains(&Config("{}".to_owned())), "{whole:?}");
    assert_eq!(whole.last(), Some(&Snapshot(vec![lease("10.3.2.0-24", "2.2.2.2").into()])));
    raw.put(&key("10.3.4.0-24"), value("4.4.4.4")).await;
    assert_eq!(next(&mut events).await, Put(lease("10.3.4.0-24", "4.4.4.4").into()));
}

#[tokio::test]
async fn defect_7_a_watch_whose_receiver_is_dropped_ends_even_while_it_waits_to_deliver() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let cursor = store.snapshot().await.unwrap().cursor;
    // More than the queue holds.
    let entry = |n: u32| (key(&format!("10.{}.{}.0-24", n / 256, n % 256)), value("1.1.1.1"));
    raw.put_all(&(0..3_000).map(entry).collect::<Vec<_>>()).await;
    let mut events = store.watch(cursor);
    next(&mut events).await;
    eventually("the watch is open", || async { etcd.open_watches() > 0 }).await;
    drop(events);
    eventually("the watch is closed", || async { etcd.open_watches() == 0 }).await;
}

#[tokio::test]
async fn a_slow_reader_misses_nothing() {
    let etcd = EtcdServer::start();
    let (store, raw) = (etcd.store(1), etcd.raw());
    let mut events = store.watch(store.snapshot().await.unwrap().cursor);
    let entry = |n: u32| (key(&format!("10.{}.{}.0-24", n / 256, n % 256)), value("1.1.1.1"));
    let entries: Vec<_> = (0..3_000).map(entry).collect();
    raw.put_all(&entries).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    for (key, _) in &entries {
        let Put(stored) = next(&mut events).await else { panic!("a put") };
        assert_eq!(subnets() + &stored.lease.subnet.to_string(), *key);
    }
    assert!(timeout(Duration::from_millis(200), events.recv()).await.is_err(), "and nothing twice");
}
