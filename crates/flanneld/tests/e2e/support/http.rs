//! One HTTP request from inside a namespace, for probes and for what the lab does not ask of etcd.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use flannel_lab::{Lab, Namespace, Result};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(5);
const PROBES: u16 = 8081;
const ETCD: u16 = 2379;

/// Status and body.
pub(crate) type Answer = (u16, String);

/// Asks the probe server of a node.
pub(crate) fn probe(lab: &Lab, node: u16, path: &str) -> Result<io::Result<Answer>> {
    lab.node(node).in_netns(|| request(PROBES, "GET", path, ""))
}

/// Asks etcd's own gateway.
pub(crate) fn ask_etcd(lab: &Lab, path: &str, body: &Value) -> Result<Value> {
    let (status, answer) =
        inside(lab.etcd()?.namespace(0)?, || request(ETCD, "POST", path, &body.to_string()))?
            .expect("etcd answers");
    assert_eq!(status, 200, "{path}: {answer}");
    Ok(serde_json::from_str(&answer).expect("etcd speaks JSON"))
}

/// Forgets the store's history up to now.
pub(crate) fn compact(lab: &Lab) -> Result<()> {
    let now = ask_etcd(lab, "/v3/kv/range", &json!({"key": "AA=="}))?;
    let revision = now["header"]["revision"].clone();
    ask_etcd(lab, "/v3/kv/compaction", &json!({"revision": revision, "physical": true})).map(drop)
}

fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> T + Send) -> Result<T> {
    namespace.run(work)
}

fn request(port: u16, method: &str, path: &str, body: &str) -> io::Result<Answer> {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    // Of version 1.0: the answer ends with the connection.
    let text =
        format!("{method} {path} HTTP/1.0\r\nHost: {to}\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parsed = answer
        .split_once("\r\n\r\n")
        .and_then(|(head, body)| Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned())));
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, answer))
}
