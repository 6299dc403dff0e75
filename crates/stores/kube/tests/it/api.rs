//! What a real API server says, in either encoding and by either way.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use flannel_kube::access::Access;
use flannel_kube::annotations::Key;
use flannel_kube::api::Api;
use flannel_kube::cluster::Cluster;
use flannel_kube::message::Encoding;
use flannel_kube::node::{NodeResource, NodeView};
use flannel_kube::testing::{ApiServer, NodeSpec};
use flannel_store::{AnnouncedSince, Cursor, StoreEvent, StoredLease};
use serde_json::json;
use tokio::time::timeout;

use crate::support::{V4, prefix};

const LIMIT: Duration = Duration::from_secs(30);

fn cluster(server: &ApiServer) -> Arc<Cluster> {
    let api = Api::new(server.admin(), prefix());
    let cluster = Cluster::new(api, "own", 1);
    cluster.table.lock().set_families(V4);
    Arc::new(cluster)
}

fn nodes() -> NodeResource {
    NodeResource::new(prefix())
}

async fn nodes_in_pages(cluster: &Cluster, paged: &mut Vec<NodeView<'static>>) -> String {
    let client = &cluster.api.client;
    client.list(&nodes(), |node| paged.push(node.into_owned())).await.unwrap()
}

pub(crate) fn spec(number: u8) -> NodeSpec {
    NodeSpec::new(&format!("node-{number}"))
        .cidr(format!("10.244.{number}.0/24"))
        .vxlan(&format!("192.0.2.{number}"), "02:00:00:00:00:01")
        .annotation("node.alpha.kubernetes.io/ttl", "0")
        .images(20)
}

pub(crate) fn said(event: StoreEvent) -> String {
    match event {
        StoreEvent::Snapshot(leases) => {
            format!(
                "all {}",
                leases.iter().map(|it| it.lease.subnet.to_string()).collect::<Vec<_>>().join(" ")
            )
        }
        StoreEvent::Put(StoredLease { lease, .. }) => {
            format!("{} at {}", lease.subnet, lease.attrs.public_ip.unwrap())
        }
        StoreEvent::Gone(subnet) => format!("{subnet} gone"),
        StoreEvent::Down(_) => "down".to_owned(),
        StoreEvent::Up => "up".to_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nodes_are_listed_and_followed() {
    let mut server = ApiServer::start();
    (1..=3).for_each(|number| server.create_node(&spec(number)));
    server.create_node(&NodeSpec::new("stranger").cidr("10.244.9.0/24"));
    let cluster = cluster(&server);

    let listed = cluster.list().await.unwrap();
    assert_eq!(listed.leases.len(), 3);
    let mut paged = Vec::new();
    let version = nodes_in_pages(&cluster, &mut paged).await;
    assert_eq!((paged.len(), version.is_empty()), (4, false));

    // Both encodings say the same of a Node, and so does asking for it alone.
    let alone = cluster.api.node("node-2").await.unwrap().unwrap();
    let in_list = paged.iter().find(|node| node.name == "node-2").unwrap();
    assert_eq!(&alone, in_list);
    let json = serde_json::to_vec(&server.node("node-2").unwrap()).unwrap();
    let json = Encoding::Json.object(&json, &nodes()).unwrap();
    assert_eq!(json, alone);
    assert_eq!(alone.annotations.get(Key::PublicIp), Some("192.0.2.2"));
    assert_eq!(cluster.api.node("nobody").await.unwrap(), None);

    let mut events = cluster.follow(&listed.cursor);
    let mut next = async || said(timeout(LIMIT, events.recv()).await.unwrap().unwrap());
    server.heartbeat(&spec(1), 1);
    server.create_node(&spec(4));
    assert_eq!(next().await, "10.244.4.0-24 at 192.0.2.4", "the heartbeat is not told");
    server.annotate("node-1", "flannel.alpha.coreos.com/public-ip", Some("198.51.100.1"));
    assert_eq!(next().await, "10.244.1.0-24 at 198.51.100.1");
    server.delete_node("node-2");
    assert_eq!(next().await, "10.244.2.0-24 gone");

    // The server has forgotten what happened before it was started.
    server.kill();
    assert_eq!(next().await, "down");
    server.restart();
    assert_eq!(next().await, "up");
    server.create_node(&spec(5));
    let mut heard: Vec<String> = Vec::new();
    while !heard.concat().contains("10.244.5.0-24") {
        heard.push(next().await);
    }
}

/// The Go flannel is never ready with more than 5,100.
#[tokio::test]
async fn more_nodes_than_a_queue_holds_are_all_known() {
    let server = ApiServer::start();
    let bare = |number: u32| {
        let subnet = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + (number << 8));
        NodeSpec::new(&format!("node-{number}"))
            .cidr(format!("{subnet}/24"))
            .vxlan("192.0.2.1", "02:00:00:00:00:01")
    };
    let nodes: Vec<NodeSpec> = (0..6_000).map(bare).collect();
    server.create_nodes(&nodes);
    let cluster = cluster(&server);
    assert_eq!(cluster.list().await.unwrap().leases.len(), 6_000);
    let mut events = cluster.follow(&Cursor::BEGINNING);
    let event = timeout(LIMIT, events.recv()).await.unwrap().unwrap();
    assert!(matches!(event, StoreEvent::Snapshot(leases) if leases.len() == 6_000));
}

#[tokio::test]
async fn a_server_that_does_not_stream_lists_is_asked_for_pages() {
    let server = ApiServer::builder().flag("--feature-gates=WatchList=false").start();
    (1..=3).for_each(|number| server.create_node(&spec(number)));
    let cluster = cluster(&server);
    let refused = cluster.api.client.watch(&nodes(), None, LIMIT).await;
    let refused = refused.map(drop).unwrap_err();
    assert!(matches!(refused.code, Some(400 | 422)), "{refused}");
    assert_eq!(cluster.list().await.unwrap().leases.len(), 3);

    // The right to ask for them is another one, and is named where it is missing.
    let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "watch"]}]);
    let token = server.service_account("watcher", &rules);
    let file = server.kubeconfig("watcher", &server.url(), json!({"token": token}));
    let access = Access::Kubeconfig { file, url: None };
    let cluster = Cluster::new(Api::new(access, prefix()), "own", 1);
    let why = cluster.list().await.unwrap_err().into_store_error("").to_string();
    assert!(why.contains("list nodes") && why.contains("verbs: [get, list, watch]"), "{why}");
}

