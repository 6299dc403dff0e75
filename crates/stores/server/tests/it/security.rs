//! Who may do what, over TLS and with tokens.

use std::time::Duration;

use flannel_server::{BindError, Options, Server};
use flannel_store::prelude::*;
use flannel_store::remote::{Listen, hash_token};
use flannel_store::testing::AcquireAs as _;
use flannel_store::{Secret, StoreError};

use crate::support::*;

const NODE: &str = "node-token-of-some-length";
const THIEF: &str = "another-nodes-token";
const BOSS: &str = "the-operators-token";

fn tokens(pki: &Pki) -> std::path::PathBuf {
    let file = pki.file("tokens");
    let text = format!(
        "{} node-1 192.0.2.1\n{} node-2 192.0.2.2\n{} boss admin\n",
        hash_token(NODE),
        hash_token(THIEF),
        hash_token(BOSS)
    );
    std::fs::write(&file, text).unwrap();
    file
}

async fn serve_tls(dir: &std::path::Path, pki: &Pki, ca: bool, tokens: bool) -> Running {
    let options = Options {
        tls: Some(pki.server_files(ca)),
        tokens: tokens.then(|| self::tokens(pki)),
        ..plain_options(0)
    };
    let running = serve(dir, options).await;
    set_config(&running).await;
    running
}

fn with_token(running: &Running, pki: &Pki, token: &str) -> flannel_store::RemoteStore {
    remote(&[running.address], |o| {
        o.ca = Some(pki.file("ca.pem"));
        o.token = Some(Secret::new(token));
    })
}

#[tokio::test]
async fn plain_http_to_other_machines_needs_to_be_asked_for() {
    let options = |insecure| Options {
        listen: Listen::Address { host: "0.0.0.0".to_owned(), port: 0 },
        insecure,
        ..plain_options(0)
    };
    assert!(matches!(Server::bind(options(false)).await, Err(BindError::Insecure(_))));
    assert!(Server::bind(options(true)).await.is_ok());
}

#[tokio::test]
async fn a_token_opens_what_is_its_own_and_nothing_else() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let server = serve_tls(dir.path(), &pki, false, true).await;
    let node = with_token(&server, &pki, NODE);
    let held = node.acquire(&config(), &claim(1)).await.unwrap().held;
    node.renew(&held, &attrs(1)).await.unwrap();

    let denied = |result: Result<(), StoreError>, what: &str| match result {
        Err(StoreError::Denied { reason, .. }) => {
            assert!(!reason.contains("token-"), "no secret is told: {reason}");
        }
        other => panic!("{what}: {other:?}"),
    };
    let thief = with_token(&server, &pki, THIEF);
    denied(thief.renew(&held, &attrs(1)).await.map(drop), "another's lease");
    denied(thief.release(&held).await, "another's lease");
    denied(thief.acquire(&config(), &claim(1)).await.map(drop), "another's address");
    denied(thief.acquire(&config(), &claim(9)).await.map(drop), "nobody's address");
    let stranger = with_token(&server, &pki, "no-such-token");
    denied(stranger.snapshot().await.map(drop), "an unknown token");
    let nobody = remote(&[server.address], |o| o.ca = Some(pki.file("ca.pem")));
    denied(nobody.snapshot().await.map(drop), "no token");
    let mut lease = held.lease;
    lease.attrs.owner = Some("node-1".into());
    assert_eq!(node.snapshot().await.unwrap().leases, [lease]);
}

