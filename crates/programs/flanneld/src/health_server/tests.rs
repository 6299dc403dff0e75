use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;

const TEST: Limits = Limits {
    connections: 4,
    lifetime: Duration::from_secs(60),
    rebind: Backoff::new(Duration::from_millis(10), Duration::from_millis(40)),
};

struct Server {
    port: u16,
    readiness: watch::Sender<Readiness>,
    task: JoinHandle<Infallible>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn start(limits: Limits) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let (readiness, watched) = watch::channel(Readiness::not_ready(""));
    let told = HealthSources { readiness: watched, door: None };
    let task = tokio::spawn(async move { accept_forever(limits, &listener, &told).await });
    Server { port, readiness, task }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.expect("the server listens")
    }

    /// Status and body.
    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = self.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        split(&read_all(&mut stream).await)
    }
}

/// Until the server closes; a bound so that a test of a hanging server ends.
async fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await;
    // A reset is an end as well.
    let _ = read.expect("the server closes in time");
    String::from_utf8(bytes).expect("text")
}

fn split(response: &str) -> (u16, String) {
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

#[tokio::test]
async fn healthz_is_well_from_the_first_moment() {
    let server = start(TEST).await;
    assert_eq!(server.get("/healthz").await, (200, "flanneld is running".to_owned()));
    assert_eq!(server.get("/healthz?verbose").await.0, 200);
}

#[tokio::test]
async fn who_says_so_asks_several_things_on_one_connection() {
    let server = start(TEST).await;
    let mut stream = server.connect().await;
    let mut read = Vec::new();
    for asked in 1..=3 {
        let request = "GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: keep-alive\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("it is still open");
        let answered = |read: &[u8]| String::from_utf8_lossy(read).matches("is running").count();
        while answered(&read) < asked {
            assert!(stream.read_buf(&mut read).await.expect("an answer") > 0, "it has ended");
        }
    }
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n").await.expect("it is sent");
    assert!(read_all(&mut stream).await.contains("connection: close"));
}

#[tokio::test]
async fn defect_65_readiness_can_be_lost_again_and_says_why() {
    let server = start(TEST).await;
    assert_eq!(server.get("/readyz").await, (503, "flanneld is not ready yet".to_owned()));
    server.readiness.send_replace(Readiness::new(Verdict::Ready, ""));
    assert_eq!(server.get("/readyz").await, (200, "flanneld is ready".to_owned()));
    server.readiness.send_replace(Readiness::not_ready("eth0 has no address"));
    assert_eq!(
        server.get("/readyz").await,
        (503, "flanneld is not ready yet\neth0 has no address".to_owned())
    );
}

#[tokio::test]
async fn there_is_nothing_else() {
    let server = start(TEST).await;
    for path in ["/", "/metrics", "/healthz/", "/readyzz"] {
        assert_eq!(server.get(path).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn garbage_is_answered_or_cut_off_and_the_next_is_served() {
    let server = start(TEST).await;
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    for garbage in ["\r\n\r\n\0\0", "GET\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &long] {
        let mut stream = server.connect().await;
        // The server may stop listening to it half way through.
        let _ = stream.write_all(garbage.as_bytes()).await;
        let _ = stream.shutdown().await;
        let answer = read_all(&mut stream).await;
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert_eq!(server.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_slow_client_is_cut_off_in_time() {
    let server = start(Limits { lifetime: Duration::from_millis(50), ..TEST }).await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET /heal").await.expect("it is sent");
    assert_eq!(read_all(&mut slow).await, "");
}

#[tokio::test]
async fn many_idle_clients_do_not_keep_a_probe_waiting() {
    let server = start(TEST).await;
    let mut idle = Vec::new();
    for _ in 0..3 * TEST.connections {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /").await.expect("it is sent");
        idle.push(stream);
    }
    assert_eq!(server.get("/healthz").await.0, 200);
    assert_eq!(read_all(&mut idle[0]).await, "", "the oldest made room");
}

#[tokio::test]
async fn defect_66_a_port_in_use_is_waited_for() {
    let holder = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = holder.local_addr().expect("it is bound").port();
    let address = ProbeAddress { host: "127.0.0.1".to_owned(), port };
    let (readiness, watched) = watch::channel(Readiness::new(Verdict::Ready, ""));
    let told = HealthSources { readiness: watched, door: None };
    let task = tokio::spawn(serve_within(TEST, address, told));
    let server = Server { port, readiness, task };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!server.task.is_finished(), "it goes on trying");
    drop(holder);
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        assert!(Instant::now() < deadline, "the freed port is taken");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.get("/readyz").await, (200, "flanneld is ready".to_owned()));
}

#[tokio::test]
async fn an_empty_host_is_every_address() {
    let listener = bind(&ProbeAddress { host: String::new(), port: 0 }).await.expect("it is bound");
    let address = listener.local_addr().expect("it is bound");
    assert!(address.ip().is_unspecified(), "{address}");
}

#[tokio::test]
async fn a_dropped_server_ends_its_connections() {
    let server = start(TEST).await;
    let mut open = server.connect().await;
    open.write_all(b"GET /").await.expect("it is sent");
    assert_eq!(server.get("/healthz").await.0, 200, "so the open one was accepted before");
    drop(server);
    assert_eq!(read_all(&mut open).await, "");
}
