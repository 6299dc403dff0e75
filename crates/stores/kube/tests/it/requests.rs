//! What operators ask of nodes, in annotations of real Nodes.

use std::time::Duration;

use flannel_kube::api::Api;
use flannel_kube::client::{CORE, Collection};
use flannel_kube::testing::{ApiServer, NodeSpec};
use flannel_kube::{KubeNodes, KubeOperator, KubeOptions, KubeStore};
use flannel_store::prelude::*;
use flannel_store::{Cursor, NodeAnswer, NodeRequest, REQUEST_LIFETIME, Requests, StoreError};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::support::prefix;

fn request(body: i32) -> NodeRequest {
    NodeRequest {
        id: "r1".parse().unwrap(),
        kind: "test".to_owned(),
        nodes: vec!["10.244.1.0-24".parse().unwrap(), "10.244.2.0-24".parse().unwrap()],
        limit: Duration::from_secs(60),
        body: json!(body),
    }
}

/// What node 1 hears of it from its own Node.
fn to_node_one(body: i32) -> NodeRequest {
    let NodeRequest { mut nodes, .. } = request(body);
    nodes.truncate(1);
    NodeRequest { nodes, ..request(body) }
}

fn answer(body: i32) -> NodeAnswer {
    NodeAnswer { node: "10.244.1.0-24".parse().unwrap(), body: json!(body) }
}

async fn until(heard: &mut watch::Receiver<Requests>, wanted: &[NodeRequest]) {
    let seen = heard.wait_for(|now| **now == *wanted);
    timeout(3 * REQUEST_LIFETIME, seen).await.expect("in time").expect("the store still tells");
}

fn server() -> ApiServer {
    let server = ApiServer::start();
    for number in 1..=3 {
        let node = NodeSpec::new(&format!("node-{number}"));
        let node = node.cidr(format!("10.244.{number}.0/24"));
        server.create_node(&node.vxlan(&format!("192.0.2.{number}"), "02:00:00:00:00:01"));
    }
    std::fs::write(server.file("net-conf.json"), r#"{"Network":"10.244.0.0/16"}"#).unwrap();
    server
}

fn options(server: &ApiServer) -> KubeOptions {
    KubeOptions {
        api_url: None,
        kubeconfig: Some(server.admin_kubeconfig()),
        annotation_prefix: "flannel.alpha.coreos.com".to_owned(),
        net_config: server.file("net-conf.json"),
        set_node_network_unavailable: false,
    }
}

fn operator(server: &ApiServer) -> KubeOperator {
    let api = Api::new(server.admin(), prefix());
    KubeOperator::new(api, "kube-flannel/kube-flannel-cfg".parse().unwrap(), 1)
}

async fn node(server: &ApiServer, number: u8) -> KubeStore {
    let name = format!("node-{number}");
    let variable = move |of: &str| (of == "NODE_NAME").then(|| name.clone());
    KubeStore::open(&options(server), variable, 1).await.unwrap()
}

/// What of it stands in a Node.
async fn left(server: &ApiServer, number: u8) -> Vec<String> {
    let api = Api::new(server.admin(), prefix());
    let (nodes, name) = (Collection::of_cluster(CORE, "nodes"), format!("node-{number}"));
    let node = api.client.get(&nodes, &name, |node| node).await.unwrap().unwrap();
    let annotations = node["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let ours = |name: &&String| name.ends_with("/request") || name.ends_with("/answer");
    annotations.keys().filter(ours).cloned().collect()
}

#[tokio::test]
async fn nodes_that_are_asked_hear_it_from_their_node_and_answer_there_and_nothing_is_left() {
    let server = server();
    let (operator, one, three) =
        (operator(&server), node(&server, 1).await, node(&server, 3).await);
    let _events = (one.watch(Cursor::BEGINNING), three.watch(Cursor::BEGINNING));
    let (mut heard, of_three) = (one.requests().follow(), three.requests().follow());
    operator.requests().place(&request(1)).await.unwrap();
    until(&mut heard, &[to_node_one(1)]).await;
    let id = request(1).id;
    one.requests().answer(&id, &answer(1)).await.unwrap();
    assert_eq!(operator.requests().answers(&id).await.unwrap(), [answer(1)]);
    operator.requests().place(&request(2)).await.unwrap();
    until(&mut heard, &[to_node_one(2)]).await;
    assert!(of_three.borrow().is_empty(), "it was not asked");
    let unasked = three.requests().answer(&id, &answer(1)).await;
    assert!(matches!(unasked, Err(StoreError::Lost { .. })), "{unasked:?}");
    operator.requests().withdraw(&id).await.unwrap();
    until(&mut heard, &[]).await;
    for number in 1..=3 {
        assert!(left(&server, number).await.is_empty());
    }
}

#[tokio::test]
async fn a_node_takes_away_what_an_operator_who_was_killed_has_asked_of_it() {
    let server = server();
    let one = node(&server, 1).await;
    let _events = one.watch(Cursor::BEGINNING);
    let mut heard = one.requests().follow();
    operator(&server).requests().place(&request(1)).await.unwrap();
    until(&mut heard, &[to_node_one(1)]).await;
    one.requests().answer(&request(1).id, &answer(1)).await.unwrap();
    assert_eq!(left(&server, 1).await.len(), 2);
    until(&mut heard, &[]).await;
    let gone = async {
        while !left(&server, 1).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(REQUEST_LIFETIME, gone).await.expect("both annotations go");
}

#[tokio::test]
async fn a_server_in_front_of_kubernetes_passes_on_what_is_asked_and_answered() {
    let server = server();
    let nodes = KubeNodes::open(&options(&server), |_| None, 1).unwrap();
    let _events = nodes.watch(&Cursor::BEGINNING);
    let exchange = nodes.requests();
    let mut heard = exchange.follow();
    let operator = operator(&server);
    operator.requests().place(&request(1)).await.unwrap();
    until(&mut heard, &[request(1)]).await;
    exchange.answer(&request(1).id, &answer(1)).await.unwrap();
    assert_eq!(operator.requests().answers(&request(1).id).await.unwrap(), [answer(1)]);
    assert_eq!(exchange.answers(&request(1).id).await.unwrap(), [answer(1)]);
    exchange.withdraw(&request(1).id).await.unwrap();
    until(&mut heard, &[]).await;
    for number in 1..=2 {
        assert!(left(&server, number).await.is_empty());
    }
}
