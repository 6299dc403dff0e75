//! Rights that end, and rights that pass from one machine to another.

use flannel_server::{LeaseService, StoreService};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flannel_server::{Options, Server};
use flannel_store::Cursor;
use flannel_store::prelude::*;
use flannel_store::remote::hash_token;
use flannel_store::testing::AcquireAs as _;
use flannel_store::testing::EtcdServer;
use flannel_store::{RemoteStore, Secret, StoreError, StoreEvent};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::*;

const OLD: &str = "the-former-machines-token";
const NEW: &str = "the-new-machines-token";
const NAT: &str = "a-token-for-any-address";
const BOSS: &str = "the-operators-token";

fn write_tokens(dir: &std::path::Path, lines: &[(&str, &str)]) -> std::path::PathBuf {
    let file = dir.join("tokens");
    let text: String =
        lines.iter().map(|(token, rest)| format!("{} {rest}\n", hash_token(token))).collect();
    std::fs::write(&file, text).unwrap();
    file
}

async fn serve_with_tokens(
    service: Arc<dyn LeaseService>,
    tokens: std::path::PathBuf,
) -> SocketAddr {
    let options = Options { tokens: Some(tokens), ..plain_options(0) };
    let server = Server::bind(options).await.unwrap();
    let address = server.address();
    tokio::spawn(async move { match server.run(service).await {} });
    address
}

fn with(at: SocketAddr, token: &str) -> RemoteStore {
    remote(&[at], |options| options.token = Some(Secret::new(token)))
}

#[tokio::test]
async fn a_machine_that_replaces_another_is_told_how_to_get_in_and_gets_in() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [(OLD, "old 192.0.2.1"), (NEW, "new 192.0.2.1"), (BOSS, "boss admin")];
    let tokens = write_tokens(dir.path(), &lines);
    let server = serve(dir.path(), Options { tokens: Some(tokens), ..plain_options(0) }).await;
    set_config(&server).await;
    let held = with(server.address, OLD).acquire(&config(), &claim(1)).await.unwrap().held;
    let subnet = held.lease.subnet;
    let new = with(server.address, NEW);
    let said = new.acquire(&config(), &claim(1)).await.unwrap_err().to_string();
    let release = format!("`flannelctl release {}`", subnet.v4().unwrap());
    assert!(said.contains(&release) && said.contains("belongs to old"), "{said}");
    let boss = with(server.address, BOSS);
    boss.revoke(&subnet).await.unwrap();
    let claim = flannel_store::Claim::new(attrs(1), Some(subnet));
    assert_eq!(new.acquire(&config(), &claim).await.unwrap().held.lease.subnet, subnet);

    // The same with a reservation, which stays where it is until somebody removes it.
    let kept = self::subnet("10.5.9.0-24");
    boss.revoke(&subnet).await.unwrap();
    boss.reserve(&kept, &attrs(1)).await.unwrap();
    let old = with(server.address, OLD);
    assert_eq!(old.acquire(&config(), &self::claim(1)).await.unwrap().held.lease.subnet, kept);
    let said = new.acquire(&config(), &claim).await.unwrap_err().to_string();
    assert!(said.contains("`flannelctl unreserve 10.5.9.0/24`"), "{said}");
    boss.unreserve(&kept).await.unwrap();
    boss.revoke(&kept).await.unwrap();
    assert!(new.acquire(&config(), &claim).await.is_ok());
}

#[tokio::test]
async fn nodes_know_each_other_by_the_names_of_their_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [(OLD, "node-1 192.0.2.1"), (NEW, "node-2 192.0.2.2")];
    let tokens = write_tokens(dir.path(), &lines);
    let server = serve(dir.path(), Options { tokens: Some(tokens), ..plain_options(0) }).await;
    set_config(&server).await;
    let (one, two) = (with(server.address, OLD), with(server.address, NEW));
    let first = one.acquire(&config(), &claim(1)).await.unwrap();
    assert_eq!(first.held.lease.attrs.owner, None, "what a node says of itself has no name");
    let mut events = one.watch(first.snapshot.cursor);
    let second = two.acquire(&config(), &claim(2)).await.unwrap();
    // In the list, and in what is heard later.
    let own = first.held.lease.subnet;
    let listed = second.snapshot.leases.iter().find(|stored| stored.lease.subnet == own);
    assert_eq!(listed.unwrap().lease.attrs.owner.as_deref(), Some("node-1"));
    let stored = loop {
        match next_change(&mut events).await {
            StoreEvent::Put(stored) if stored.lease.subnet == second.held.lease.subnet => {
                break stored;
            }
            _ => {}
        }
    };
    assert_eq!(stored.lease.attrs.owner.as_deref(), Some("node-2"));
    assert!(stored.lease.attrs.announce_the_same_as(&second.held.lease.attrs));
}

