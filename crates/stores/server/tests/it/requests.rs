//! What operators ask of nodes: who may ask, who hears it, who may answer.

use std::time::Duration;

use flannel_server::{Options, StoreService};
use flannel_store::prelude::*;
use flannel_store::remote::hash_token;
use flannel_store::testing::{AcquireAs as _, EtcdServer};
use flannel_store::{Cursor, NodeAnswer, NodeRequest, RemoteStore, Requests, Secret, StoreError};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::support::*;

const ONE: &str = "the-token-of-node-one";
const TWO: &str = "the-token-of-node-two";
const READER: &str = "a-token-for-reading";
const BOSS: &str = "the-operators-token";

fn request(nodes: Vec<flannel_lease::Subnet>) -> NodeRequest {
    NodeRequest {
        id: "r1".parse().unwrap(),
        kind: "test".to_owned(),
        nodes,
        limit: Duration::from_secs(60),
        body: json!({"Port": 7}),
    }
}

async fn until(heard: &mut watch::Receiver<Requests>, wanted: &[NodeRequest]) {
    let seen = heard.wait_for(|now| **now == *wanted);
    timeout(WAIT_LIMIT, seen).await.expect("in time").expect("the store still tells");
}

#[tokio::test]
async fn operators_ask_nodes_hear_it_with_their_events_and_answer_for_themselves_alone() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let lines = [
        (ONE, "one 192.0.2.1"),
        (TWO, "two 192.0.2.2"),
        (READER, "reader read"),
        (BOSS, "boss admin"),
    ];
    let lines: String =
        lines.iter().map(|(token, rest)| format!("{} {rest}\n", hash_token(token))).collect();
    std::fs::write(&tokens, lines).unwrap();
    let server = serve(dir.path(), Options { tokens: Some(tokens), ..plain_options(0) }).await;
    set_config(&server).await;
    let with = |token: &str| -> RemoteStore {
        remote(&[server.address], |options| options.token = Some(Secret::new(token)))
    };
    let (one, two, boss, reader) = (with(ONE), with(TWO), with(BOSS), with(READER));
    let first = one.acquire(&config(), &claim(1)).await.unwrap().held.lease.subnet;
    let second = two.acquire(&config(), &claim(2)).await.unwrap().held.lease.subnet;
    let _events = (one.watch(Cursor::BEGINNING), reader.watch(Cursor::BEGINNING));
    let mut heard = one.requests().follow();

    let asked = request(vec![first]);
    for nobody in [&one, &reader] {
        for refused in [
            nobody.requests().place(&asked).await,
            nobody.requests().answers(&asked.id).await.map(drop),
            nobody.requests().withdraw(&asked.id).await,
        ] {
            assert!(matches!(refused, Err(StoreError::Denied { .. })), "{refused:?}");
        }
    }
    boss.requests().place(&asked).await.unwrap();
    until(&mut heard, std::slice::from_ref(&asked)).await;
    assert!(reader.requests().follow().borrow().is_empty(), "who only reads is no node");

    let of = |node| NodeAnswer { node, body: json!("fine") };
    one.requests().answer(&asked.id, &of(first)).await.unwrap();
    let foreign = two.requests().answer(&asked.id, &of(first)).await;
    assert!(matches!(foreign, Err(StoreError::Denied { .. })), "{foreign:?}");
    let unasked = two.requests().answer(&asked.id, &of(second)).await;
    assert!(matches!(unasked, Err(StoreError::Lost { .. })), "{unasked:?}");
    assert_eq!(boss.requests().answers(&asked.id).await.unwrap(), [of(first)]);

    boss.requests().withdraw(&asked.id).await.unwrap();
    until(&mut heard, &[]).await;
    assert!(boss.requests().answers(&asked.id).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_server_in_front_of_etcd_passes_on_what_is_asked_at_another_one() {
    let etcd = EtcdServer::start();
    let options = || etcd.options();
    let dir = tempfile::tempdir().unwrap();
    let serve = async || {
        let server = flannel_server::Server::bind(plain_options(0)).await.unwrap();
        let address = server.address();
        let service = std::sync::Arc::new(StoreService::etcd(options()).unwrap());
        tokio::spawn(async move { match server.run(service).await {} });
        address
    };
    let (here, there) = (serve().await, serve().await);
    let (operator, node) = (remote(&[here], |_| {}), remote(&[there], |_| {}));
    operator.set_config(CONFIG, false).await.unwrap();
    let config = flannel_lease::NetworkConfig::parse(CONFIG).unwrap();
    let subnet = loop {
        match node.acquire(&config, &claim(1)).await {
            Ok(acquired) => break acquired.held.lease.subnet,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let _events = node.watch(Cursor::BEGINNING);
    let mut heard = node.requests().follow();
    let asked = request(vec![subnet]);
    operator.requests().place(&asked).await.unwrap();
    until(&mut heard, std::slice::from_ref(&asked)).await;
    let answer = NodeAnswer { node: subnet, body: json!("fine") };
    node.requests().answer(&asked.id, &answer).await.unwrap();
    assert_eq!(operator.requests().answers(&asked.id).await.unwrap(), [answer]);
    operator.requests().withdraw(&asked.id).await.unwrap();
    until(&mut heard, &[]).await;
    drop(dir);
}
