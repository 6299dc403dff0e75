//! A network of any size whose nodes are addresses of loopback: one server answers for all of them, by the address
//! at which it is asked.

#![allow(dead_code, clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flannel_lease::{NetworkName, Subnet, SubnetOrigin};
use flannel_page::{
    Direct, LeaseRow, LeaseSource, LeaseTable, Local, NodeConnector, Pace, Page, Stream,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

#[derive(Clone)]
pub(crate) struct Simulated(Arc<Shared>);

struct Shared {
    config: Mutex<String>,
    nodes: Mutex<Vec<SimulatedNode>>,
    /// How often the store was read, and nodes were asked.
    reads: AtomicUsize,
    asked: AtomicUsize,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

#[derive(Clone, Debug)]
pub(crate) struct SimulatedNode {
    pub(crate) name: String,
    pub(crate) subnet: Subnet,
    pub(crate) address: Ipv4Addr,
    pub(crate) reserved: bool,
    pub(crate) answer: Answering,
    pub(crate) events: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answering {
    /// A verdict, and why.
    Says(&'static str, Option<String>),
    /// Takes the connection, and nothing more.
    Hangs,
    /// The same, and the other nodes say that they do not reach it.
    CutOff,
    /// As the Go flannel.
    NotFound,
    /// So many bytes without an end to it.
    Endless,
}

impl Simulated {
    /// All are well.
    pub(crate) fn new(count: usize) -> Self {
        let node = |index: usize| SimulatedNode {
            name: format!("node-{:04}", index + 1),
            subnet: format!("10.{}.{}.0-24", 128 + index / 256, index % 256).parse().unwrap(),
            address: Ipv4Addr::new(127, 100, (index / 250) as u8, (index % 250 + 1) as u8),
            reserved: false,
            answer: Answering::Says("ready", None),
            events: Vec::new(),
        };
        let length = if count <= 256 { 16 } else { 11 };
        let config = format!(
            r#"{{"Network":"10.128.0.0/{length}","SubnetMin":"10.128.0.0","Backend":{{"Type":"vxlan"}}}}"#
        );
        Self(Arc::new(Shared {
            config: Mutex::new(config),
            nodes: Mutex::new((0..count).map(node).collect()),
            reads: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            at_once: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn change(&self, index: usize, change: impl FnOnce(&mut SimulatedNode)) {
        change(&mut self.0.nodes.lock().unwrap()[index]);
    }

    pub(crate) fn nodes(&self) -> std::sync::MutexGuard<'_, Vec<SimulatedNode>> {
        self.0.nodes.lock().unwrap()
    }

    pub(crate) fn configure(&self, text: &str) {
        *self.0.config.lock().unwrap() = text.to_owned();
    }

    pub(crate) fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn reads(&self) -> usize {
        self.0.reads.load(Ordering::SeqCst)
    }

    pub(crate) fn most_at_once(&self) -> usize {
        self.0.most_at_once.load(Ordering::SeqCst)
    }

    /// Serves its page on a thread of its own; returns the address to open.
    pub(crate) fn serve(&self) -> String {
        // The nodes of a network are not busy with its page.
        let nodes = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        nodes.set_nonblocking(true).unwrap();
        let port = nodes.local_addr().unwrap().port();
        let simulated = self.clone();
        on_a_thread(async move {
            simulated.answer_all(TcpListener::from_std(nodes).unwrap()).await;
        });
        let (send, url) = std::sync::mpsc::channel();
        let page = Page::new(Arc::new(self.clone()), Some(Arc::new(Loopback(Direct { port }))));
        on_a_thread(async move {
            let local = Local::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
            send.send(local.url()).unwrap();
            match local.run(page).await {}
        });
        url.recv().unwrap()
    }

    async fn answer_all(self, listener: TcpListener) {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { continue };
            let simulated = self.clone();
            tokio::spawn(async move {
                let shared = &simulated.0;
                let now = shared.at_once.fetch_add(1, Ordering::SeqCst) + 1;
                shared.most_at_once.fetch_max(now, Ordering::SeqCst);
                let mut head = [0; 2_048];
                let length = stream.read(&mut head).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..length]).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                if path == "/v1/state" {
                    shared.asked.fetch_add(1, Ordering::SeqCst);
                }
                let asked = stream.local_addr().map(|address| address.ip());
                let (status, body) = match asked {
                    Ok(IpAddr::V4(address)) => simulated.answer(address, &path),
                    _ => (500, Some(String::new())),
                };
                match body {
                    // Until the other side gives up.
                    None => {
                        let _ = stream.read(&mut [0]).await;
                    }
                    Some(body) => {
                        let head = format!(
                            "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                            body.len()
                        );
                        let _ = stream.write_all(head.as_bytes()).await;
                        let _ = stream.write_all(body.as_bytes()).await;
                    }
                }
                shared.at_once.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    fn answer(&self, address: Ipv4Addr, path: &str) -> (u16, Option<String>) {
        let nodes = self.0.nodes.lock().unwrap();
        let Some(node) = nodes.iter().find(|node| node.address == address) else {
            return (404, Some(String::new()));
        };
        let (verdict, why) = match &node.answer {
            Answering::Hangs | Answering::CutOff => return (200, None),
            Answering::NotFound => return (404, Some("404 page not found".to_owned())),
            Answering::Endless => return (200, Some("[".repeat(1 << 20))),
            Answering::Says(verdict, why) => (*verdict, why),
        };
        let body = match path.split('?').next().unwrap_or_default() {
            "/v1/state" => state(node, verdict, why, &nodes).to_string(),
            "/v1/events" => {
                let lines = node.events.iter().enumerate().map(|(number, (kind, what))| {
                    let at = format!("2026-11-16T10:{:02}:{:02}.5Z", number / 60, number % 60);
                    json!({"number": number, "at": at, "kind": kind, "what": what}).to_string()
                        + "\n"
                });
                lines.collect()
            }
            "/v1/peers" => nodes
                .iter()
                .filter(|peer| peer.address != address)
                .map(|peer| seen(node, peer))
                .collect(),
            _ => return (404, Some(String::new())),
        };
        (200, Some(body))
    }
}

fn on_a_thread(work: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work);
    });
}

fn state(
    node: &SimulatedNode,
    verdict: &str,
    why: &Option<String>,
    nodes: &[SimulatedNode],
) -> Value {
    let subnet = node.subnet.v4().unwrap().to_string();
    let count = nodes.len();
    let cut_off = nodes.iter().filter(|peer| peer.answer == Answering::CutOff);
    let findings: Vec<Value> = cut_off.map(finding).collect();
    json!({
        "schema": 1, "version": "0.1.0", "hostname": node.name,
        "started": "2026-11-16T08:00:00Z", "now": "2026-11-16T10:00:00Z",
        "networks": [{
            "name": "_", "verdict": verdict, "why": why, "networks": ["10.128.0.0/16"], "backend": "vxlan",
            "lease": {"subnet": subnet, "remainingSeconds": 80_000},
            "underlay": {"interface": "eth0", "why": "it has the default route", "mtu": 1500,
                         "addresses": [node.address], "publicIp": node.address},
            "mtu": 1450,
            "mtuWhy": "eth0 has 1500, vxlan takes 50",
            "store": {"name": "etcd at 10.0.0.1:2379", "up": true, "since": "2026-11-16T08:00:01Z"},
            "peers": {"known": count - 1, "unusable": 0, "vanished": 0},
            "probing": {"port": 8475, "reached": count - 1 - findings.len(),
                        "unreached": findings.len(), "impaired": 0, "notProbed": 0, "waiting": 0,
                        "findings": findings},
            "entries": {"wanted": 3 * (count - 1), "missing": 0, "contested": 0, "problems": [], "hazards": []},
        }],
    })
}

fn finding(peer: &SimulatedNode) -> Value {
    json!({"subnet": peer.subnet.v4().unwrap().to_string(), "node": peer.address, "verdict": "underlay-cut",
           "traffic": false, "layer": "underlay", "why": "nothing comes back"})
}

/// Racks of eight nodes are near each other.
fn seen(from: &SimulatedNode, to: &SimulatedNode) -> String {
    let place = |node: &SimulatedNode| {
        u64::from(node.address.octets()[3]) + 250 * u64::from(node.address.octets()[2])
    };
    let (one, other) = (place(from), place(to));
    let far = (one / 8).abs_diff(other / 8);
    let micros = 60 + 90 * far.min(40) + (one * 37 + other * 53) % 60;
    let is_away = matches!(to.answer, Answering::Hangs | Answering::CutOff);
    let probe = if is_away {
        json!({"verdict": "underlay-cut", "traffic": false, "layer": "underlay", "why": "nothing comes back over the underlay"})
    } else {
        json!({"verdict": "reached", "traffic": true, "latencyMicros": micros})
    };
    let peer = json!({
        "network": "_", "subnet": to.subnet.v4().unwrap().to_string(), "publicIp": to.address,
        "backend": "vxlan", "condition": "programmed", "probe": probe,
    });
    format!("{peer}\n")
}

#[async_trait]
impl LeaseSource for Simulated {
    fn store(&self) -> String {
        "etcd at 10.0.0.1:2379".to_owned()
    }

    fn networks(&self) -> Vec<NetworkName> {
        vec![NetworkName::default()]
    }

    async fn read(&self, _network: &NetworkName) -> Result<LeaseTable, String> {
        self.0.reads.fetch_add(1, Ordering::SeqCst);
        let nodes = self.0.nodes.lock().unwrap();
        let row = |node: &SimulatedNode| LeaseRow {
            subnet: node.subnet,
            name: Some(node.name.clone()),
            v4: Some(node.address),
            v6: None,
            backend: "vxlan".to_owned(),
            ends: (!node.reserved).then(|| SystemTime::now() + Duration::from_secs(80_000)),
        };
        let leases = nodes.iter().map(row).collect();
        let config = Some(self.0.config.lock().unwrap().clone());
        Ok(LeaseTable { config, subnets: SubnetOrigin::Pool, leases })
    }
}

/// As [`Direct`], to nodes that are addresses of loopback, which no page asks otherwise.
struct Loopback(Direct);

#[async_trait]
impl NodeConnector for Loopback {
    fn pace(&self) -> Pace {
        self.0.pace()
    }

    async fn connect(&self, node: &LeaseRow) -> Result<Box<dyn Stream>, String> {
        let address = node.v4.ok_or("its lease has no address")?;
        match tokio::net::TcpStream::connect((address, self.0.port)).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(format!("cannot connect: {error}")),
        }
    }

    fn words(&self, node: &LeaseRow, why: &str) -> String {
        let (address, port) = (node.v4.map(|ip| ip.to_string()).unwrap_or_default(), self.0.port);
        format!(
            "{address} port {port}: {why}; is flanneld running there, with --healthz-port={port}?"
        )
    }

    fn advice(&self) -> String {
        self.0.advice()
    }
}