/// Reads until the other side ends it.
async fn until_the_end(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let read = stream.read_to_end(&mut all);
    let _ = timeout(WAIT_LIMIT, read).await.expect("the stream ends");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn what_a_revoked_token_listens_to_ends_at_once_and_what_others_listen_to_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let both = [(OLD, "old any"), (NEW, "new any")];
    let tokens = write_tokens(dir.path(), &both);
    let server = serve(dir.path(), Options { tokens: Some(tokens), ..plain_options(0) }).await;
    set_config(&server).await;
    let open = async |token: &str, path: &str| {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    let cursor = server.embedded.watch_logs().get_or_create(&Default::default()).snapshot().cursor;
    let next = format!("/v1/_/leases?next={}", cursor.revision);
    let mut events = open(OLD, "/v1/_/events").await;
    let mut poll = open(OLD, &next).await;
    let mut networks = open(OLD, &format!("/v1/?next={}", cursor.revision)).await;
    let mut other = with(server.address, NEW).watch(Cursor::BEGINNING);
    while !matches!(timeout(WAIT_LIMIT, other.recv()).await, Ok(Some(StoreEvent::Snapshot(_)))) {}
    // All of them have been let in.
    let mut first = [0; 15];
    events.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    tokio::time::sleep(Duration::from_millis(100)).await;

    write_tokens(dir.path(), &both[1..]);
    let rest = until_the_end(&mut events).await;
    assert!(rest.contains("10.5.0.0/16"), "it had been told the table: {rest}");
    for stream in [&mut poll, &mut networks] {
        let said = until_the_end(stream).await;
        assert!(said.starts_with("HTTP/1.1 401") && said.contains("revoked"), "{said}");
    }
    let (status, _) = http(
        server.address,
        &format!("GET /v1/_/leases HTTP/1.1\r\nAuthorization: Bearer {OLD}"),
        "",
    )
    .await;
    assert_eq!(status, 401);
    // The other one has not noticed anything.
    with(server.address, NEW).acquire(&config(), &claim(1)).await.unwrap();
    assert!(matches!(timeout(WAIT_LIMIT, other.recv()).await, Ok(Some(StoreEvent::Put(_)))));
}

#[tokio::test]
async fn a_stream_ends_also_when_its_token_gets_other_rights() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = write_tokens(dir.path(), &[(OLD, "old admin")]);
    let server = serve(dir.path(), Options { tokens: Some(tokens), ..plain_options(0) }).await;
    set_config(&server).await;
    let head = format!(
        "GET /v1/_/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {OLD}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 15];
    stream.read_exact(&mut first).await.unwrap();
    write_tokens(dir.path(), &[(OLD, "old 192.0.2.1")]);
    until_the_end(&mut stream).await;
}

/// In front of etcd, whose leases any flannel may have written.
#[tokio::test]
async fn in_front_of_etcd_nobody_changes_anothers_lease() {
    let etcd = EtcdServer::start();
    let direct = etcd.store(1);
    direct.set_config(CONFIG, false).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let lines =
        [(OLD, "old 192.0.2.1"), (NEW, "new 192.0.2.1"), (NAT, "nat any"), (BOSS, "boss admin")];
    let tokens = write_tokens(dir.path(), &lines);
    let start = async || {
        let service = Arc::new(StoreService::etcd(etcd.options()).unwrap());
        let at = serve_with_tokens(service, tokens.clone()).await;
        let ready = async {
            while !matches!(with(at, BOSS).config().await, Ok(Some(_))) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WAIT_LIMIT, ready).await.expect("it follows etcd");
        at
    };
    let at = start().await;
    // Reserved, of a node that writes to etcd itself, and of one with a token. The reserved one
    // comes first: a node that takes any free subnet could take just this one.
    let kept = subnet("10.5.9.0-24");
    with(at, BOSS).reserve(&kept, &attrs(7)).await.unwrap();
    let foreign = direct.acquire(&config(), &claim(5)).await.unwrap().held;
    let named = with(at, OLD).acquire(&config(), &claim(1)).await.unwrap().held;
    let seen = async |at: SocketAddr, count: usize| {
        let all = async {
            while with(at, BOSS).snapshot().await.unwrap().leases.len() < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WAIT_LIMIT, all).await.expect("all are seen");
    };
    seen(at, 3).await;
    let nat = with(at, NAT);
    let own = nat.acquire(&config(), &claim(50)).await.unwrap().held;
    let mut before = direct.list().await.unwrap();
    let denied = |what: &str, result: Result<(), StoreError>| match result {
        Err(StoreError::Denied { reason, .. }) => {
            assert!(reason.contains("flannelctl release"), "{reason}")
        }
        other => panic!("{what}: {other:?}"),
    };
    let reserved = before.iter().find(|held| held.lease.subnet == kept).unwrap().clone();
    for (held, node) in [(&foreign, 5), (&named, 1), (&reserved, 7)] {
        denied("acquire", nat.acquire(&config(), &claim(node)).await.map(drop));
        denied("renew", nat.renew(held, &attrs(node)).await.map(drop));
        denied("take over", nat.renew(held, &attrs(50)).await.map(drop));
        denied("release", nat.release(held).await);
        denied("move in", nat.renew(&own, &attrs(node)).await.map(drop));
    }
    denied("replace", with(at, NEW).acquire(&config(), &claim(1)).await.map(drop));
    let mut after = direct.list().await.unwrap();
    let by_subnet = |held: &flannel_store::Held| held.lease.subnet;
    before.sort_by_key(by_subnet);
    after.sort_by_key(by_subnet);
    let versions = |list: &[flannel_store::Held]| {
        list.iter().map(|h| (h.lease.clone(), h.version)).collect::<Vec<_>>()
    };
    assert_eq!(versions(&before), versions(&after), "nothing was changed");

    // Another server in front of the same etcd knows whose is whose, and so does this one later.
    let there = start().await;
    seen(there, 4).await;
    let again = with(there, NAT).renew(&own, &attrs(50)).await.unwrap();
    denied("elsewhere", with(there, NEW).acquire(&config(), &claim(1)).await.map(drop));
    assert_ne!(again.version, own.version);
    // It is the same node at another address, too: the lease says whose it is.
    let moved = with(there, NAT).renew(&again, &attrs(51)).await.unwrap();
    assert_eq!((moved.lease.subnet, &moved.lease.attrs), (own.lease.subnet, &attrs(51)));
    with(there, BOSS).revoke(&named.lease.subnet).await.unwrap();
    let new = with(there, NEW);
    let in_the_end = async {
        while new.acquire(&config(), &claim(1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, in_the_end).await.expect("the new machine has its lease");
    let owner = |leases: &[flannel_store::StoredLease], node| {
        let mut all = leases.iter().map(|stored| &stored.lease.attrs);
        all.find(|it| it.announce_the_same_as(&attrs(node)))?.owner.clone()
    };
    // The server hears of its own writes from etcd, as of all others.
    let told = async {
        loop {
            let leases = new.snapshot().await.unwrap().leases;
            if let (Some(one), Some(other)) = (owner(&leases, 1), owner(&leases, 51)) {
                return (one, other);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let owners = timeout(WAIT_LIMIT, told).await.expect("both leases are told");
    assert_eq!(owners, ("new".into(), "nat".into()));
}

#[tokio::test]
async fn what_a_lease_cannot_carry_is_refused_with_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let node = server.remote();
    let held = node.acquire(&config(), &claim(1)).await.unwrap().held;
    let data = flannel_lease::RawJson::read(&format!("\"{}\"", "x".repeat(200_000))).unwrap();
    let large = flannel_lease::LeaseAttrs { backend_data: data, ..attrs(1) };
    let said = node.renew(&held, &large).await.unwrap_err().to_string();
    assert!(said.contains("200007 bytes") && said.contains("8192"), "{said}");
    assert_eq!(node.snapshot().await.unwrap().leases, [held.lease]);

    let etcd = EtcdServer::start();
    etcd.store(1).set_config(CONFIG, false).await.unwrap();
    let service = Arc::new(StoreService::etcd(etcd.options()).unwrap());
    let server = Server::bind(plain_options(0)).await.unwrap();
    let node = remote(&[server.address()], |_| {});
    tokio::spawn(async move { match server.run(service).await {} });
    let ready = async {
        while !matches!(node.config().await, Ok(Some(_))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, ready).await.expect("it follows etcd");
    let large = flannel_store::Claim::new(large, None);
    let said = node.acquire(&config(), &large).await.unwrap_err().to_string();
    assert!(said.contains("200007 bytes") && said.contains("8192"), "{said}");
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_its_streams_end() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let tls = pki.server_files(true);
    let server = serve(dir.path(), Options { tls: Some(tls), ..plain_options(0) }).await;
    set_config(&server).await;
    let connect = |name: &str, serial: u8| {
        let (cert, key) = pki.issue_with(name, &[name, "192.0.2.1"], |params| {
            params.serial_number = Some(rcgen::SerialNumber::from_slice(&[serial]));
        });
        remote(&[server.address], |options| {
            // The file of the server's has the list in it; nodes do not mind.
            options.ca = Some(pki.file("ca.pem"));
            (options.cert, options.key) = (Some(cert), Some(key));
        })
    };
    let (bad, good) = (connect("bad", 66), connect("good", 67));
    let (mut of_bad, mut of_good) = (bad.watch(Cursor::BEGINNING), good.watch(Cursor::BEGINNING));
    for events in [&mut of_bad, &mut of_good] {
        while !matches!(next(events).await, StoreEvent::Snapshot(_)) {}
    }
    bad.snapshot().await.unwrap();
    std::fs::write(pki.file("ca.pem"), format!("{}{}", pki.ca_pem(), pki.revoke(&[66]))).unwrap();
    assert!(matches!(next(&mut of_bad).await, StoreEvent::Down(_)));
    assert!(bad.snapshot().await.is_err(), "neither by the connection it had nor by a new one");
    good.snapshot().await.unwrap();
    let quiet = timeout(Duration::from_secs(1), of_good.recv()).await;
    assert!(quiet.is_err(), "the other one goes on: {quiet:?}");
}
