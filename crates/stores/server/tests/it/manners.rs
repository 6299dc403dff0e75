//! Clients without manners: slow, large, many, gone.

use std::time::Duration;

use flannel_server::{Limits, Options};
use flannel_store::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::*;

#[tokio::test]
async fn a_body_that_is_too_large_or_too_slow_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = plain_options(0);
    options.limits = Limits {
        max_body_bytes: 1_000,
        body_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let server = serve(dir.path(), options).await;
    set_config(&server).await;
    let body = "x".repeat(1_001);
    assert_eq!(http(server.address, "POST /v1/_/leases HTTP/1.1", &body).await.0, 413);
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"POST /v1/_/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
        .await
        .unwrap();
    let mut answer = vec![0; 1_024];
    let read = timeout(WAIT_LIMIT, slow.read(&mut answer)).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&answer[..read]).starts_with("HTTP/1.1 408"));
}

#[tokio::test]
async fn a_head_that_never_ends_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = plain_options(0);
    options.limits = Limits { head_timeout: Duration::from_millis(300), ..Limits::default() };
    let server = serve(dir.path(), options).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut dribbling = TcpStream::connect(server.address).await.unwrap();
    dribbling.write_all(b"GET /v1/ HTTP/1.1\r\nX: ").await.unwrap();
    for stream in [&mut silent, &mut dribbling] {
        let mut rest = Vec::new();
        let _ = timeout(WAIT_LIMIT, stream.read_to_end(&mut rest)).await.expect("it is closed");
    }
    assert_eq!(http(server.address, "GET /healthz HTTP/1.1", "").await.0, 200);
}

/// Holds a thousand connections that have sent so much and no more, has somebody else served
/// meanwhile, and waits until the server has let go of all.
async fn hold_a_thousand(server: &Running, sent: &[u8], others: impl AsyncFn()) {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    let mut held = Vec::new();
    for _ in 0..1_000 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        held.push(stream);
    }
    others().await;
    for mut stream in held {
        let mut rest = Vec::new();
        let _ = timeout(WAIT_LIMIT, stream.read_to_end(&mut rest)).await.expect("it is let go of");
        assert!(!rest.starts_with(b"HTTP/1.1 2"));
    }
    others().await;
}

#[tokio::test]
async fn a_thousand_heads_that_never_end_keep_nobody_from_being_served() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { head_timeout: Duration::from_secs(3), ..Limits::default() };
    let server = serve(dir.path(), Options { limits, ..plain_options(0) }).await;
    set_config(&server).await;
    hold_a_thousand(&server, b"GET /v1/_/leases HTTP/1.1\r\nX: ", async || {
        server.remote().snapshot().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_thousand_handshakes_that_never_end_keep_nobody_from_being_served() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let limits = Limits { handshake_timeout: Duration::from_secs(3), ..Limits::default() };
    let tls = Some(pki.server_files(false));
    let server = serve(dir.path(), Options { limits, tls, ..plain_options(0) }).await;
    set_config(&server).await;
    // The beginning of a greeting: a handshake of 256 bytes, of which three come.
    hold_a_thousand(&server, b"\x16\x03\x01\x01\x00\x01\x00\x00", async || {
        let remote = remote(&[server.address], |o| o.ca = Some(pki.file("ca.pem")));
        remote.snapshot().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn rubbish_by_the_thousand_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let mut rng = fastrand::Rng::with_seed(4);
    let words = [
        "GET",
        "POST",
        "PUT",
        "DELETE",
        "/v1/",
        "_",
        "leases",
        "/",
        "?next=",
        "config",
        "10.5.1.0-24",
        "%",
        "\r\n",
        "HTTP/1.1",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "{",
        "}",
        "\"PublicIP\":\"192.0.2.1\"",
        ":",
        "\0",
        "\u{1f300}",
        " ",
    ];
    for _ in 0..1_000 {
        let count = rng.usize(1..20);
        let text: String = (0..count).map(|_| words[rng.usize(..words.len())]).collect();
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(text.as_bytes()).await;
        let _ = stream.write_all(b"\r\n\r\n").await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = timeout(WAIT_LIMIT, stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.starts_with("HTTP/1.1 5"), "{text:?} → {answer}");
    }
    assert_eq!(http(server.address, "GET /healthz HTTP/1.1", "").await.0, 200);
}

#[tokio::test]
async fn there_is_a_limit_to_connections() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = plain_options(0);
    options.limits = Limits { connections: 5, ..Limits::default() };
    let server = serve(dir.path(), options).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 256];
        assert!(stream.read(&mut answer).await.unwrap() > 0);
        held.push(stream);
    }
    let (status, head, _) = http_whole(server.address, "GET /healthz HTTP/1.1", "").await;
    assert!(status == 503 && head.contains("connection: close"), "turned away: {head}");
    held.pop();
    let again = async {
        while http(server.address, "GET /healthz HTTP/1.1", "").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT_LIMIT, again).await.expect("there is room again");
}

/// The heads of the answers to requests on one connection, up to its end or silence.
async fn heads(server: &Running, requests: &[&str]) -> Vec<String> {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut heads = Vec::new();
    for request in requests {
        if stream.write_all(request.as_bytes()).await.is_err() {
            break;
        }
        let Some(head) = read_answer(&mut stream).await else { break };
        heads.push(head);
    }
    heads
}

async fn read_answer(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let head = loop {
        let byte = timeout(WAIT_LIMIT, stream.read_u8()).await.expect("an answer in time").ok()?;
        bytes.push(byte);
        if bytes.ends_with(b"\r\n\r\n") {
            break String::from_utf8(bytes).unwrap().to_ascii_lowercase();
        }
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(head)
}

#[tokio::test]
async fn who_is_refused_may_ask_again_on_the_same_connection_or_is_told_that_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = plain_options(0);
    options.limits = Limits {
        max_body_bytes: 100_000,
        body_timeout: Duration::from_millis(300),
        ..Limits::default()
    };
    let server = serve(dir.path(), options).await;
    set_config(&server).await;
    let request = |line: &str, body: usize, sent: usize| {
        let body_text = "x".repeat(sent);
        format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {body}\r\n\r\n{body_text}"
        )
    };
    let next = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut goes_on = 0;
    for refused in [
        request("PUT /nowhere", 10, 10),
        request("PUT /nowhere", 90_000, 90_000),
        request("POST /v1/_/config", 90_000, 90_000),
        request("PUT /v1/_/config", 90_000, 90_000),
        request("PUT /v1/_/config", 200_000, 200_000),
        request("POST /v1/none/leases", 90_000, 90_000),
        request("GET /v1/_/leases", 90_000, 90_000),
        // It says more than it sends.
        request("POST /v1/_/config", 5_000, 10),
        request("POST /v1/_/leases", 5_000, 10),
        request("POST /v1/_/leases?previous=x", 500_000, 10),
        "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
            .to_owned(),
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ".to_owned() + &"x".repeat(100_000) + "\r\n\r\n",
        "NONSENSE\r\n\r\n".to_owned(),
    ] {
        let line = refused.lines().next().unwrap();
        let heads = heads(&server, &[&refused, next]).await;
        let (first, second) = (heads.first().expect(line), heads.get(1));
        if first.contains("connection: close") {
            continue;
        }
        let second = second.unwrap_or_else(|| panic!("{line}: {first} and then the end"));
        assert!(second.starts_with("http/1.1 200"), "{line}: {first} and then {second}");
        goes_on += 1;
    }
    assert!(goes_on >= 5, "an ordinary refusal ends nothing: {goes_on}");
}
