//! Tokens that are not what they should be, nodes that reach for what is not theirs, and that no secret
//! is ever told: not in an answer, not in an error, not in the log.

use std::fmt::{Debug, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use flannel_server::{BindError, LeaseService as _, Options, Server};
use flannel_store::prelude::*;
use flannel_store::remote::hash_token;
use flannel_store::testing::AcquireAs as _;
use flannel_store::{RemoteOptions, RemoteStore, Secret};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::support::*;

const ONE: &str = "first-nodes-secret-7f3a9c";
const TWO: &str = "second-nodes-secret-b41e55";
const BOSS: &str = "operators-secret-0d92aa";
const ATTRS: &str = r#"{"PublicIP":"192.0.2.1"}"#;

/// A server that knows two nodes and an operator.
async fn with_tokens(dir: &std::path::Path) -> Running {
    let file = dir.join("tokens");
    let text = format!(
        "{} node-1 192.0.2.1\n{} node-2 192.0.2.2\n{} boss admin\n",
        hash_token(ONE),
        hash_token(TWO),
        hash_token(BOSS)
    );
    std::fs::write(&file, text).unwrap();
    let server = serve(dir, Options { tokens: Some(file), ..plain_options(0) }).await;
    set_config(&server).await;
    server
}

async fn ask(at: SocketAddr, token: &str, line: &str, body: &str) -> (u16, String) {
    http(at, &format!("{line} HTTP/1.1\r\nAuthorization: Bearer {token}"), body).await
}

async fn everything(at: SocketAddr) -> Vec<String> {
    let mut all = Vec::new();
    for path in ["/v1/?wait=0", "/v1/_/config", "/v1/_/leases", "/v1/_/reservations"] {
        let (status, text) = ask(at, BOSS, &format!("GET {path}"), "").await;
        assert_eq!(status, 200, "{text}");
        all.push(text);
    }
    all
}

#[tokio::test]
async fn what_is_another_nodes_is_refused_in_words_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let server = with_tokens(dir.path()).await;
    let at = server.address;
    let (first, second) = ("10.5.7.0-24", "10.5.8.0-24");
    let acquire = |subnet: &str| format!("POST /v1/_/leases?previous={subnet}");
    assert_eq!(ask(at, ONE, &acquire(first), ATTRS).await.0, 200);
    let own = r#"{"PublicIP":"192.0.2.2"}"#;
    assert_eq!(ask(at, TWO, &acquire(second), own).await.0, 200);
    let before = everything(at).await;
    let (lease_of_one, lease_of_two) =
        (r#"{"Attrs":{"PublicIP":"192.0.2.1"}}"#, r#"{"Attrs":{"PublicIP":"192.0.2.2"}}"#);
    for (line, body, wanted) in [
        (format!("PUT /v1/_/leases/{first}"), lease_of_one, "not this client's"),
        (format!("PUT /v1/_/leases/{first}"), lease_of_two, "not this client's"),
        (format!("DELETE /v1/_/leases/{first}"), "", "not this client's"),
        (format!("PUT /v1/_/leases/{second}"), lease_of_one, "192.0.2.1 is not an address"),
        (acquire(first), ATTRS, "192.0.2.1 is not an address"),
        (acquire(second), ATTRS, "192.0.2.1 is not an address"),
        (format!("PUT /v1/_/leases/{second}?import=true"), lease_of_two, "an operator"),
        ("PUT /v1/_/config".to_owned(), CONFIG, "an operator"),
        ("DELETE /v1/_/config?force=true".to_owned(), "", "an operator"),
        (format!("DELETE /v1/_/reservations/{first}"), "", "an operator"),
    ] {
        let (status, text) = ask(at, TWO, &line, body).await;
        assert_eq!(status, 403, "{line} {body}: {text}");
        assert!(text.contains(wanted), "{line} {body}: {text}");
    }
    assert_eq!(everything(at).await, before);
}

#[tokio::test]
async fn a_token_that_is_wrong_empty_or_endless_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = with_tokens(dir.path()).await;
    let at = server.address;
    let before = everything(at).await;
    let (long, endless) = ("x".repeat(8_000), "x".repeat(1 << 20));
    for (header, wanted) in [
        ("X: y".to_owned(), 401),
        ("Authorization:".to_owned(), 401),
        ("Authorization: Bearer".to_owned(), 401),
        ("Authorization: Bearer ".to_owned(), 401),
        ("Authorization: Bearer wrong".to_owned(), 401),
        (format!("Authorization: {ONE}"), 401),
        (format!("Authorization: Basic {ONE}"), 401),
        (format!("Authorization: Bearer {}", hash_token(ONE)), 401),
        (format!("Authorization: Bearer {ONE}x"), 401),
        (format!("Authorization: Bearer {}", &ONE[1..]), 401),
        (format!("Authorization: Bearer {ONE}, Bearer {TWO}"), 401),
        ("Authorization: Bearer \u{e9}".to_owned(), 401),
        (format!("Authorization: Bearer {long}"), 401),
        (format!("Authorization: Bearer {endless}"), 431),
    ] {
        for line in ["GET /v1/_/leases", "POST /v1/_/leases", "GET /nothing/here"] {
            let (status, text) = http(at, &format!("{line} HTTP/1.1\r\n{header}"), ATTRS).await;
            let shown: String = header.chars().take(60).collect();
            // A head without end may be cut off before it was sent.
            assert!(
                status == wanted || wanted == 431 && status == 0,
                "{line}, {shown}: {status} {text}"
            );
            assert!(status != 401 || text.contains("token"), "what to do: {text}");
        }
    }
    assert_eq!(everything(at).await, before);
    let (status, _) =
        http(at, &format!("GET /v1/_/leases HTTP/1.1\r\nauthorization: bearer {ONE}"), "").await;
    assert_eq!(status, 200, "names of headers and schemes have no case");
}

