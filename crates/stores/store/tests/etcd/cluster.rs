//! Endpoints of two clusters, and another cluster where one was before.

use std::sync::{Arc, Mutex};

use flannel_store::prelude::*;
use flannel_store::testing::EtcdServer;
use flannel_store::{ClusterPin, EtcdOptions, EtcdStore, StoreError};

const CONFIG: &str = r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan"}}"#;

#[tokio::test]
async fn an_endpoint_of_another_cluster_is_neither_read_nor_written() {
    let (ours, theirs) = (EtcdServer::start(), EtcdServer::start());
    ours.store(1).set_config(CONFIG, false).await.unwrap();
    let learned = Arc::new(Mutex::new(None));
    let keep = {
        let learned = learned.clone();
        move |id| *learned.lock().unwrap() = Some(id)
    };
    let pin = |known, keep| ClusterPin::new(known, "remove the file".to_owned(), keep);
    let options = EtcdOptions { cluster: pin(None, keep.clone()), ..ours.options() };
    let first = EtcdStore::new(&options, None, 1).unwrap();
    assert_eq!(first.config().await.unwrap().as_deref(), Some(CONFIG));
    let known = *learned.lock().unwrap();
    assert!(known.is_some(), "a daemon keeps it for its next start");

    // Both in one list: whichever is asked first, ours is the one that counts.
    let endpoints = [theirs.options().endpoints, ours.options().endpoints].concat();
    for seed in 0..6 {
        let cluster = pin(known, keep.clone());
        let mixed = EtcdOptions { endpoints: endpoints.clone(), cluster, ..ours.options() };
        let store = EtcdStore::new(&mixed, None, seed).unwrap();
        assert_eq!(store.config().await.unwrap().as_deref(), Some(CONFIG));
    }
    // Theirs alone, where ours was before.
    let alone = EtcdOptions { cluster: pin(known, keep), ..theirs.options() };
    let store = EtcdStore::new(&alone, None, 1).unwrap();
    let refused = store.set_config(CONFIG, false).await.unwrap_err();
    assert!(matches!(refused, StoreError::OtherCluster { .. }), "{refused:?}");
    let said = refused.to_string();
    assert!(
        said.contains(&format!("{:x}", known.unwrap())) && said.contains("remove the file"),
        "{said}"
    );
    assert!(theirs.raw().list("/").await.is_empty(), "nothing was written there");
}