#[tokio::test]
async fn one_token_is_all_a_node_needs_to_join() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let token = format!("fl1.{}.secret", pki.fingerprint());
    let file = pki.file("tokens");
    std::fs::write(&file, format!("{} node-1 any\n", hash_token(&token))).unwrap();
    let options =
        Options { tls: Some(pki.server_files(false)), tokens: Some(file), ..plain_options(0) };
    let server = serve(dir.path(), options).await;
    set_config(&server).await;
    let join = |token: String| remote(&[server.address], |o| o.token = Some(Secret::new(token)));
    join(token).acquire(&config(), &claim(1)).await.unwrap();

    let other = Pki::new();
    let wrong = format!("fl1.{}.secret", other.fingerprint());
    match join(wrong).acquire(&config(), &claim(1)).await {
        Err(StoreError::Unavailable { reason, .. }) => {
            assert!(reason.contains("authority that the token names"), "{reason}");
        }
        other => panic!("a server of another authority is not trusted: {other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_is_as_good_as_a_token() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let server = serve_tls(dir.path(), &pki, true, false).await;
    let connect = |pki: &Pki, name: &str, names: &[&str]| {
        let (cert, key) = pki.issue(name, names);
        remote(&[server.address], |o| {
            o.ca = Some(pki.file("ca.pem"));
            (o.cert, o.key) = (Some(cert), Some(key));
        })
    };
    let node = connect(&pki, "node-1", &["node-1", "192.0.2.1"]);
    let held = node.acquire(&config(), &claim(1)).await.unwrap().held;
    let thief = connect(&pki, "node-2", &["node-2", "192.0.2.2"]);
    assert!(matches!(thief.release(&held).await, Err(StoreError::Denied { .. })));
    assert!(matches!(thief.acquire(&config(), &claim(1)).await, Err(StoreError::Denied { .. })));
    let nobody = remote(&[server.address], |o| o.ca = Some(pki.file("ca.pem")));
    assert!(nobody.snapshot().await.is_err(), "the server demands a certificate");
    let forged = Pki::new();
    let (cert, key) = forged.issue("node-1", &["node-1", "192.0.2.1"]);
    let forger = remote(&[server.address], |o| {
        o.ca = Some(pki.file("ca.pem"));
        (o.cert, o.key) = (Some(cert), Some(key));
    });
    assert!(forger.snapshot().await.is_err(), "of another authority");
}

#[tokio::test]
async fn operators_alone_change_config_and_reservations() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let file = tokens(&pki);
    let options = Options { tokens: Some(file), ..plain_options(0) };
    let server = serve(dir.path(), options).await;
    let at = server.address;
    let put = |token: &str| format!("PUT /v1/_/config HTTP/1.1\r\nAuthorization: Bearer {token}");
    assert_eq!(http(at, "PUT /v1/_/config HTTP/1.1", CONFIG).await.0, 401);
    assert_eq!(http(at, &put(NODE), CONFIG).await.0, 403);
    assert_eq!(http(at, &put(BOSS), CONFIG).await.0, 200);
    let reserve = format!("POST /v1/_/reservations HTTP/1.1\r\nAuthorization: Bearer {NODE}");
    let body = r#"{"Subnet":"10.5.9.0/24","PublicIP":"192.0.2.1"}"#;
    assert_eq!(http(at, &reserve, body).await.0, 403);
    assert_eq!(http(at, "GET /openapi.json HTTP/1.1", "").await.0, 200, "no secret");
}

#[tokio::test]
async fn tokens_and_certificates_are_read_anew_without_a_restart() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let server = serve_tls(dir.path(), &pki, false, true).await;
    let newcomer = with_token(&server, &pki, "made-later");
    assert!(matches!(newcomer.snapshot().await, Err(StoreError::Denied { .. })));
    std::fs::write(pki.file("tokens"), format!("{} new any\n", hash_token("made-later"))).unwrap();
    let other = Pki::new();
    let (cert, key) = other.issue("server", &["127.0.0.1"]);
    std::fs::copy(cert, pki.file("server.pem")).unwrap();
    std::fs::copy(key, pki.file("server.key")).unwrap();
    let renewed = remote(&[server.address], |o| {
        o.ca = Some(other.file("ca.pem"));
        o.token = Some(Secret::new("made-later"));
    });
    let both = async {
        while renewed.snapshot().await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, both).await.expect("both are read anew");
    // What cannot be read changes nothing.
    std::fs::write(pki.file("tokens"), "rubbish").unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    renewed.snapshot().await.unwrap();
}
