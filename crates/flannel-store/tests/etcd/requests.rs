//! What operators ask of nodes, and what becomes of it.

use std::time::Duration;

use flannel_store::testing::EtcdServer;
use flannel_store::{Admin as _, LIFE, NodeAnswer, NodeRequest, Requests, Store as _, StoreError};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

fn request(body: i32) -> NodeRequest {
    NodeRequest {
        id: "r1".parse().unwrap(),
        kind: "test".to_owned(),
        nodes: vec!["10.3.7.0-24".parse().unwrap()],
        limit: Duration::from_secs(60),
        body: json!(body),
    }
}

fn answer(body: i32) -> NodeAnswer {
    NodeAnswer { node: "10.3.7.0-24".parse().unwrap(), body: json!(body) }
}

async fn until(heard: &mut watch::Receiver<Requests>, wanted: &[NodeRequest]) {
    let seen = heard.wait_for(|now| **now == *wanted);
    timeout(2 * LIFE, seen).await.expect("in time").expect("the store still tells");
}

#[tokio::test]
async fn what_an_operator_asks_is_heard_answered_changed_and_withdrawn_with_nothing_left() {
    let etcd = EtcdServer::start();
    let (operator, node) = (etcd.store(1), etcd.store(2));
    let mut heard = node.requests();
    operator.place(&request(1)).await.unwrap();
    until(&mut heard, &[request(1)]).await;
    let id = request(1).id;
    node.answer(&id, &answer(1)).await.unwrap();
    operator.place(&request(2)).await.unwrap();
    until(&mut heard, &[request(2)]).await;
    assert_eq!(operator.answers(&id).await.unwrap(), [answer(1)], "it is the same request");
    node.answer(&id, &answer(2)).await.unwrap();
    assert_eq!(operator.answers(&id).await.unwrap(), [answer(2)]);
    // Who comes later hears of it, too.
    until(&mut etcd.store(3).requests(), &[request(2)]).await;

    operator.withdraw(&id).await.unwrap();
    until(&mut heard, &[]).await;
    assert!(operator.answers(&id).await.unwrap().is_empty());
    let late = node.answer(&id, &answer(3)).await;
    assert!(matches!(late, Err(StoreError::Lost { .. })), "{late:?}");
    operator.withdraw(&id).await.unwrap();
    let left = etcd.raw().list("/").await;
    assert!(
        left.iter().all(|key| !key.key.contains("/requests/") && !key.key.contains("/answers/"))
    );
}

#[tokio::test]
async fn what_an_operator_who_was_killed_has_asked_goes_by_itself_and_its_answers_too() {
    let etcd = EtcdServer::start();
    let (operator, node) = (etcd.store(1), etcd.store(2));
    let mut heard = node.requests();
    let began = std::time::Instant::now();
    operator.place(&request(1)).await.unwrap();
    until(&mut heard, &[request(1)]).await;
    node.answer(&request(1).id, &answer(1)).await.unwrap();
    tokio::time::sleep(LIFE / 2).await;
    operator.place(&request(1)).await.unwrap();
    until(&mut heard, &[]).await;
    assert!(began.elapsed() > LIFE, "placing it again has given it its life again");
    assert!(etcd.store(3).answers(&request(1).id).await.unwrap().is_empty());
}
