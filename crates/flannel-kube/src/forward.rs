//! A port of a pod's own host, as `kubectl port-forward` reaches it: through the API server, the kubelet and the
//! container runtime, which connects to the pod's loopback address. So what listens there alone can be asked by who
//! has the right to `pods/portforward`, and by nobody else.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use flannel_https::Upgraded;
use flannel_https::websocket::{self, Message, Reader};
use serde::Deserialize;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf,
};
use tokio::sync::Mutex;

use crate::api::{Api, ApiError};

/// Each message begins with the number of its channel: data of the port, and what went wrong with it.
const DATA: u8 = 0;
const ERROR: u8 = 1;
/// On each of them the server first repeats the number of the port.
const PREFACE: usize = 2;
const LARGEST_MESSAGE: usize = 1 << 20;
const PIECE: usize = 16 << 10;

/// Pods are listed again when one is not found, or not reached, but not more often than this.
const LIST_PAUSE: Duration = Duration::from_secs(3);
/// A pod that has been replaced is found out by then.
const LIST_LIFE: Duration = Duration::from_secs(30);
/// All of flannel's pods have it, whichever manifest or chart they are from.
const LABEL: &str = "app=flannel";
/// The name of the probe port in our manifests, and its number where there is none of that name.
const PORT_NAME: &str = "healthz";
const PORT: u16 = 8081;

/// The probe ports of flannel's pods in one namespace.
#[derive(Debug)]
pub struct ProbePorts {
    api: Api,
    namespace: String,
    pods: Mutex<Pods>,
}

#[derive(Debug, Default)]
struct Pods {
    by_node: HashMap<String, FlannelPod>,
    listed: Option<Instant>,
    /// One of them was not reached.
    is_doubtful: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlannelPod {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) phase: String,
}

