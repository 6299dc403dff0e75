//! The page of a lease server: behind the tokens of operators, and no way around those of the API.

use std::net::SocketAddr;

use flannel_server::Options;
use flannel_store::remote::hash_token;
use flannel_store::testing::AcquireAs as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::*;

const BOSS: &str = "the-operators-token";
const NODE: &str = "a-nodes-token";

async fn send(at: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(WAIT_LIMIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

/// What a browser sends back.
fn cookie(answer: &str) -> String {
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = cookie.unwrap_or_else(|| panic!("no cookie: {answer}"));
    format!("cookie: {}\r\n", cookie.split(';').next().unwrap())
}

#[tokio::test]
async fn only_an_operator_sees_the_page_and_only_as_long_as_he_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let line = |token: &str, rest: &str| format!("{} {rest}\n", hash_token(token));
    std::fs::write(&tokens, line(BOSS, "boss admin") + &line(NODE, "node-1 any")).unwrap();
    let options = Options { tokens: Some(tokens.clone()), ..plain_options(0) };
    let server = serve(dir.path(), options).await;
    set_config(&server).await;
    let at = server.address;
    let node = remote(&[at], |options| options.token = Some(NODE.to_owned().into()));
    node.acquire(&config(), &claim(1)).await.unwrap();

    let form = send(at, "GET", "/", "", "").await;
    assert!(status(&form) == "401" && form.contains("Token of an operator"), "{form}");
    for path in ["/page/live", "/page/seen?node=10.5.1.0-24"] {
        assert_eq!(status(&send(at, "GET", path, "", "").await), "401", "{path}");
    }
    for token in [NODE, "wrong", ""] {
        let answer = send(at, "POST", "/page/enter", "", &format!("token={token}")).await;
        assert!(status(&answer) == "401" && !answer.contains("set-cookie"), "{token}: {answer}");
    }
    let in_address = send(at, "GET", &format!("/page/enter?token={BOSS}"), "", "").await;
    assert_eq!(
        status(&in_address),
        "401",
        "addresses are written down, so a token has no place there"
    );

    let answer = send(at, "POST", "/page/enter", "", &format!("token={BOSS}")).await;
    assert_eq!(status(&answer), "303", "{answer}");
    assert!(!answer.contains(BOSS), "{answer}");
    let cookie = cookie(&answer);
    let page = send(at, "GET", "/", &cookie, "").await;
    assert!(page.contains("node-1") && page.contains("10.5.0.0/16"), "{page}");
    let page = send(at, "GET", "/", &format!("authorization: Bearer {BOSS}\r\n"), "").await;
    assert!(page.contains("node-1"), "a token that is sent is as good: {page}");

    // Another site could make the browser send the cookie; it must not change anything.
    for path in ["/v1/", "/v1/_/config", "/v1/_/leases"] {
        assert_eq!(status(&send(at, "GET", path, &cookie, "").await), "401", "{path}");
    }
    assert_eq!(status(&send(at, "PUT", "/v1/_/config", &cookie, CONFIG).await), "401");

    std::fs::write(&tokens, line(NODE, "node-1 any")).unwrap();
    let gone = async {
        while status(&send(at, "GET", "/", &cookie, "").await) != "401" {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    timeout(WAIT_LIMIT, gone).await.expect("the cookie goes with its token");
}

#[tokio::test]
async fn a_server_that_asks_nobody_shows_its_page_to_everybody() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    server.remote().acquire(&config(), &claim(7)).await.unwrap();
    let page = send(server.address, "GET", "/", "", "").await;
    for part in ["192.0.2.7", "not asked how they are", "--healthz-port", "10.5.0.0/16"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}