/// All that is logged while this lives, in this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(pub(crate) Arc<Mutex<String>>);

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = writeln!(self.0.lock().unwrap(), "{field}={value:?}");
    }
}

#[tokio::test]
async fn no_secret_is_told_in_an_answer_an_error_or_the_log() {
    let log = Log::default();
    let _listening =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let pinned = format!("fl1.{}.pinned-secret-51c0de", pki.fingerprint());
    let wrong = "wrong-secret-e77ab0";
    let mut told = String::new();

    // Over TLS, as nodes do, with tokens that are known, unknown, and in the file by mistake.
    let file = dir.path().join("tokens");
    std::fs::write(&file, format!("{wrong} node-1\n")).unwrap();
    let tls = Some(pki.server_files(false));
    let options = || Options { tls: tls.clone(), tokens: Some(file.clone()), ..plain_options(0) };
    match Server::bind(options()).await {
        Err(error @ BindError::Files(_)) => writeln!(told, "{error} {error:?}").unwrap(),
        _ => panic!("a token is not a hash of one"),
    }
    let known =
        format!("{} node-1 192.0.2.1\n{} boss admin\n", hash_token(&pinned), hash_token(BOSS));
    std::fs::write(&file, known).unwrap();
    let server = serve(&dir.path().join("data"), options()).await;
    set_config(&server).await;
    let spoiled = RemoteOptions {
        addresses: vec![server.address.to_string()],
        token: Some(Secret::new("tok\nen-secret-99")),
        ..RemoteOptions::default()
    };
    writeln!(told, "{:?}", RemoteStore::new(spoiled, 1).unwrap_err()).unwrap();
    for token in [&*pinned, wrong, BOSS] {
        let remote = remote(&[server.address], |o| {
            o.ca = Some(pki.file("ca.pem"));
            o.token = Some(Secret::new(token));
        });
        writeln!(told, "{remote:?}").unwrap();
        for result in
            [remote.acquire(&config(), &claim(1)).await, remote.acquire(&config(), &claim(2)).await]
        {
            match result {
                Ok(acquired) => writeln!(told, "{acquired:?}").unwrap(),
                Err(error) => writeln!(told, "{error} {error:?}").unwrap(),
            }
        }
    }
    std::fs::write(&file, format!("{wrong} node-1\n")).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let remote = remote(&[server.address], |o| {
        o.ca = Some(pki.file("ca.pem"));
        o.token = Some(Secret::new(&*pinned));
    });
    remote.snapshot().await.expect("what cannot be read changes nothing");

    // By hand, where answers show as they are.
    let open = tempfile::tempdir().unwrap();
    let open = with_tokens(open.path()).await;
    for token in [ONE, TWO, BOSS, wrong] {
        for (line, body) in [
            ("GET /v1/_/leases", ""),
            ("POST /v1/_/leases", ATTRS),
            ("PUT /v1/_/config", "{"),
            ("DELETE /v1/_/leases/10.5.1.0-24", ""),
            ("GET /nothing", ""),
        ] {
            let (_, head, body) = http_whole(
                open.address,
                &format!("{line} HTTP/1.1\r\nAuthorization: Bearer {token}"),
                body,
            )
            .await;
            write!(told, "{head}{body}").unwrap();
        }
    }

    let log = log.0.lock().unwrap().clone();
    assert!(
        log.contains("Lease server listens") && log.contains("keeping what was loaded"),
        "{log}"
    );
    let key = std::fs::read_to_string(pki.file("server.key")).unwrap();
    let key = key.lines().nth(1).unwrap();
    for secret in ["pinned-secret", wrong, BOSS, ONE, TWO, "en-secret-99", key] {
        assert!(!told.contains(secret), "{secret} in {told}");
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}

#[tokio::test]
async fn who_only_reads_sees_the_config_without_its_secrets() {
    const READER: &str = "prometheus-secret-55aa12";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    let (node, reader) = (hash_token(ONE), hash_token(READER));
    std::fs::write(&file, format!("{node} node-1 192.0.2.1\n{reader} prometheus read\n")).unwrap();
    let server = serve(dir.path(), Options { tokens: Some(file), ..plain_options(0) }).await;
    let write = async |psk: &str| {
        let backend = format!(r#"{{"Type":"wireguard","PSK":"{psk}"}}"#);
        let text = format!(r#"{{"Network":"10.5.0.0/16","Backend":{backend}}}"#);
        let request = flannel_server::lease_state::Request::SetConfig { text, force: false };
        server.embedded.ask(&Default::default(), request).await.unwrap();
    };
    let first = "hunter2hunter2hunter2hunter2hunter2hunter2A=";
    write(first).await;
    let at = server.address;
    let cursor = server.embedded.watch_logs().get(&Default::default()).unwrap().snapshot().cursor;
    let second = "sesame2sesame2sesame2sesame2sesame2sesame2A=";
    write(second).await;
    let since = format!("GET /v1/_/events?wait=0&next={}", cursor.revision);
    for (line, secret) in [
        ("GET /v1/_/config", second),
        ("GET /v1/_/config?raw=true", second),
        ("GET /v1/_/events?wait=0", second),
        (since.as_str(), second),
    ] {
        let (status, of_node) = ask(at, ONE, line, "").await;
        assert!(status == 200 && of_node.contains(secret), "a node needs it: {line}: {of_node}");
        let (status, of_reader) = ask(at, READER, line, "").await;
        assert!(status == 200 && of_reader.contains("wireguard"), "{line}: {of_reader}");
        assert!(
            !of_reader.contains("hunter2") && !of_reader.contains("sesame2"),
            "{line}: {of_reader}"
        );
    }
}