impl ProbePorts {
    pub fn new(api: Api, namespace: &str) -> Self {
        Self { api, namespace: namespace.to_owned(), pods: Mutex::default() }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A connection to the flanneld on a node. The error is for an operator.
    pub async fn connect(&self, node: &str) -> Result<Forwarded, String> {
        let namespace = &self.namespace;
        let pod = self.pod(node).await?.ok_or_else(|| {
            format!("there is no pod of flannel ({LABEL}) on it in the namespace {namespace}")
        })?;
        if pod.phase != "Running" {
            self.pods.lock().await.is_doubtful = true;
            return Err(format!("pod {namespace}/{} is {}", pod.name, pod.phase));
        }
        match self.api.forward(namespace, &pod.name, pod.port).await {
            Ok(upgraded) => Ok(Forwarded::new(upgraded)),
            Err(error) => {
                self.pods.lock().await.is_doubtful = true;
                Err(in_words(error, &format!("of pod {namespace}/{}", pod.name)))
            }
        }
    }

    /// Callers that arrive while Pods are being listed wait for the list.
    async fn pod(&self, node: &str) -> Result<Option<FlannelPod>, String> {
        let mut pods = self.pods.lock().await;
        let age = pods.listed.map(|at| at.elapsed());
        let known = pods.by_node.get(node).filter(|_| !pods.is_doubtful).cloned();
        let life = if known.is_some() { LIST_LIFE } else { LIST_PAUSE };
        if age.is_some_and(|age| age < life) {
            return Ok(pods.by_node.get(node).cloned());
        }
        let listed = self.api.flannel_pods(&self.namespace, LABEL).await;
        pods.by_node = listed.map_err(|error| in_words(error, &self.namespace))?;
        (pods.listed, pods.is_doubtful) = (Some(Instant::now()), false);
        Ok(pods.by_node.get(node).cloned())
    }
}

fn in_words(error: ApiError, named: &str) -> String {
    error.into_store_error(named).to_string()
}

/// What of a list of pods matters here.
#[derive(Deserialize)]
pub(crate) struct PodList {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Pod>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ListMeta {
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default, rename = "deletionTimestamp")]
    deleted: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodSpec {
    #[serde(rename = "nodeName")]
    node: String,
    containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Container {
    ports: Vec<Port>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Port {
    name: String,
    #[serde(rename = "containerPort")]
    number: u16,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

impl PodList {
    /// Adds them to those of pages before; returns where the next page begins.
    pub(crate) fn take_into(self, by_node: &mut HashMap<String, FlannelPod>) -> Option<String> {
        for Pod { metadata, spec, status } in self.items {
            let ports = spec.containers.into_iter().flat_map(|container| container.ports);
            let mut named = ports.filter(|port| port.name == PORT_NAME);
            let port = named.next().map_or(PORT, |port| port.number);
            let (name, phase) = (metadata.name, status.phase);
            // While one pod takes another's place there are two.
            let is_leaving = metadata.deleted.is_some();
            if !is_leaving || !by_node.contains_key(&spec.node) {
                let phase = if is_leaving { "being replaced".to_owned() } else { phase };
                by_node.insert(spec.node, FlannelPod { name, port, phase });
            }
        }
        Some(self.metadata.next).filter(|next| !next.is_empty())
    }
}

/// A stream to the port. It ends when it is dropped.
#[derive(Debug)]
pub struct Forwarded {
    stream: DuplexStream,
    /// Why it ended, if something went wrong.
    why: Arc<OnceLock<String>>,
}

impl Forwarded {
    fn new(socket: Upgraded) -> Self {
        let (stream, other) = tokio::io::duplex(4 * PIECE);
        let why = Arc::new(OnceLock::new());
        let told = why.clone();
        tokio::spawn(async move {
            if let Err(wrong) = carry(socket, other, &told).await {
                let _ = told.set(wrong);
            }
        });
        Self { stream, why }
    }
}

/// Carries bytes both ways until either side has ended.
async fn carry(
    mut socket: Upgraded,
    mut local: DuplexStream,
    told: &OnceLock<String>,
) -> Result<(), String> {
    let broke = |error: io::Error| format!("the connection broke off: {error}");
    let mut reader = Reader::new(LARGEST_MESSAGE);
    let mut said = Channels::default();
    let mut outgoing = vec![0; PIECE];
    loop {
        while let Some(message) = reader.next_message()? {
            match message {
                Message::Data(message) => match said.take(&message)? {
                    Some(Said::Data(bytes)) => local.write_all(bytes).await.map_err(broke)?,
                    Some(Said::Wrong(why)) => {
                        let _ = told.set(why);
                        return Ok(());
                    }
                    None => {}
                },
                Message::Ping(payload) => {
                    let pong = websocket::pong(&payload, fastrand::u32(..).to_be_bytes());
                    socket.write_all(&pong).await.map_err(broke)?;
                }
                Message::Close => return Ok(()),
            }
        }
        tokio::select! {
            read = socket.read_buf(&mut reader.buffer) => {
                if read.map_err(broke)? == 0 {
                    return Ok(());
                }
            }
            // The first byte names the channel.
            read = local.read(&mut outgoing[1..]) => {
                let length = read.map_err(broke)?;
                if length == 0 {
                    return Ok(());
                }
                outgoing[0] = DATA;
                let frame =
                    websocket::data(&outgoing[..=length], fastrand::u32(..).to_be_bytes());
                socket.write_all(&frame).await.map_err(broke)?;
                socket.flush().await.map_err(broke)?;
            }
        }
    }
}

/// What comes on the two channels of the one port that is asked for.
#[derive(Debug, Default)]
struct Channels {
    /// How much of each channel's preface has come.
    begun: [usize; 2],
}

#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    Data(&'a [u8]),
    Wrong(String),
}

impl Channels {
    fn take<'a>(&mut self, message: &'a [u8]) -> Result<Option<Said<'a>>, String> {
        let Some((&channel, mut bytes)) = message.split_first() else { return Ok(None) };
        let begun = self.begun.get_mut(usize::from(channel));
        let begun = begun.ok_or("the API server speaks of a port that nobody asked for")?;
        let preface = bytes.len().min(PREFACE - *begun);
        *begun += preface;
        bytes = &bytes[preface..];
        if bytes.is_empty() {
            return Ok(None);
        }
        Ok(Some(match channel {
            ERROR => Said::Wrong(String::from_utf8_lossy(bytes).trim().to_owned()),
            _ => Said::Data(bytes),
        }))
    }
}

impl AsyncRead for Forwarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let is_over = matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        match self.why.get().filter(|_| is_over && buffer.remaining() > 0) {
            Some(why) => Poll::Ready(Err(io::Error::other(why.clone()))),
            None => read,
        }
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_port_comes_first_and_is_no_data() {
        let mut channels = Channels::default();
        let mut take = |message: &[u8]| match channels.take(message) {
            Ok(Some(Said::Data(bytes))) => Ok(Some(bytes.to_vec())),
            Ok(Some(Said::Wrong(why))) => Err(why),
            Ok(None) => Ok(None),
            Err(why) => Err(why),
        };
        assert_eq!(take(&[DATA, 0x91]), Ok(None));
        assert_eq!(take(&[ERROR, 0x91, 0x1f]), Ok(None));
        assert_eq!(take(&[DATA, 0x1f, b'h']), Ok(Some(b"h".to_vec())), "cut up as it may be");
        assert_eq!(take(b"\0ello"), Ok(Some(b"ello".to_vec())));
        assert_eq!(take(b"\x01connection refused\n"), Err("connection refused".to_owned()));
        assert!(take(&[7, 1]).is_err());
        assert_eq!(take(&[]), Ok(None));
    }

    #[test]
    fn of_two_pods_on_a_node_the_one_that_stays_is_asked_on_the_port_that_it_names() {
        let list = serde_json::json!({"metadata": {"continue": "more"}, "items": [
            {"metadata": {"name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"},
             "spec": {"nodeName": "one"}, "status": {"phase": "Running"}},
            {"metadata": {"name": "new"}, "status": {"phase": "Running"}, "spec": {"nodeName": "one",
             "containers": [{}, {"ports": [{"name": "metrics", "containerPort": 1},
                                           {"name": "healthz", "containerPort": 9000}]}]}},
            {"metadata": {"name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"},
             "spec": {"nodeName": "two"}, "status": {"phase": "Running"}}]});
        let mut by_node = HashMap::new();
        let list: PodList = serde_json::from_value(list).expect("a list");
        assert_eq!(list.take_into(&mut by_node).as_deref(), Some("more"));
        let pod = |name: &str, port, phase: &str| FlannelPod {
            name: name.to_owned(),
            port,
            phase: phase.to_owned(),
        };
        assert_eq!(by_node["one"], pod("new", 9000, "Running"));
        assert_eq!(by_node["two"], pod("old", 8081, "being replaced"));
    }
}
