//! What another site makes a browser send, and what other users of the server's machine send.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use flannel_server::Options;
use flannel_store::remote::hash_token;

use crate::support::*;

async fn put(at: SocketAddr, headers: &str) -> (u16, String) {
    let length = CONFIG.len();
    let head = format!("PUT /v1/_/config HTTP/1.1\r\n{headers}Content-Length: {length}");
    raw(at, &head, CONFIG).await
}

async fn raw(at: SocketAddr, head: &str, body: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(at).await.unwrap();
    let request = format!("{head}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(WAIT_LIMIT, read).await.expect("an answer in time").unwrap();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap();
    (status, answer)
}

#[tokio::test]
async fn what_another_site_makes_a_browser_send_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    let json = "Content-Type: application/json\r\n";
    for (headers, expected) in [
        (format!("Host: {at}\r\n{json}"), 200),
        (format!("Host: {at}\r\nOrigin: http://{at}\r\n{json}"), 200),
        (format!("Host: {at}\r\nContent-Type: text/plain\r\n"), 415),
        (format!("Host: {at}\r\n"), 415),
        (format!("Host: {at}\r\nOrigin: https://evil.example\r\n{json}"), 403),
        (format!("Host: {at}\r\nSec-Fetch-Site: cross-site\r\n{json}"), 403),
        (format!("Host: evil.example:{}\r\nAccept-Language: en\r\n{json}", at.port()), 421),
    ] {
        let (status, said) = put(at, &headers).await;
        assert_eq!(status, expected, "{headers}{said}");
    }
    let rebound = "GET /v1/_/config HTTP/1.1\r\nAccept-Language: en\r\nHost: evil.example";
    assert_eq!(raw(at, rebound, "").await.0, 421);
    let node = "GET /v1/_/config HTTP/1.1\r\nHost: a-name-of-its-own.example";
    assert_eq!(raw(at, node, "").await.0, 200, "nodes use any name that leads here");
    assert_eq!(raw(at, "GET /healthz HTTP/1.1\r\nHost: probe", "").await.0, 200);
}

/// Sends a request as another user of this machine.
async fn as_nobody(at: SocketAddr, line: &str, body: &str) -> String {
    let script =
        format!("exec 3<>/dev/tcp/{}/{}; printf '%s' \"$0\" >&3; cat <&3", at.ip(), at.port());
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let run = move || {
        let mut command = Command::new("bash");
        command.args(["-c", &script, &request]).uid(65_534).gid(65_534).current_dir("/").output()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn without_tokens_other_users_of_the_machine_write_leases_and_nothing_else() {
    assert!(rustix::process::geteuid().is_root(), "run as root: other users are tried");
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    let commands =
        r#"{"Network":"10.5.0.0/16","Backend":{"Type":"extension","SubnetAddCommand":"id"}}"#;
    let attrs = r#"{"PublicIP":"192.0.2.9","BackendType":"vxlan"}"#;
    let request = r#"{"Id":"x","Kind":"trace","Nodes":[],"Seconds":5}"#;
    let reservation = format!(r#"{{"Subnet":"10.5.9.0/24","Attrs":{attrs}}}"#);
    for (line, body) in [
        ("PUT /v1/_/config", commands),
        ("DELETE /v1/_/config", ""),
        ("POST /v1/_/reservations", reservation.as_str()),
        ("PUT /v1/_/requests/x", request),
        ("PUT /v1/_/leases/10.5.9.0-24?import=true", attrs),
    ] {
        let said = as_nobody(at, line, body).await;
        assert!(said.starts_with("HTTP/1.1 403") && said.contains("root"), "{line}: {said}");
    }
    let said = as_nobody(at, "POST /v1/_/leases", attrs).await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    let (status, said) = http(at, "PUT /v1/_/config HTTP/1.1", CONFIG).await;
    assert_eq!(status, 200, "root goes on as before: {said}");
}

#[tokio::test]
async fn a_new_token_counts_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, "").unwrap();
    let server =
        serve(dir.path(), Options { tokens: Some(tokens.clone()), ..plain_options(0) }).await;
    set_config(&server).await;
    for number in 0..5 {
        let token = format!("a-token-made-this-moment-{number}");
        let text = std::fs::read_to_string(&tokens).unwrap();
        let line = format!("{} node-{number} any\n", hash_token(&token));
        flannel_common::replace_file(&tokens, format!("{text}{line}").as_bytes(), 0o600).unwrap();
        let began = Instant::now();
        let head = format!("GET /v1/_/leases HTTP/1.1\r\nAuthorization: Bearer {token}");
        let (status, said) = http(server.address, &head, "").await;
        assert_eq!(status, 200, "{:?} later: {said}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
