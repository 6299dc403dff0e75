//! Several nodes with one token: each has its own lease and no other's. The nodes are addresses of this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flannel_server::{Options, Server, StoreService, TokenReviewer, TokenVerdict};
use flannel_store::prelude::*;
use flannel_store::remote::hash_token;
use flannel_store::testing::EtcdServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use crate::support::*;

const SHARED: &str = "the-token-of-all-nodes";

/// A machine: where it asks from, what it announces, and the secret that it made for itself, if it did.
#[derive(Clone, Copy)]
struct Machine {
    source: u8,
    public_ip: &'static str,
    secret: Option<&'static str>,
    token: &'static str,
}

const A: Machine = Machine { source: 2, public_ip: "192.0.2.1", secret: None, token: SHARED };
const B: Machine = Machine { source: 3, public_ip: "192.0.2.2", secret: None, token: SHARED };
const SECRET_OF_A: Option<&str> = Some("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
const SECRET_OF_B: Option<&str> = Some("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");

impl Machine {
    async fn ask(self, at: SocketAddr, line: &str, body: &str) -> (u16, String) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, self.source), 0).into()).unwrap();
        let mut stream = socket.connect(at).await.unwrap();
        let secret =
            self.secret.map(|it| format!("flannel-node-secret: {it}\r\n")).unwrap_or_default();
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n{secret}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        timeout(WAIT_LIMIT, read).await.expect("an answer in time").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// What it announces, with a key by which it would be told from another.
    fn attrs(self, public_ip: &str) -> String {
        let data = format!(r#"{{"VtepMAC":"00:00:00:00:00:0{}"}}"#, self.source);
        format!(r#"{{"PublicIP":"{public_ip}","BackendType":"vxlan","BackendData":{data}}}"#)
    }

    async fn acquire(self, at: SocketAddr) -> (String, u64) {
        let (status, body) = self.ask(at, "POST /v1/_/leases", &self.attrs(self.public_ip)).await;
        assert_eq!(status, 200, "{body}");
        let lease: serde_json::Value = serde_json::from_str(&body).unwrap();
        let subnet = lease["Subnet"].as_str().unwrap().replace('/', "-");
        (subnet, lease["Version"].as_u64().unwrap())
    }

    async fn renew(self, at: SocketAddr, (subnet, version): &(String, u64), ip: &str) -> u16 {
        let body = format!(r#"{{"Attrs":{},"Version":{version}}}"#, self.attrs(ip));
        self.ask(at, &format!("PUT /v1/_/leases/{subnet}"), &body).await.0
    }
}

async fn serve_etcd(etcd: &EtcdServer, tokens: &Path) -> SocketAddr {
    etcd.store(1).set_config(CONFIG, false).await.unwrap();
    let service = Arc::new(StoreService::etcd(etcd.options()).unwrap());
    let options = Options { tokens: Some(tokens.to_owned()), ..plain_options(0) };
    let server = Server::bind(options).await.unwrap();
    let at = server.address();
    tokio::spawn(async move { match server.run(service).await {} });
    let ready = async {
        while A.ask(at, "GET /v1/_/config", "").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, ready).await.expect("it follows etcd");
    at
}

/// Everything that B could try with A's lease.
async fn b_takes_nothing_of_a(at: SocketAddr, a: Machine, b: Machine, lease: &(String, u64)) {
    let subnet = &lease.0;
    assert_ne!(b.renew(at, lease, b.public_ip).await, 200, "A's subnet at B's address and key");
    assert_ne!(b.renew(at, lease, a.public_ip).await, 200, "A's subnet with B's key");
    let (status, body) = b.ask(at, &format!("DELETE /v1/_/leases/{subnet}"), "").await;
    assert_eq!(status, 403, "{body}");
    let line = format!("POST /v1/_/leases?previous={subnet}");
    let (status, body) = b.ask(at, &line, &b.attrs(b.public_ip)).await;
    let taken = body.contains(&format!("\"{}\"", subnet.replace('-', "/")));
    assert!(status != 200 || !taken, "{body}");
    let answer = format!("PUT /v1/_/requests/x/answers/{subnet}");
    assert_ne!(b.ask(at, &answer, "{}").await.0, 200);
}

#[tokio::test]
async fn a_node_with_the_same_token_cannot_take_anothers_lease() {
    for rights in ["any", "192.0.2.1 192.0.2.2"] {
        let dir = tempfile::tempdir().unwrap();
        let tokens = dir.path().join("tokens");
        std::fs::write(&tokens, format!("{} nodes {rights}\n", hash_token(SHARED))).unwrap();
        let options = Options { tokens: Some(tokens.clone()), ..plain_options(0) };
        let server = serve(dir.path(), options).await;
        set_config(&server).await;
        let etcd = EtcdServer::start();
        for at in [server.address, serve_etcd(&etcd, &tokens).await] {
            for (a, b) in [
                (A, B),
                (Machine { secret: SECRET_OF_A, ..A }, B),
                (Machine { secret: SECRET_OF_A, ..A }, Machine { secret: SECRET_OF_B, ..B }),
            ] {
                let mut lease = a.acquire(at).await;
                b_takes_nothing_of_a(at, a, b, &lease).await;
                // It goes on to be A's, and A goes on to be who it was.
                lease = a.acquire(at).await;
                assert_eq!(a.renew(at, &lease, a.public_ip).await, 200);
            }
        }
    }
}

#[tokio::test]
async fn a_server_refuses_the_mac_of_another_node_in_front_of_any_store() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, format!("{} nodes any\n", hash_token(SHARED))).unwrap();
    let options = Options { tokens: Some(tokens.clone()), ..plain_options(0) };
    let server = serve(dir.path(), options).await;
    set_config(&server).await;
    let etcd = EtcdServer::start();
    for at in [server.address, serve_etcd(&etcd, &tokens).await] {
        let (first, copier) = (A.acquire(at).await, B.acquire(at).await);
        // A server in front of etcd hears of both from etcd.
        let known = async {
            while !A.ask(at, "GET /v1/_/leases", "").await.1.contains(A.public_ip) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(WAIT_LIMIT, known).await.expect("it knows the first one");
        let copied = A.attrs(B.public_ip);
        let refusals = [
            B.ask(at, "POST /v1/_/leases", &copied).await,
            B.ask(
                at,
                &format!("PUT /v1/_/leases/{}", copier.0),
                &format!(r#"{{"Attrs":{copied},"Version":{}}}"#, copier.1),
            )
            .await,
        ];
        for (status, body) in refusals {
            assert!(status == 409 && body.contains(&first.0), "{status} {body}");
            assert!(body.contains("which had it first"), "{body}");
        }
        assert_eq!(A.renew(at, &first, A.public_ip).await, 200, "its own is its own");
        assert_eq!(B.renew(at, &copier, B.public_ip).await, 200);
    }
}

#[tokio::test]
async fn a_node_that_moved_keeps_its_lease_by_its_own_secret() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, format!("{} nodes any\n", hash_token(SHARED))).unwrap();
    let server = serve(dir.path(), Options { tokens: Some(tokens), ..plain_options(0) }).await;
    set_config(&server).await;
    let at = server.address;
    let a = Machine { secret: SECRET_OF_A, ..A };
    let lease = a.acquire(at).await;
    let moved = Machine { source: 4, public_ip: "127.0.0.4", ..a };
    assert_eq!(moved.renew(at, &lease, moved.public_ip).await, 200);
    let (status, body) = moved.ask(at, "GET /v1/_/leases", "").await;
    assert!(status == 200 && body.contains(r#""Owner":"nodes""#), "people see its name: {body}");
    assert!(!body.contains('#'), "{body}");
    // A machine that was set up anew at the same address has another secret.
    let anew = Machine { secret: SECRET_OF_B, source: 4, public_ip: "127.0.0.4", ..A };
    assert_eq!(anew.acquire(at).await.0, lease.0.clone(), "the same address, as for every flannel");
}

/// Says of a token `eyJ.NODE.x` that it is of a pod on that node.
#[derive(Debug)]
struct ByItsMiddle;

#[async_trait]
impl TokenReviewer for ByItsMiddle {
    async fn review(&self, token: &str) -> Result<TokenVerdict, String> {
        Ok(match token.split('.').nth(1) {
            Some("nobody") | None => {
                TokenVerdict::Refused("Kubernetes does not accept the token".into())
            }
            Some(node) => TokenVerdict::Node(node.into()),
        })
    }
}

#[tokio::test]
async fn a_node_is_known_by_the_token_of_its_pod() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { reviewer: Some(Arc::new(ByItsMiddle)), ..plain_options(0) };
    let server = serve(dir.path(), options).await;
    set_config(&server).await;
    let at = server.address;
    let a = Machine { token: "eyJ.node-1.x", public_ip: "127.0.0.2", ..A };
    let b = Machine { token: "eyJ.node-2.x", public_ip: "127.0.0.3", ..B };
    let lease = a.acquire(at).await;
    b_takes_nothing_of_a(at, a, b, &lease).await;
    let moved = Machine { source: 4, public_ip: "127.0.0.4", ..a };
    assert_eq!(moved.renew(at, &lease, moved.public_ip).await, 200, "its name is enough");
    let (status, body) = moved.ask(at, "GET /v1/_/leases", "").await;
    assert!(status == 200 && body.contains(r#""Owner":"node-1""#), "{body}");
    for unknown in ["eyJ.nobody.x", "no-token-at-all"] {
        assert_eq!(Machine { token: unknown, ..b }.ask(at, "GET /v1/_/leases", "").await.0, 401);
    }
    let config = Machine { token: "eyJ.node-1.x", ..a }.ask(at, "PUT /v1/_/config", CONFIG).await;
    assert_eq!(config.0, 403, "a node is no operator");
}
