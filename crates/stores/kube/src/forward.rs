//! A port of a pod's own host, as `kubectl port-forward` reaches it: through the API server, the kubelet and the
//! container runtime, which connects to the pod's loopback address. So what listens there alone can be asked by who
//! has the right to `pods/portforward`, and by nobody else.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use flannel_common::Task;
use flannel_https::Upgraded;
use flannel_https::websocket::{self, Message, Reader};
use serde_json::Value;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf,
};
use tokio::sync::watch;

use crate::api::Api;
use crate::client::{CORE, Client, Collection};

/// Each message begins with the number of its channel: data of the port, and what went wrong with it.
const DATA_CHANNEL: u8 = 0;
const ERROR_CHANNEL: u8 = 1;
/// On each of them the server first repeats the number of the port.
const PREFACE_BYTES: usize = 2;
const MAX_MESSAGE_BYTES: usize = 1 << 20;
const CHUNK_BYTES: usize = 16 << 10;

/// Pods are listed again when one is not found, or not reached, but not more often than this.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(3);
/// A pod that has been replaced is found out by then.
const MAX_LIST_AGE: Duration = Duration::from_secs(30);
/// All of flannel's pods have it, whichever manifest or chart they are from.
const POD_LABEL: &str = "app=flannel";
/// The name of the probe port in our manifests, and its number where there is none of that name.
const PORT_NAME: &str = "healthz";
const DEFAULT_PORT: u16 = 8081;

#[derive(Debug)]
pub struct ProbePorts {
    client: Arc<Client>,
    pub namespace: String,
    pods: watch::Sender<PodListing>,
}

#[derive(Debug, Default)]
struct PodListing {
    by_node: HashMap<String, FlannelPod>,
    /// Time at which it ended.
    at: Option<Instant>,
    failure: Option<String>,
    /// One of the pods was not reached.
    is_doubtful: bool,
    is_running: bool,
}

