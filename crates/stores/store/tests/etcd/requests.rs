//! What operators ask of nodes, and what becomes of it.

use std::time::Duration;

use flannel_store::prelude::*;
use flannel_store::testing::EtcdServer;
use flannel_store::{
    MAX_STANDING_REQUESTS, NodeAnswer, NodeRequest, REQUEST_LIFETIME, Requests, StoreError,
};
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
    timeout(2 * REQUEST_LIFETIME, seen).await.expect("in time").expect("the store still tells");
}

#[tokio::test]
async fn what_an_operator_asks_is_heard_answered_changed_and_withdrawn_with_nothing_left() {
    let etcd = EtcdServer::start();
    let (operator, node) = (etcd.store(1), etcd.store(2));
    let mut heard = node.requests().follow();
    operator.requests().place(&request(1)).await.unwrap();
    until(&mut heard, &[request(1)]).await;
    let id = request(1).id;
    node.requests().answer(&id, &answer(1)).await.unwrap();
    operator.requests().place(&request(2)).await.unwrap();
    until(&mut heard, &[request(2)]).await;
    assert_eq!(
        operator.requests().answers(&id).await.unwrap(),
        [answer(1)],
        "it is the same request"
    );
    node.requests().answer(&id, &answer(2)).await.unwrap();
    assert_eq!(operator.requests().answers(&id).await.unwrap(), [answer(2)]);
    // Who comes later hears of it, too.
    until(&mut etcd.store(3).requests().follow(), &[request(2)]).await;

    operator.requests().withdraw(&id).await.unwrap();
    until(&mut heard, &[]).await;
    assert!(operator.requests().answers(&id).await.unwrap().is_empty());
    let late = node.requests().answer(&id, &answer(3)).await;
    assert!(matches!(late, Err(StoreError::Lost { .. })), "{late:?}");
    operator.requests().withdraw(&id).await.unwrap();
    let left = etcd.raw().list("/").await;
    assert!(
        left.iter().all(|key| !key.key.contains("/requests/") && !key.key.contains("/answers/"))
    );
}

#[tokio::test]
async fn what_an_operator_who_was_killed_has_asked_goes_by_itself_and_its_answers_too() {
    let etcd = EtcdServer::start();
    let (operator, node) = (etcd.store(1), etcd.store(2));
    let mut heard = node.requests().follow();
    let began = std::time::Instant::now();
    operator.requests().place(&request(1)).await.unwrap();
    until(&mut heard, &[request(1)]).await;
    node.requests().answer(&request(1).id, &answer(1)).await.unwrap();
    tokio::time::sleep(REQUEST_LIFETIME / 2).await;
    operator.requests().place(&request(1)).await.unwrap();
    until(&mut heard, &[]).await;
    assert!(began.elapsed() > REQUEST_LIFETIME, "placing it again has given it its life again");
    assert!(etcd.store(3).requests().answers(&request(1).id).await.unwrap().is_empty());
}

#[tokio::test]
async fn no_more_requests_stand_at_once_than_nodes_carry_out() {
    let etcd = EtcdServer::start();
    let operator = etcd.store(1);
    let numbered =
        |number: usize| NodeRequest { id: format!("r{number}").parse().unwrap(), ..request(1) };
    for number in 0..MAX_STANDING_REQUESTS {
        operator.requests().place(&numbered(number)).await.unwrap();
    }
    let refused = operator.requests().place(&numbered(9)).await.unwrap_err().to_string();
    assert!(refused.contains("stand in this network already"), "{refused}");
    operator.requests().place(&numbered(0)).await.expect("one that stands is placed again");
    // Whoever may write to etcd does not ask first.
    for number in 10..40 {
        let key = format!("{}/requests/w{number}", EtcdServer::PREFIX);
        etcd.raw()
            .put(
                &key,
                NodeRequest { id: format!("w{number}").parse().unwrap(), ..request(1) }.to_json(),
            )
            .await;
    }
    let mut heard = etcd.store(2).requests().follow();
    let seen = heard.wait_for(|now| !now.is_empty());
    assert_eq!(
        timeout(2 * REQUEST_LIFETIME, seen).await.expect("in time").unwrap().len(),
        MAX_STANDING_REQUESTS
    );
    operator.requests().withdraw(&numbered(0).id).await.unwrap();
}
