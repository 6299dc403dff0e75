//! What the server tells Prometheus.

use std::time::Duration;

use flannel_server::Options;
use flannel_store::Cursor;
use flannel_store::prelude::*;
use flannel_store::remote::hash_token;
use flannel_store::testing::AcquireAs as _;

use crate::support::*;

/// The value of a sample.
fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn what_is_asked_and_kept_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    let node = server.remote();
    node.acquire(&config(), &claim(1)).await.unwrap();
    let mut events = node.watch(Cursor::BEGINNING);
    next(&mut events).await;
    assert_eq!(http(at, "GET /wp-login.php HTTP/1.1", "").await.0, 404);
    let (status, head, text) = http_whole(at, "GET /metrics HTTP/1.1", "").await;
    assert_eq!(status, 200);
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let requests =
        |labels: &str| value(&text, &format!("flannel_server_requests_total{{{labels}}}"));
    assert_eq!(requests(r#"route="leases",method="POST",code="200""#), Some(1.0), "{text}");
    assert_eq!(requests(r#"route="other",method="GET",code="404""#), Some(1.0), "{text}");
    assert_eq!(value(&text, "flannel_server_watchers"), Some(1.0), "{text}");
    assert_eq!(value(&text, r#"flannel_server_leases{network="_"}"#), Some(1.0), "{text}");
    let pool = r#"flannel_server_pool_subnets{network="_",family="ipv4"}"#;
    assert_eq!(value(&text, pool), Some(255.0), "{text}");
    assert!(value(&text, "flannel_server_sync_duration_seconds_count") >= Some(2.0), "{text}");
    assert!(value(&text, "flannel_server_log_bytes") > Some(100.0), "{text}");
    assert_eq!(value(&text, "flannel_server_log_writable"), Some(1.0), "{text}");
    drop(events);
    let gone = async {
        loop {
            let (_, text) = http(at, "GET /metrics HTTP/1.1", "").await;
            if value(&text, "flannel_server_watchers") == Some(0.0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, gone).await.expect("who has gone is not counted");
}

#[tokio::test]
async fn who_is_to_read_metrics_can_be_given_no_more_than_that() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let file = pki.file("tokens");
    let (reader, node) = ("the-token-of-prometheus", "the-token-of-a-node");
    let lines =
        format!("{} prometheus read\n{} node-1 any\n", hash_token(reader), hash_token(node));
    std::fs::write(&file, lines).unwrap();
    let server = serve(dir.path(), Options { tokens: Some(file), ..plain_options(0) }).await;
    set_config(&server).await;
    let ask = async |what: &str, token: &str, body: &str| {
        let head = format!("{what} HTTP/1.1\r\nAuthorization: Bearer {token}");
        http(server.address, &head, body).await.0
    };
    assert_eq!(http(server.address, "GET /metrics HTTP/1.1", "").await.0, 401, "say who you are");
    assert_eq!(ask("GET /metrics", "another", "").await, 401);
    assert_eq!(ask("GET /metrics", reader, "").await, 200);
    assert_eq!(ask("GET /metrics", node, "").await, 200);
    assert_eq!(ask("GET /v1/_/leases", reader, "").await, 200);
    let claim = r#"{"PublicIP":"127.0.0.1","BackendType":"vxlan"}"#;
    assert_eq!(ask("POST /v1/_/leases", reader, claim).await, 403);
    assert_eq!(ask("PUT /v1/_/node", reader, "{}").await, 403);
    assert_eq!(ask("PUT /v1/_/config", reader, CONFIG).await, 403);
    assert_eq!(ask("POST /v1/_/leases", node, claim).await, 200);
    let of_node = ask("DELETE /v1/_/leases/10.5.1.0-24", reader, "").await;
    assert_eq!(of_node, 403, "whether there is such a lease or not");
}