impl PodListing {
    /// Whether pods are to be listed again before the pod on this node is told.
    fn is_stale_for(&self, node: &str) -> bool {
        let is_good = self.failure.is_none() && !self.is_doubtful;
        let life = if is_good && self.by_node.contains_key(node) {
            MAX_LIST_AGE
        } else {
            MIN_LIST_INTERVAL
        };
        self.at.is_none_or(|at| at.elapsed() >= life)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FlannelPod {
    name: String,
    port: u16,
    phase: String,
}

impl ProbePorts {
    pub fn new(api: &Api, namespace: &str) -> Self {
        let (client, pods) = (api.client.clone(), watch::Sender::default());
        Self { client, namespace: namespace.to_owned(), pods }
    }

    /// A connection to the flanneld on a node. The error is for an operator.
    pub async fn connect(&self, node: &str) -> Result<Forwarded, String> {
        let namespace = &self.namespace;
        let pod = self.pod(node).await?.ok_or_else(|| {
            format!("there is no pod of flannel ({POD_LABEL}) on it in the namespace {namespace}")
        })?;
        if pod.phase != "Running" {
            self.doubt();
            return Err(format!("pod {namespace}/{} is {}", pod.name, pod.phase));
        }
        match self.client.forward_port(namespace, &pod.name, pod.port).await {
            Ok(upgraded) => Ok(Forwarded::new(upgraded)),
            Err(error) => {
                self.doubt();
                let named = format!("of pod {namespace}/{}", pod.name);
                Err(error.into_store_error(&named).to_string())
            }
        }
    }

    fn doubt(&self) {
        self.pods.send_modify(|pods| pods.is_doubtful = true);
    }

    /// Callers that arrive while pods are being listed wait for that list, and share its failure.
    async fn pod(&self, node: &str) -> Result<Option<FlannelPod>, String> {
        let begins = self.pods.send_if_modified(|pods| {
            let begins = !pods.is_running && pods.is_stale_for(node);
            pods.is_running |= begins;
            begins
        });
        if begins {
            let (client, pods) = (self.client.clone(), self.pods.clone());
            let list = list_pods(client, self.namespace.clone(), pods);
            Task::spawn("list of flannel's pods", list).detach();
        }
        let mut pods = self.pods.subscribe();
        let listed = pods.wait_for(|pods| !pods.is_running).await;
        let listed = listed.map_err(|error| error.to_string())?;
        match &listed.failure {
            Some(why) => Err(why.clone()),
            None => Ok(listed.by_node.get(node).cloned()),
        }
    }
}

async fn list_pods(client: Arc<Client>, namespace: String, told: watch::Sender<PodListing>) {
    let pods = Collection::of_namespace(CORE, &namespace, "pods");
    let mut by_node = HashMap::new();
    let pods = pods.selecting("labelSelector", POD_LABEL);
    let listed = client.list(&pods, |pod| add_pod(&mut by_node, &pod)).await;
    told.send_modify(|pods| {
        *pods = PodListing { at: Some(Instant::now()), ..PodListing::default() };
        match listed {
            Ok(_) => pods.by_node = by_node,
            Err(error) => pods.failure = Some(error.into_store_error(&namespace).to_string()),
        }
    });
}

fn add_pod(by_node: &mut HashMap<String, FlannelPod>, pod: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let containers = list(&pod["spec"]["containers"]);
    let ports = containers.iter().flat_map(|container| list(&container["ports"]));
    let named = ports.filter(|port| port["name"] == PORT_NAME);
    let port = named.filter_map(|port| u16::try_from(port["containerPort"].as_u64()?).ok()).next();
    // While one pod takes another's place there are two.
    let is_leaving = pod["metadata"]["deletionTimestamp"].is_string();
    let node = text(&pod["spec"]["nodeName"]);
    if !is_leaving || !by_node.contains_key(&node) {
        let phase = &pod["status"]["phase"];
        let phase = if is_leaving { "being replaced".to_owned() } else { text(phase) };
        let (name, port) = (text(&pod["metadata"]["name"]), port.unwrap_or(DEFAULT_PORT));
        by_node.insert(node, FlannelPod { name, port, phase });
    }
}

/// A stream to the port. It ends when it is dropped.
#[derive(Debug)]
pub struct Forwarded {
    stream: DuplexStream,
    why: Arc<OnceLock<String>>,
    _carrier: Task,
}

impl Forwarded {
    fn new(socket: Upgraded) -> Self {
        let (stream, mut other) = tokio::io::duplex(4 * CHUNK_BYTES);
        let why = Arc::new(OnceLock::new());
        let told = why.clone();
        let carrier = Task::spawn("forwarded port", async move {
            // The stream ends after that.
            if let Err(wrong) = carry(socket, &mut other).await {
                let _ = told.set(wrong);
            }
        });
        Self { stream, why, _carrier: carrier }
    }
}

async fn carry(mut socket: Upgraded, local: &mut DuplexStream) -> Result<(), String> {
    let broke = |error: io::Error| format!("the connection broke off: {error}");
    let mut reader = Reader::new(MAX_MESSAGE_BYTES);
    let mut begun = [0; 2];
    let mut outgoing = vec![0; CHUNK_BYTES];
    loop {
        while let Some(message) = reader.next_message()? {
            match message {
                Message::Data(message) => {
                    if let Some(bytes) = take_data(&mut begun, &message)? {
                        local.write_all(bytes).await.map_err(broke)?;
                    }
                }
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
                outgoing[0] = DATA_CHANNEL;
                let frame =
                    websocket::data(&outgoing[..=length], fastrand::u32(..).to_be_bytes());
                socket.write_all(&frame).await.map_err(broke)?;
                socket.flush().await.map_err(broke)?;
            }
        }
    }
}

/// Data in a message. The error is that of the port, too. `begun` are the bytes of each channel's preface so far.
fn take_data<'a>(begun: &mut [usize; 2], message: &'a [u8]) -> Result<Option<&'a [u8]>, String> {
    let Some((&channel, mut bytes)) = message.split_first() else { return Ok(None) };
    let begun = begun.get_mut(usize::from(channel));
    let begun = begun.ok_or("the API server sent data of a port that was not requested")?;
    let preface = bytes.len().min(PREFACE_BYTES - *begun);
    *begun += preface;
    bytes = &bytes[preface..];
    match channel {
        _ if bytes.is_empty() => Ok(None),
        ERROR_CHANNEL => Err(String::from_utf8_lossy(bytes).trim().to_owned()),
        _ => Ok(Some(bytes)),
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::access::Access;
    use crate::annotations::AnnotationPrefix;

    #[test]
    fn the_number_of_the_port_comes_first_and_is_no_data() {
        let mut begun = [0; 2];
        let mut take =
            |message: &[u8]| take_data(&mut begun, message).map(|bytes| bytes.map(<[u8]>::to_vec));
        assert_eq!(take(&[DATA_CHANNEL, 0x91]), Ok(None));
        assert_eq!(take(&[ERROR_CHANNEL, 0x91, 0x1f]), Ok(None));
        assert_eq!(
            take(&[DATA_CHANNEL, 0x1f, b'h']),
            Ok(Some(b"h".to_vec())),
            "cut up as it may be"
        );
        assert_eq!(take(b"\0ello"), Ok(Some(b"ello".to_vec())));
        assert_eq!(take(b"\x01connection refused\n"), Err("connection refused".to_owned()));
        assert!(take(&[7, 1]).is_err());
        assert_eq!(take(&[]), Ok(None));
    }

    #[test]
    fn of_two_pods_on_a_node_the_one_that_stays_is_asked_on_the_port_that_it_names() {
        let pods = serde_json::json!([
            {"metadata": {"name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"},
             "spec": {"nodeName": "one"}, "status": {"phase": "Running"}},
            {"metadata": {"name": "new"}, "status": {"phase": "Running"}, "spec": {"nodeName": "one",
             "containers": [{}, {"ports": [{"name": "metrics", "containerPort": 1},
                                           {"name": "healthz", "containerPort": 9000}]}]}},
            {"metadata": {"name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"},
             "spec": {"nodeName": "two"}, "status": {"phase": "Running"}}]);
        let mut by_node = HashMap::new();
        pods.as_array().expect("pods").iter().for_each(|pod| add_pod(&mut by_node, pod));
        let pod = |name: &str, port, phase: &str| FlannelPod {
            name: name.to_owned(),
            port,
            phase: phase.to_owned(),
        };
        assert_eq!(by_node["one"], pod("new", 9000, "Running"));
        assert_eq!(by_node["two"], pod("old", 8081, "being replaced"));
    }

    #[tokio::test]
    async fn callers_share_a_listing_that_fails_and_do_not_wait_one_after_another() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        // Takes its time, and then says nothing.
        let _server = Task::spawn("a server that says nothing", async move {
            while let Ok((connection, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                Task::spawn("a connection", async move {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    drop(connection);
                })
                .detach();
            }
        });
        let prefix = AnnotationPrefix::parse("flannel.alpha.coreos.com").expect("a prefix");
        let ports = Arc::new(ProbePorts::new(&Api::new(Access::Url(url), prefix), "kube-flannel"));
        let one = ports.connect("node").await.expect_err("it fails");
        let once = asked.load(Ordering::Relaxed);
        ports.pods.send_modify(|pods| pods.at = None);
        let callers: Vec<Task<Result<Forwarded, String>>> = (0..8)
            .map(|number| {
                let ports = ports.clone();
                let node = format!("node-{number}");
                Task::spawn("a caller", async move { ports.connect(&node).await })
            })
            .collect();
        for caller in callers {
            assert_eq!(caller.await.expect("it runs").expect_err("it fails"), one);
        }
        assert_eq!(ports.connect("another").await.expect_err("it is remembered"), one);
        assert_eq!(asked.load(Ordering::Relaxed), 2 * once, "one listing for all of them");
    }
}
