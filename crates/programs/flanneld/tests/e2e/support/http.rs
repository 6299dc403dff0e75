//! One HTTP request from inside a namespace, for probes and for what the lab does not ask of etcd.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use flannel_lab::{Lab, Namespace, Place as _, Result};
use serde_json::{Value, json};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const PROBES: u16 = 8081;
const ETCD: u16 = 2379;

/// Status and body.
pub(crate) type Answer = (u16, String);

/// Asks the probe server of a node.
pub(crate) fn probe(lab: &Lab, node: u16, path: &str) -> Result<io::Result<Answer>> {
    request(lab.node(node).namespace(), PROBES, "GET", path, "")
}

/// The same by another method than GET.
pub(crate) fn probe_by(lab: &Lab, node: u16, method: &str, path: &str) -> Result<Answer> {
    let answer = request(lab.node(node).namespace(), PROBES, method, path, "")?;
    Ok(answer.expect("the probe server answers"))
}

/// Asks the daemon of a node through its socket, as root may.
pub(crate) fn door(lab: &Lab, node: u16, method: &str, path: &str) -> io::Result<Answer> {
    let pid = lab.node(node).flanneld().pid().ok_or(io::ErrorKind::NotFound)?;
    let mut stream = UnixStream::connect(format!("/proc/{pid}/root/run/flannel/flanneld.sock"))?;
    // Of HTTP 1.0, so that the answer comes in one piece.
    write!(stream, "{method} {path} HTTP/1.0\r\nhost: flanneld\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}

/// Asks etcd's own gateway.
pub(crate) fn ask_etcd(lab: &Lab, path: &str, body: &Value) -> Result<Value> {
    let namespace = lab.etcd()?.namespace(0)?;
    let answer = request(namespace, ETCD, "POST", path, &body.to_string())?;
    let (status, answer) = answer.expect("etcd answers");
    assert_eq!(status, 200, "{path}: {answer}");
    Ok(serde_json::from_str(&answer).expect("etcd speaks JSON"))
}

/// Forgets the store's history up to now.
pub(crate) fn compact(lab: &Lab) -> Result<()> {
    let now = ask_etcd(lab, "/v3/kv/range", &json!({"key": "AA=="}))?;
    let revision = now["header"]["revision"].clone();
    ask_etcd(lab, "/v3/kv/compaction", &json!({"revision": revision, "physical": true})).map(drop)
}

fn request(
    namespace: &Namespace,
    port: u16,
    method: &str,
    path: &str,
    body: &str,
) -> Result<io::Result<Answer>> {
    let answer = namespace.http(port, method, path, body, ANSWER_TIMEOUT)?;
    Ok(answer.map(|answer| (answer.status, answer.body)))
}
