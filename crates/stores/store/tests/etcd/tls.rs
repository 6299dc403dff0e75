//! Encrypted connections.

use std::fs;

use flannel_store::prelude::*;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::{EtcdServer, ServerTls};
use flannel_store::{EtcdOptions, EtcdStore, StoreError};
use tempfile::tempdir;

use crate::certificates::Authority;
use crate::common::*;

fn store(options: &EtcdOptions) -> EtcdStore {
    EtcdStore::new(options, None, 1).unwrap()
}

#[tokio::test]
async fn defect_17_a_private_ca_is_enough_when_etcd_asks_for_no_client_certificate() {
    let directory = tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let etcd = EtcdServer::start_with(Some(authority.server()));
    let options = EtcdOptions { ca: Some(authority.ca()), ..etcd.options() };

    let with_ca = store(&options);
    let acquired = with_ca.acquire(&v4_network(), &claim("1.2.3.4")).await.unwrap();
    let mut events = with_ca.watch(acquired.snapshot.cursor);
    assert_eq!(next(&mut events).await, flannel_store::StoreEvent::Put(acquired.held.lease.into()));

    // host:port without a scheme means TLS, too, when there is a CA file.
    let bare = etcd.endpoint().replace("https://", "");
    let bare = EtcdOptions { endpoints: vec![bare], ..options };
    assert_eq!(store(&bare).snapshot().await.unwrap().leases.len(), 1);
}

#[tokio::test]
async fn a_server_with_a_certificate_of_someone_else_is_not_trusted() {
    let directory = tempdir().unwrap();
    let (ours, theirs) =
        (Authority::new(directory.path(), "ours"), Authority::new(directory.path(), "theirs"));
    let etcd = EtcdServer::start_with(Some(theirs.server()));

    for ca in [Some(ours.ca()), None] {
        let error = store(&EtcdOptions { ca, ..etcd.options() }).config().await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "the cause is told: {error}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown_when_there_is_one() {
    let directory = tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let tls = ServerTls { client_ca: Some(authority.ca()), ..authority.server() };
    let etcd = EtcdServer::start_with(Some(tls));
    let (cert, key) = authority.client();
    let without = EtcdOptions { ca: Some(authority.ca()), ..etcd.options() };
    let with = EtcdOptions { cert: Some(cert), key: Some(key), ..without.clone() };

    assert_eq!(store(&with).config().await.unwrap(), None);
    let error = store(&without).config().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn replaced_certificate_files_are_used_for_the_next_connection() {
    let directory = tempdir().unwrap();
    let (old, new) =
        (Authority::new(directory.path(), "old"), Authority::new(directory.path(), "new"));
    let trusted = directory.path().join("trusted.pem");
    fs::copy(old.ca(), &trusted).unwrap();
    let server = old.server();
    let mut etcd = EtcdServer::start_with(Some(server.clone()));
    let store = store(&EtcdOptions { ca: Some(trusted.clone()), ..etcd.options() });
    assert_eq!(store.config().await.unwrap(), None);

    let renewed = new.server();
    fs::copy(&renewed.cert, &server.cert).unwrap();
    fs::copy(&renewed.key, &server.key).unwrap();
    etcd.restart();
    assert!(store.config().await.is_err());
    fs::copy(new.ca(), &trusted).unwrap();
    assert_eq!(store.config().await.unwrap(), None);
}

#[tokio::test]
async fn http_means_plain_text_even_when_there_are_certificate_files() {
    let directory = tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let (cert, key) = authority.client();
    let etcd = EtcdServer::start();
    let options = EtcdOptions {
        ca: Some(authority.ca()),
        cert: Some(cert),
        key: Some(key),
        ..etcd.options()
    };
    assert_eq!(store(&options).config().await.unwrap(), None);
}

#[tokio::test]
async fn a_ca_file_without_a_certificate_is_told_at_start() {
    let directory = tempdir().unwrap();
    let empty = directory.path().join("empty.pem");
    fs::write(&empty, "nothing").unwrap();
    let options = EtcdOptions {
        endpoints: vec!["https://127.0.0.1:2379".to_owned()],
        ca: Some(empty.clone()),
        ..EtcdOptions::default()
    };
    let error = EtcdStore::new(&options, None, 1).unwrap_err();
    assert!(error.to_string().contains(empty.to_str().unwrap()), "{error}");
}
