//! What nodes do: acquire, renew, watch, and outlive their server.

use std::time::{Duration, SystemTime};

use flannel_lease::{Expiry, NetworkName};
use flannel_server::lease_state::Request;
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::{Claim, Cursor, StoreError, StoreEvent, StoredLease};

use crate::support::*;

#[tokio::test]
async fn a_node_acquires_renews_and_releases() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let store = server.remote();
    let text = store.config().await.unwrap().unwrap();
    assert_eq!(flannel_lease::NetworkConfig::parse(&text).unwrap(), config());
    let acquired = store.acquire(&config(), &claim(1)).await.unwrap();
    assert_eq!(acquired.snapshot.leases, std::slice::from_ref(&acquired.held.lease));
    let left = acquired.held.expiry.remaining(SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(86_300) && left <= Duration::from_secs(86_400), "{left:?}");
    let held = store.renew(&acquired.held, &attrs(1)).await.unwrap();
    assert_ne!(held.version, acquired.held.version);
    assert_eq!(store.snapshot().await.unwrap().leases.len(), 1);
    store.release(&held).await.unwrap();
    assert!(store.snapshot().await.unwrap().leases.is_empty());
    assert!(matches!(store.renew(&held, &attrs(1)).await, Err(StoreError::Lost { .. })));
    store.release(&held).await.unwrap();
}

#[tokio::test]
async fn a_node_asks_for_what_it_had_and_is_told_what_it_was_known_by() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let store = server.remote();
    let previous = Some(subnet("10.5.77.0-24"));
    let acquired = store.acquire(&config(), &Claim::new(attrs(1), previous)).await.unwrap();
    assert_eq!(Some(acquired.held.lease.subnet), previous);
    let announce = |known: Option<&flannel_lease::LeaseAttrs>| {
        let mut ours = attrs(1);
        ours.backend_type =
            format!("after {}", known.map_or("nothing", |known| &known.backend_type)).into();
        ours
    };
    let me = claim(1).claimant();
    let recalled = store.recall(&config(), &me).await.unwrap();
    let again = flannel_store::acquire(&store, &config(), &me, recalled, announce).await.unwrap();
    assert_eq!(again.held.lease.attrs.backend_type, "after vxlan".into());
    assert_eq!(Some(again.held.lease.subnet), previous);
}

#[tokio::test]
async fn a_lease_somebody_else_has_taken_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let store = server.remote();
    let mine = store.acquire(&config(), &claim(1)).await.unwrap().held;
    store.release(&mine).await.unwrap();
    let theirs = Claim::new(attrs(2), Some(mine.lease.subnet));
    store.acquire(&config(), &theirs).await.unwrap();
    match store.renew(&mine, &attrs(1)).await {
        Err(StoreError::Taken { by, .. }) => assert_eq!(by.attrs, attrs(2)),
        other => panic!("{other:?}"),
    }
    store.release(&mine).await.unwrap();
    assert_eq!(store.snapshot().await.unwrap().leases.len(), 1, "theirs is still there");
}

#[tokio::test]
async fn a_reservation_stays_one_for_its_node() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let of = subnet("10.5.9.0-24");
    let request = Request::Reserve { subnet: of, attrs: attrs(1) };
    server.embedded.ask(&NetworkName::default(), request).await.unwrap();
    let store = server.remote();
    let held = store.acquire(&config(), &claim(1)).await.unwrap().held;
    assert_eq!((held.lease.subnet, held.expiry), (of, Expiry::Never));
    assert_eq!(store.renew(&held, &attrs(1)).await.unwrap().expiry, Expiry::Never);
    store.release(&held).await.unwrap();
    assert_eq!(store.snapshot().await.unwrap().leases.len(), 1);
}

#[tokio::test]
async fn a_watch_tells_of_others_and_of_the_config() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let store = server.remote();
    let acquired = store.acquire(&config(), &claim(1)).await.unwrap();
    let mut events = store.watch(acquired.snapshot.cursor);
    assert_eq!(next(&mut events).await, StoreEvent::Put(acquired.held.lease.clone().into()));
    let other = server.remote().acquire(&config(), &claim(2)).await.unwrap().held;
    assert_eq!(next(&mut events).await, StoreEvent::Put(other.lease.clone().into()));
    store.release(&other).await.unwrap();
    assert_eq!(next(&mut events).await, StoreEvent::Gone(other.lease.subnet));
    let text = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#.to_owned();
    let request = Request::SetConfig { text, force: false };
    server.embedded.ask(&NetworkName::default(), request).await.unwrap();
    match next(&mut events).await {
        StoreEvent::Config(text) => assert!(text.contains("host-gw"), "{text}"),
        other => panic!("{other:?}"),
    }
    let mut from_nothing = store.watch(Cursor::BEGINNING);
    assert!(matches!(next(&mut from_nothing).await, StoreEvent::Config(_)));
    assert_eq!(
        next(&mut from_nothing).await,
        StoreEvent::Snapshot(vec![acquired.held.lease.into()])
    );
}

