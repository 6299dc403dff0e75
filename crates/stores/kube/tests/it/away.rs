//! An API server that is away for hours.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use flannel_kube::access::Access;
use flannel_kube::api::Api;
use flannel_kube::cluster::Cluster;
use flannel_kube::testing::{ApiServer, Proxy};
use flannel_store::StoreEvent;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::api::{said, spec};
use crate::support::{V4, prefix};

const LIMIT: Duration = Duration::from_secs(60);
const HOURS: Duration = Duration::from_secs(3 * 3_600);

async fn next(events: &mut mpsc::Receiver<StoreEvent>) -> String {
    said(timeout(LIMIT, events.recv()).await.expect("in time").expect("it is followed"))
}

/// Time passes at once while nothing happens.
async fn hours_pass(proxy: &Proxy) -> usize {
    let before = proxy.connections();
    tokio::time::pause();
    tokio::time::sleep(HOURS).await;
    tokio::time::resume();
    proxy.connections() - before
}

#[tokio::test]
async fn an_api_server_that_is_away_for_hours_is_tried_now_and_then_and_followed_again() {
    let mut server = ApiServer::start();
    (1..=2).for_each(|number| server.create_node(&spec(number)));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let proxy = Proxy::start(any, SocketAddr::from((Ipv4Addr::LOCALHOST, server.port())));
    let user = json!({"client-certificate": "admin.crt", "client-key": "admin.key"});
    let file = server.kubeconfig("proxied", &proxy.url(), user);
    let api = Api::new(Access::Kubeconfig { file, url: None }, prefix());
    let cluster = Arc::new(Cluster::new(api, "own", 1));
    cluster.table.lock().set_families(V4);
    let listed = cluster.list().await.unwrap();
    let mut events = cluster.follow(&listed.cursor);
    server.create_node(&spec(3));
    assert_eq!(next(&mut events).await, "10.244.3.0-24 at 192.0.2.3");

    // A server that remembers: the watch goes on where it was.
    proxy.close();
    let tries = hours_pass(&proxy).await;
    assert!((100..2_000).contains(&tries), "{tries} tries in three hours");
    server.create_node(&spec(4));
    proxy.open();
    for expected in ["down", "up", "10.244.4.0-24 at 192.0.2.4"] {
        assert_eq!(next(&mut events).await, expected);
    }

    // One that has forgotten: all Nodes are taken anew, and who is gone is not among them.
    proxy.close();
    let tries = hours_pass(&proxy).await;
    assert!((100..2_000).contains(&tries), "{tries} tries in three hours");
    server.delete_node("node-1");
    server.restart();
    proxy.open();
    assert_eq!(next(&mut events).await, "down");
    assert_eq!(next(&mut events).await, "up");
    let taken = next(&mut events).await;
    assert_eq!(taken, "all 10.244.2.0-24 10.244.3.0-24 10.244.4.0-24");
}
