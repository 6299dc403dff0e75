//! The machine's clock is set while the server runs: leases go on as if nothing had happened.

use flannel_lease::LEASE_TTL;
use flannel_server::{Embedded, EmbeddedStore, LeaseService as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flannel_lease::{Expiry, NetworkName};
use flannel_server::Server;
use flannel_server::lease_state::Request;
use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;

use crate::support::*;

const DAY: u64 = 86_400_000;

/// A server that was started when the clock said so, and has not looked at it since.
async fn started_at(dir: &std::path::Path, wall: u64) -> (Embedded, std::net::SocketAddr) {
    let embedded = Embedded::open_at(dir, 1, wall).unwrap();
    let request = Request::SetConfig { text: CONFIG.to_owned(), force: false };
    embedded.ask(&NetworkName::default(), request).await.unwrap();
    let server = Server::bind(plain_options(0)).await.unwrap();
    let address = server.address();
    let service = Arc::new(embedded.clone());
    tokio::spawn(async move { match server.run(service).await {} });
    (embedded, address)
}

fn is_a_day(expiry: Expiry, what: &str) {
    let left = expiry.remaining(SystemTime::now()).expect("it ends");
    let close = LEASE_TTL - Duration::from_secs(30)..=LEASE_TTL + Duration::from_secs(1);
    assert!(close.contains(&left), "{what}: {left:?}");
}

#[tokio::test]
async fn a_lease_has_a_day_whatever_the_machines_clock_was_set_to() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    for (what, wall) in [
        ("as it was", now),
        ("set forward ten days", now - 10 * DAY),
        ("set back twenty years", now + 20 * 365 * DAY),
        ("set from 1970", 0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (embedded, at) = started_at(dir.path(), wall).await;
        let node = remote(&[at], |_| {});
        let held = node.acquire(&config(), &claim(1)).await.unwrap().held;
        is_a_day(held.expiry, what);
        is_a_day(node.renew(&held, &attrs(1)).await.unwrap().expiry, what);
        // What an operator sees, and what is moved to another store.
        is_a_day(node.list().await.unwrap()[0].expiry, what);
        // The node that serves.
        let own = EmbeddedStore::new(embedded, NetworkName::default());
        let held = own.acquire(&config(), &claim(2)).await.unwrap().held;
        is_a_day(held.expiry, what);
        is_a_day(own.renew(&held, &attrs(2)).await.unwrap().expiry, what);
    }
}

#[tokio::test]
async fn a_lease_keeps_what_it_had_left_over_a_restart_with_another_clock() {
    let now = 1_800_000_000_000;
    let dir = tempfile::tempdir().unwrap();
    for (what, wall) in
        [("first", now), ("later", now + 400 * DAY), ("earlier", now - 400 * DAY), ("1970", 0)]
    {
        let embedded = loop {
            // A former one may take a moment to let go of the directory.
            match Embedded::open_at(dir.path(), 1, wall) {
                Ok(embedded) => break embedded,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let network = NetworkName::default();
        let watch_log = embedded.watch_logs().get_or_create(&network);
        if what == "first" {
            let request = Request::SetConfig { text: CONFIG.to_owned(), force: false };
            embedded.ask(&network, request).await.unwrap();
            EmbeddedStore::new(embedded.clone(), network)
                .acquire(&config(), &claim(1))
                .await
                .unwrap();
        }
        let (_, entry) = watch_log.find(|_, _| true).expect("the lease is there");
        let left = entry.expires.unwrap() - embedded.now();
        assert!((DAY - 30_000..=DAY).contains(&left), "{what}: {left}");
    }
}