/// A kubelet tells the id of its machine, also where the Go flannel runs.
#[tokio::test]
async fn which_machine_a_node_is_stands_in_its_lease_as_a_hash() {
    let server = ApiServer::start();
    server.create_node(&spec(1));
    let id = "3d1219c7c4c5404aaa1f6d2a48adfda4";
    let status = serde_json::json!({"status": {"nodeInfo": {"machineID": id}}}).to_string();
    let patch = Some(("application/strategic-merge-patch+json", &*status));
    server.must(&http::Method::PATCH, "/api/v1/nodes/node-1/status", patch);
    let hash = flannel_lease::machine_hash(id);
    assert!(hash.is_some());
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    let mut ages = Vec::new();
    for (accept, encoding) in [
        ("application/vnd.kubernetes.protobuf", Encoding::Protobuf),
        ("application/json", Encoding::Json),
    ] {
        let node = server.bytes("/api/v1/nodes/node-1", accept);
        let node = encoding.object(&node, &nodes()).unwrap();
        assert_eq!(node.machine, hash);
        ages.push(node.created.unwrap().get());
    }
    assert!(ages[0] == ages[1] && ages[0].abs_diff(now) < 600, "{ages:?} and now it is {now}");
    let leases = cluster(&server).list().await.unwrap().leases;
    assert_eq!(leases[0].lease.attrs.machine, hash);
    assert_eq!(leases[0].since, AnnouncedSince::about(ages[0]));
}

#[test]
fn a_message_that_breaks_off_anywhere_is_refused_or_waited_for_and_never_a_fault() {
    let server = ApiServer::start();
    server.create_node(&spec(1));
    let protobuf = "application/vnd.kubernetes.protobuf";
    for (accept, encoding) in [(protobuf, Encoding::Protobuf), ("application/json", Encoding::Json)]
    {
        let node = server.bytes("/api/v1/nodes/node-1", accept);
        let list = server.bytes("/api/v1/nodes", accept);
        let whole = encoding.object(&node, &nodes()).unwrap();
        assert_eq!(whole.name, "node-1");
        for end in 0..node.len() {
            let _ = encoding.object(&node[..end], &nodes());
            let _ = encoding.status(&node[..end]);
            let _ = encoding.event(&node[..end], &nodes());
            let _ = encoding.cut(&node[..end]);
        }
        for end in 0..list.len() {
            let _ = encoding.list(&list[..end], &nodes(), drop);
        }
        let mut listed = Vec::new();
        encoding.list(&list, &nodes(), |node| listed.push(node)).unwrap();
        assert_eq!(listed, [whole]);
    }
}