#[tokio::test]
async fn a_restart_of_the_server_costs_a_node_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let address = server.address;
    let store = server.remote();
    let acquired = store.acquire(&config(), &claim(1)).await.unwrap();
    let mut events = store.watch(acquired.snapshot.cursor);
    assert!(matches!(next(&mut events).await, StoreEvent::Put(_)));
    server.kill().await;
    assert!(matches!(next(&mut events).await, StoreEvent::Down(_)));
    match store.renew(&acquired.held, &attrs(1)).await {
        Err(error) => assert!(error.is_transient(), "{error}"),
        Ok(held) => panic!("nobody is there to renew it: {held:?}"),
    }
    let server = serve(dir.path(), plain_options(address.port())).await;
    let other = server.remote().acquire(&config(), &claim(2)).await.unwrap().held;
    assert_eq!(next(&mut events).await, StoreEvent::Up);
    assert_eq!(
        next(&mut events).await,
        StoreEvent::Put(other.lease.into()),
        "nothing is told twice"
    );
    let held = store.renew(&acquired.held, &attrs(1)).await.unwrap();
    assert_eq!(held.lease, acquired.held.lease);
}

#[tokio::test]
async fn nodes_win_over_a_server_with_an_older_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let backup = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let address = server.address;
    std::fs::copy(dir.path().join("leases.log"), backup.path().join("leases.log")).unwrap();
    let store = server.remote();
    let acquired = store.acquire(&config(), &claim(1)).await.unwrap();
    let mut events = store.watch(acquired.snapshot.cursor);
    assert!(matches!(next(&mut events).await, StoreEvent::Put(_)));
    server.kill().await;

    let server = serve(backup.path(), plain_options(address.port())).await;
    // It has got as far as the former one by now, with another story.
    let mut taken = Vec::new();
    for node in 10..20 {
        let acquired = server.remote().acquire(&config(), &claim(node)).await.unwrap();
        taken.push(acquired.held.lease.subnet);
    }
    let seen = loop {
        match next_change(&mut events).await {
            StoreEvent::Snapshot(leases) => break leases,
            StoreEvent::Config(_) => {}
            other => panic!("{other:?}"),
        }
    };
    let ours = |stored: &StoredLease| stored.lease.attrs == attrs(1);
    assert!(!seen.iter().any(ours), "the node sees that its lease is missing");
    assert!(matches!(
        store.renew(&acquired.held, &attrs(1)).await,
        Err(StoreError::Lost { .. }) | Err(StoreError::Taken { .. })
    ));
    let again = Claim::new(attrs(1), Some(acquired.held.lease.subnet));
    let held = store.acquire(&config(), &again).await.unwrap().held;
    // The watch may have come back before all of them had a lease.
    let was_free = !taken.contains(&acquired.held.lease.subnet);
    assert_eq!(held.lease.subnet == acquired.held.lease.subnet, was_free);
}

#[tokio::test]
async fn a_client_goes_to_the_next_server_when_one_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for _ in 0..4 {
        let store = remote(&[dead, server.address], |_| {});
        store.acquire(&config(), &claim(1)).await.unwrap();
        let mut events = store.watch(Cursor::BEGINNING);
        assert!(matches!(next_change(&mut events).await, StoreEvent::Config(_)));
    }
}

#[tokio::test]
async fn named_networks_are_apart() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let blue = remote(&[server.address], |o| o.network = "blue".parse().unwrap());
    assert_eq!(blue.config().await.unwrap(), None);
    let text = r#"{"Network":"10.9.0.0/16","Backend":{"Type":"vxlan"}}"#.to_owned();
    let request = Request::SetConfig { text: text.clone(), force: false };
    server.embedded.ask(&"blue".parse().unwrap(), request).await.unwrap();
    let config = flannel_lease::NetworkConfig::parse(&text).unwrap();
    let held = blue.acquire(&config, &claim(1)).await.unwrap().held;
    assert!(held.lease.subnet.to_string().starts_with("10.9."));
    assert!(server.remote().snapshot().await.unwrap().leases.is_empty());
}
