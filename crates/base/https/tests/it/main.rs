//! The client against servers and proxies that listen on this machine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use flannel_common::Secret;
use flannel_https::{
    Client, Credentials, FileOrPem, Limits, Proxies, Proxy, Server, StreamError, Target, Trust,
    UrlClient, pem,
};
use http::{Request, StatusCode};

use self::support::{FINE, Says, TestServer, proxy};

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(30),
    answer: Duration::from_secs(30),
    body: Duration::from_secs(30),
    largest: 1_000,
};
const JOINED: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

fn get(uri: impl AsRef<str>) -> Request<Bytes> {
    Request::get(uri.as_ref()).body(Bytes::new()).unwrap()
}

fn target(server: &TestServer) -> Target {
    let trust =
        Trust::Authorities(FileOrPem::Pem { name: "the test's", pem: server.certificate.clone() });
    let trust = if server.certificate.is_empty() { Trust::System } else { trust };
    Target { trust, ..Target::new(Server::parse(&server.url()).unwrap()) }
}

async fn reason(target: Target) -> String {
    Client::new(LIMITS).request(|| Ok(target), get("/")).await.unwrap_err()
}

#[tokio::test]
async fn a_connection_is_kept_and_replaced_when_the_other_side_has_ended_it() {
    let server = TestServer::tls(FINE, &["127.0.0.1"]).await;
    let client = Client::new(LIMITS);
    for _ in 0..3 {
        let answer = client.request(|| Ok(target(&server)), get("/path?query")).await.unwrap();
        assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::OK, &b"fine"[..]));
    }
    assert_eq!(server.log.count("connected"), 1);
    assert_eq!(server.log.count("GET /path?query HTTP/1.1"), 3);
    client.forget();
    client.request(|| Ok(target(&server)), get("/")).await.unwrap();
    assert_eq!(server.log.count("connected"), 2);

    let server = TestServer::plain(Says { close: true, ..FINE }).await;
    for _ in 0..3 {
        client.forget();
        client.request(|| Ok(target(&server)), get("/")).await.unwrap();
        let answer = client.request(|| Ok(target(&server)), get("/")).await.unwrap();
        assert_eq!(&answer.body()[..], b"fine");
    }
}

#[tokio::test]
async fn a_new_connection_is_made_by_what_holds_then_and_a_token_is_read_each_time() {
    let (server, dir) = (TestServer::plain(FINE).await, tempfile::tempdir().unwrap());
    let file = dir.path().join("token");
    let (client, credentials) = (Client::new(LIMITS), Credentials::whole_file(file.clone()));
    for token in ["first", "second"] {
        std::fs::write(&file, format!("{token}\n")).unwrap();
        let target = || Ok(Target { credentials: credentials.clone(), ..target(&server) });
        client.request(target, get("/")).await.unwrap();
        assert_eq!(server.log.count(&format!("authorization: Bearer {token}")), 1);
    }
    std::fs::remove_file(&file).unwrap();
    let target = Target { credentials, ..target(&server) };
    assert!(reason(target).await.contains(file.to_str().unwrap()));
}

