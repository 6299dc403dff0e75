//! The server in front of etcd: several of them, side by side.

use flannel_server::StoreService;
use std::sync::Arc;
use std::time::Duration;

use flannel_server::Server;
use flannel_store::Cursor;
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::EtcdServer;
use flannel_store::{AnnouncedSince, StoreError, StoreEvent};
use tokio::time::timeout;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::secrets::Log;
use crate::support::*;

async fn server_on(etcd: &EtcdServer) -> std::net::SocketAddr {
    let service = StoreService::etcd(etcd.options()).unwrap();
    let server = Server::bind(plain_options(0)).await.unwrap();
    let address = server.address();
    tokio::spawn(async move { match server.run(Arc::new(service)).await {} });
    address
}

async fn until_config(store: &flannel_store::RemoteStore) {
    let ready = async {
        while !matches!(store.config().await, Ok(Some(_))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, ready).await.expect("the server follows etcd");
}

#[tokio::test]
async fn two_servers_serve_the_same_leases() {
    let etcd = EtcdServer::start();
    etcd.store(1).set_config(CONFIG, false).await.unwrap();
    let (one, two) = (server_on(&etcd).await, server_on(&etcd).await);
    let (here, there) = (remote(&[one], |_| {}), remote(&[two], |_| {}));
    until_config(&here).await;
    until_config(&there).await;

    let acquired = here.acquire(&config(), &claim(1)).await.unwrap();
    let mut events = there.watch(Cursor::BEGINNING);
    let seen = loop {
        match next_change(&mut events).await {
            StoreEvent::Snapshot(leases) if !leases.is_empty() => break leases[0].lease.clone(),
            StoreEvent::Put(stored) => break stored.lease,
            _ => {}
        }
    };
    assert_eq!(seen, acquired.held.lease);
    let renewed = there.renew(&acquired.held, &attrs(1)).await.unwrap();
    assert_ne!(renewed.version, acquired.held.version);
    let other = there.acquire(&config(), &claim(2)).await.unwrap().held;
    assert_ne!(other.lease.subnet, renewed.lease.subnet);
    assert!(
        matches!(next_change(&mut events).await, StoreEvent::Put(lease) if lease == other.lease)
    );
    let outdated = flannel_store::Held { version: flannel_lease::Version::new(1), ..other.clone() };
    match here.renew(&outdated, &attrs(1)).await {
        Err(StoreError::Taken { .. }) => {}
        other => panic!("{other:?}"),
    }
    here.release(&other).await.unwrap();
    assert_eq!(next_change(&mut events).await, StoreEvent::Gone(other.lease.subnet));

    let reserved = subnet_beside(acquired.held.lease.subnet);
    here.reserve(&reserved, &attrs(7)).await.unwrap();
    let held = there.acquire(&config(), &claim(7)).await.unwrap().held;
    assert_eq!((held.lease.subnet, held.expiry), (reserved, flannel_lease::Expiry::Never));
    let direct = etcd.store(2).list().await.unwrap();
    assert_eq!(direct.len(), 2, "it is all in etcd");
}

#[tokio::test]
async fn what_etcd_tells_is_told_on_without_asking_etcd_again() {
    const LEASES: u64 = 50;
    let etcd = EtcdServer::start();
    etcd.store(1).set_config(CONFIG, false).await.unwrap();
    let store = remote(&[server_on(&etcd).await], |_| {});
    until_config(&store).await;
    let mut events = store.watch(Cursor::BEGINNING);
    while !matches!(next(&mut events).await, StoreEvent::Snapshot(_)) {}
    let asked = || {
        let requests = etcd.requests();
        requests.get("Range").unwrap_or(&0) + requests.get("Txn").unwrap_or(&0)
    };
    let before = asked();
    for n in 0..LEASES {
        let key = format!("{}/subnets/10.5.{n}.0-24", EtcdServer::PREFIX);
        etcd.raw().put(&key, format!(r#"{{"PublicIP":"192.0.2.{n}"}}"#)).await;
        let event = timeout(WAIT_LIMIT, events.recv()).await.unwrap();
        let Some(StoreEvent::Put(stored)) = event else { panic!("{event:?}") };
        assert_eq!(stored.version, etcd.raw().get(&key).await.unwrap().version());
        let first = stored.since.map(AnnouncedSince::number);
        assert_eq!(first, Some(stored.version.number()), "it was written once");
        assert!(stored.reserved, "it has no end");
    }
    // One for each is this test's own; now and then the service looks for new networks.
    let asked = asked() - before - LEASES;
    assert!(asked < LEASES / 2, "{asked} requests for {LEASES} events");
}

#[tokio::test]
async fn a_client_moves_from_one_server_to_the_other() {
    let etcd = EtcdServer::start();
    etcd.store(1).set_config(CONFIG, false).await.unwrap();
    let service = StoreService::etcd(etcd.options()).unwrap();
    let server = Server::bind(plain_options(0)).await.unwrap();
    let first = server.address();
    let task = tokio::spawn(async move { match server.run(Arc::new(service)).await {} });
    let second = server_on(&etcd).await;
    until_config(&remote(&[first], |_| {})).await;
    until_config(&remote(&[second], |_| {})).await;
    let store = remote(&[first, second], |_| {});
    let acquired = store.acquire(&config(), &claim(1)).await.unwrap();
    let mut events = store.watch(acquired.snapshot.cursor);
    task.abort();
    let other = remote(&[second], |_| {}).acquire(&config(), &claim(2)).await.unwrap().held;
    let told = async {
        loop {
            match next_change(&mut events).await {
                StoreEvent::Put(lease) if lease == other.lease => return,
                StoreEvent::Snapshot(leases)
                    if leases.iter().any(|stored| *stored == other.lease) =>
                {
                    return;
                }
                _ => {}
            }
        }
    };
    timeout(WAIT_LIMIT, told).await.expect("it hears of the other, wherever it listens");
    store.renew(&acquired.held, &attrs(1)).await.unwrap();
}

#[tokio::test]
async fn leases_move_to_etcd_and_back_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let from = server.remote();
    // Before any node takes it by chance.
    from.reserve(&subnet("10.5.9.0-24"), &attrs(9)).await.unwrap();
    for node in 1..6 {
        from.acquire(&config(), &claim(node)).await.unwrap();
    }
    let etcd = EtcdServer::start();
    let to = etcd.store(1);
    to.set_config(&from.config_as_written().await.unwrap().unwrap(), false).await.unwrap();
    let leases = from.list().await.unwrap();
    for held in &leases {
        to.import(held).await.unwrap();
    }
    let back = tempfile::tempdir().unwrap();
    let again = serve_default(back.path()).await;
    for held in to.list().await.unwrap() {
        again.remote().import(&held).await.unwrap();
    }
    let moved = again.remote().list().await.unwrap();
    assert_eq!(moved.len(), 6);
    for (before, after) in leases.iter().zip(&moved) {
        assert_eq!(before.lease, after.lease);
        let left = |held: &flannel_store::Held| held.expiry.remaining(std::time::SystemTime::now());
        match (left(before), left(after)) {
            (None, None) => {}
            (Some(a), Some(b)) => assert!(a.abs_diff(b) < Duration::from_secs(10), "{a:?} {b:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_of_a_full_etcd_says_that_it_is_full() {
    let etcd = EtcdServer::start_small(1 << 20);
    let store = etcd.store(1);
    store.set_config(CONFIG, false).await.unwrap();
    let here = remote(&[server_on(&etcd).await], |_| {});
    until_config(&here).await;
    let large = format!("{CONFIG}{}", " ".repeat(1_200_000));
    store.set_config(&large, false).await.unwrap_err();
    let error = here.reserve(&subnet("10.5.9.0-24"), &attrs(9)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("database space exceeded") && !text.contains("overlaps"), "{text}");
}

#[tokio::test]
async fn what_etcd_holds_already_is_named_by_the_server() {
    let etcd = EtcdServer::start();
    etcd.store(1).set_config(CONFIG, false).await.unwrap();
    let here = remote(&[server_on(&etcd).await], |_| {});
    until_config(&here).await;
    let has = here.acquire(&config(), &claim(1)).await.unwrap().held.lease.subnet;
    let other = subnet_beside(has);
    let refused = |result: Result<(), StoreError>| result.unwrap_err().to_string();
    let text = refused(here.reserve(&other, &attrs(1)).await);
    assert!(text.contains(&format!("192.0.2.1 has the lease {has}")), "{text}");
    let text = refused(here.reserve(&has, &attrs(2)).await);
    assert!(text.contains("belongs to another node, at 192.0.2.1"), "{text}");
    for text in [refused(here.revoke(&other).await), refused(here.unreserve(&other).await)] {
        assert!(
            text.contains(&format!("there is no lease {other:#}; `flannelctl leases`")),
            "{text}"
        );
    }
}

#[tokio::test]
async fn that_the_networks_in_etcd_cannot_be_listed_is_said_once_and_so_is_the_end_of_it() {
    let log = Log::default();
    let _listening =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let said = |words: &str| log.0.lock().unwrap().matches(words).count();
    let mut etcd = EtcdServer::start();
    etcd.kill();
    let _service = StoreService::etcd(etcd.options()).unwrap();
    let until = async |words: &str| {
        let told = async {
            while said(words) == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WAIT_LIMIT, told).await.unwrap_or_else(|_| panic!("not said: {words}"));
    };
    until("Cannot list the networks in etcd: ").await;
    assert!(said(&etcd.endpoint()) > 0);
    tokio::time::sleep(Duration::from_secs(3)).await;
    etcd.restart();
    until("Listing the networks in etcd works again").await;
    assert_eq!(said("Cannot list the networks in etcd: "), 1);
}
