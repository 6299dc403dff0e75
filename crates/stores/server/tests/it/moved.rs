//! A node whose address has changed shows which lease is its own: by the version it last wrote, and where
//! the server knows its clients, by its name.

use flannel_server::Options;
use flannel_store::prelude::*;
use flannel_store::remote::hash_token;
use flannel_store::testing::AcquireAs as _;
use flannel_store::{Claim, Held, RemoteStore, Secret, StoreError};

use crate::support::*;

const NODE: &str = "node-token-of-some-length";
const OTHER: &str = "another-nodes-token";

async fn serve_known(dir: &std::path::Path, pki: &Pki) -> Running {
    let file = pki.file("tokens");
    let (node, other) = (hash_token(NODE), hash_token(OTHER));
    std::fs::write(&file, format!("{node} node-1 any\n{other} node-2 any\n")).unwrap();
    let options =
        Options { tls: Some(pki.server_files(false)), tokens: Some(file), ..plain_options(0) };
    let running = serve(dir, options).await;
    set_config(&running).await;
    running
}

fn with_token(running: &Running, pki: &Pki, token: &str) -> RemoteStore {
    remote(&[running.address], |o| {
        o.ca = Some(pki.file("ca.pem"));
        o.token = Some(Secret::new(token));
    })
}

/// The lease as whoever looks at the table sees it.
async fn listed(store: &RemoteStore, lease: &Held) -> Held {
    let table = store.recall(&config(), &claim(99).claimant()).await.unwrap();
    table.lease(&lease.lease.subnet).expect("it is there").held(std::time::SystemTime::now())
}

#[tokio::test]
async fn a_lease_is_looked_at_and_moved_by_the_version_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let node = server.remote();
    let held = node.acquire(&config(), &claim(1)).await.unwrap().held;
    let found = listed(&node, &held).await;
    assert_eq!((found.version, &found.lease), (held.version, &held.lease));

    let moved = node.renew(&found, &attrs(7)).await.unwrap();
    assert_eq!((moved.lease.subnet, &moved.lease.attrs), (held.lease.subnet, &attrs(7)));
    let late = node.renew(&held, &attrs(8)).await;
    assert!(matches!(late, Err(StoreError::Taken { .. })), "{late:?}");
}

#[tokio::test]
async fn a_node_with_a_token_is_itself_at_another_address_and_nobody_else_is() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let server = serve_known(dir.path(), &pki).await;
    let (node, other) = (with_token(&server, &pki, NODE), with_token(&server, &pki, OTHER));
    let held = node.acquire(&config(), &claim(1)).await.unwrap().held;
    let found = listed(&other, &held).await;
    let stolen = other.renew(&found, &attrs(2)).await;
    assert!(matches!(stolen, Err(StoreError::Denied { .. })), "{stolen:?}");
    let claim = Claim::new(attrs(2), Some(held.lease.subnet));
    let theirs = other.acquire(&config(), &claim).await.unwrap().held;
    assert_ne!(theirs.lease.subnet, held.lease.subnet);

    let found = listed(&node, &held).await;
    let moved = node.renew(&found, &attrs(7)).await.unwrap();
    assert_eq!(moved.lease.subnet, held.lease.subnet);
}