#[tokio::test]
async fn whoever_says_that_we_are_nobody_is_asked_anew_by_another_connection() {
    let says = Says { answer: "HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n", close: false };
    let server = TestServer::plain(says).await;
    let client = Client::new(LIMITS);
    for _ in 0..2 {
        let answer = client.request(|| Ok(target(&server)), get("/")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(server.log.count("connected"), 2);
}

#[tokio::test]
async fn what_is_wrong_with_tls_is_said_with_what_to_do() {
    let server = TestServer::tls(FINE, &["other.example"]).await;
    let text = reason(target(&server)).await;
    assert!(text.contains("certificate is not for 127.0.0.1: use one of its names"), "{text}");

    let text = reason(Target { trust: Trust::System, ..target(&server) }).await;
    assert!(text.contains("not signed by an authority that we trust"), "{text}");

    let (name, tls) = (Some("other.example".to_owned()), target(&server));
    Client::new(LIMITS)
        .request(|| Ok(Target { server_name: name, ..tls.clone() }), get("/"))
        .await
        .expect("it is known by the name in its certificate");
    Client::new(LIMITS)
        .request(|| Ok(Target { trust: Trust::Anyone, ..tls.clone() }), get("/"))
        .await
        .expect("an operator has asked for it");

    let plain = Server { tls: false, ..tls.server.clone() };
    let text = reason(Target::new(plain)).await;
    assert!(text.contains("does not speak plain HTTP; use https://"), "{text}");

    let plain = TestServer::plain(FINE).await;
    let text = reason(Target::new(Server { tls: true, ..target(&plain).server })).await;
    assert!(text.contains("does not speak TLS: use http://"), "{text}");

    let missing = Trust::Authorities(FileOrPem::File("/nowhere/ca.pem".into()));
    let text = reason(Target { trust: missing, ..tls }).await;
    assert!(text.contains("cannot read /nowhere/ca.pem"), "{text}");
}

#[tokio::test]
async fn who_cannot_be_reached_is_named() {
    let closed = Server::parse("http://127.0.0.1:1").unwrap();
    let text = reason(Target::new(closed)).await;
    assert!(text.contains("cannot connect to 127.0.0.1:1"), "{text}");

    let nobody = Server::parse("http://nobody.invalid").unwrap();
    let text = reason(Target::new(nobody)).await;
    assert!(text.contains("nobody.invalid"), "{text}");
}

#[tokio::test]
async fn a_server_is_not_waited_for_longer_than_allowed() {
    let silent = TestServer::plain(Says { answer: "", close: false }).await;
    let limits = Limits { answer: Duration::from_millis(50), ..LIMITS };
    let asked = Client::new(limits).request(|| Ok(target(&silent)), get("/")).await;
    assert!(asked.unwrap_err().contains("silent"));

    let says = Says { answer: "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", close: false };
    let half = TestServer::plain(says).await;
    let limits = Limits { body: Duration::from_millis(50), ..LIMITS };
    let asked = Client::new(limits).request(|| Ok(target(&half)), get("/")).await;
    assert!(asked.unwrap_err().contains("silent"));
}

#[tokio::test]
async fn no_more_of_an_answer_is_taken_than_allowed() {
    let server = TestServer::plain(FINE).await;
    let limits = Limits { largest: 3, ..LIMITS };
    let asked = Client::new(limits).request(|| Ok(target(&server)), get("/")).await;
    assert!(asked.unwrap_err().contains("broke off"));
}

#[tokio::test]
async fn a_stream_comes_piece_by_piece_until_it_ends_breaks_or_falls_silent() {
    let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n";
    let long = Duration::from_secs(30);
    for (answer, close, wanted) in [
        (format!("{chunks}0\r\n\r\n"), false, Ok(None)),
        (chunks.to_owned(), false, Err(StreamError::Silent)),
        (chunks.to_owned(), true, Err(StreamError::Broken(String::new()))),
    ] {
        let server = TestServer::plain(Says { answer: answer.leak(), close }).await;
        let stream = Client::new(LIMITS).stream(|| Ok(target(&server)), get("/")).await;
        let mut body = stream.unwrap().into_body();
        assert_eq!(body.next(long).await, Ok(Some(Bytes::from_static(b"one"))));
        let last = body.next(if close { long } else { Duration::from_millis(200) }).await;
        let last = last.map_err(|broken| match broken {
            StreamError::Broken(why) if !why.is_empty() => StreamError::Broken(String::new()),
            other => other,
        });
        assert_eq!(last, wanted);
    }
}

#[tokio::test]
async fn https_goes_through_a_proxy_by_a_tunnel_and_the_proxy_sees_no_credentials() {
    let server = TestServer::tls(FINE, &["127.0.0.1"]).await;
    let (address, log) = proxy(JOINED).await;
    let through = Proxy::parse(&format!("http://me:secret@{address}")).unwrap();
    let target = Target {
        proxy: Some(through),
        credentials: Credentials::Bearer(Secret::new("token")),
        ..target(&server)
    };
    let answer = Client::new(LIMITS).request(|| Ok(target), get("/")).await.unwrap();
    assert_eq!(&answer.body()[..], b"fine");
    assert_eq!(log.lines()[0], format!("CONNECT {} HTTP/1.1", server.address));
    assert_eq!(log.count("proxy-authorization: Basic bWU6c2VjcmV0"), 1);
    assert!(!log.lines().iter().any(|line| line.contains("token")), "{:?}", log.lines());
    assert!(!server.log.lines().iter().any(|line| line.contains("proxy-authorization")));
    assert_eq!(server.log.count("authorization: Bearer token"), 1);
}

#[tokio::test]
async fn plain_http_is_asked_of_the_proxy_itself_and_never_with_credentials() {
    let server = TestServer::plain(FINE).await;
    let proxy = Proxy::parse(&server.address.to_string()).unwrap();
    let server_name = Server::parse("http://a.example/base").unwrap();
    let through = Target { proxy: Some(proxy), ..Target::new(server_name) };
    Client::new(LIMITS).request(|| Ok(through.clone()), get("/x?y")).await.unwrap();
    assert_eq!(server.log.count("GET http://a.example:80/base/x?y HTTP/1.1"), 1);

    let credentials = Credentials::Bearer(Secret::new("token"));
    let text = reason(Target { credentials, ..through }).await;
    assert!(text.contains("without encryption") && !text.contains("token"), "{text}");
}

#[tokio::test]
async fn a_proxy_that_does_not_let_us_through_is_named() {
    let server = TestServer::tls(FINE, &["127.0.0.1"]).await;
    let (address, _) = proxy("HTTP/1.1 407 Who are you\r\ncontent-length: 2\r\n\r\nno").await;
    let through = Some(Proxy::parse(&address.to_string()).unwrap());
    let text = reason(Target { proxy: through, ..target(&server) }).await;
    assert!(text.contains(&address.to_string()) && text.contains("407"), "{text}");

    let through = Some(Proxy::parse("127.0.0.1:1").unwrap());
    let text = reason(Target { proxy: through, ..target(&server) }).await;
    assert!(text.contains("through the proxy 127.0.0.1:1"), "{text}");
}

#[tokio::test]
async fn any_url_can_be_asked_and_each_server_keeps_its_connection() {
    let (one, two) = (TestServer::plain(FINE).await, TestServer::tls(FINE, &["127.0.0.1"]).await);
    let trust =
        Trust::Authorities(FileOrPem::Pem { name: "the test's", pem: two.certificate.clone() });
    let mut web = UrlClient::new(LIMITS).unwrap().with_proxies(Proxies::default());
    web.trust = trust;
    for _ in 0..2 {
        for server in [&one, &two] {
            let answer = web.request(get(format!("{}/a?b", server.url()))).await.unwrap();
            assert_eq!(&answer.body()[..], b"fine");
        }
    }
    for server in [&one, &two] {
        assert_eq!((server.log.count("connected"), server.log.count("GET /a?b HTTP/1.1")), (1, 2));
    }
    let error = web.request(get("http://127.0.0.1:1/secret")).await.unwrap_err();
    assert!(error.contains("http://127.0.0.1:1: cannot connect"), "{error}");
    assert!(!error.contains("secret"), "{error}");
    assert!(web.request(get("/path")).await.unwrap_err().contains("not the URL"));
}

#[test]
fn a_file_without_what_it_should_hold_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, "nothing").unwrap();
    for error in [pem::certificates(&file).unwrap_err(), pem::private_key(&file).unwrap_err()] {
        assert!(error.contains("ca.pem holds no"), "{error}");
    }
}
