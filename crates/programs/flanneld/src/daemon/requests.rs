//! What operators ask of this node, through the store: each request has a task while it stands, and ends with it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use flannel_common::{Backoff, Task, run_if_any, send_if_changed};
use flannel_lease::Subnet;
use flannel_probe::Prober;
use flannel_probe::marked::{self, Devices};
use flannel_store::{
    MAX_STANDING_REQUESTS, NodeAnswer, NodeRequest as StoredRequest, NodeStore, RequestId,
    Requests, StoreError,
};
use flannel_trace::NodeInNetwork;
use ipnet::IpNet;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{OnceCell, mpsc, oneshot, watch};

use super::config_check::{self, ConfigCheck};
use super::{connectivity, marked_packets, trace};
use crate::door::Question;
use crate::readiness::Report;

/// How soon it is looked again whether there is room for a request that waits.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_secs(1);
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));

/// What whoever carries out a request may need to know of this node.
#[derive(Clone)]
pub(super) struct RequestContext {
    pub(super) store: Arc<dyn NodeStore>,
    pub(super) prober: Option<Prober>,
    pub(super) node: watch::Receiver<Option<Arc<NodeNow>>>,
    pub(super) report: Report,
    /// Where it is asked whether a config could be used.
    pub(super) config_checks: mpsc::Sender<ConfigCheck>,
    pub(super) seed: u64,
}

impl RequestContext {
    /// The subnets of all leases that this node knows, its own among them: no request sends a packet elsewhere.
    pub(super) async fn lease_nets(&self) -> BTreeSet<IpNet> {
        let Some(asking) = self.report.asking() else { return BTreeSet::new() };
        let (answer, nets) = oneshot::channel();
        match asking.send(Question::LeaseNets(answer)).await {
            Ok(()) => nets.await.unwrap_or_default(),
            Err(_) => BTreeSet::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeNow {
    pub(super) subnet: Subnet,
    pub(super) mtu: u32,
    pub(super) underlay: [Option<IpAddr>; 2],
    pub(super) devices: Devices,
    pub(super) in_network: NodeInNetwork,
    /// Whether what comes from outside the network is masqueraded into it.
    pub(super) masquerades: bool,
}

pub(super) struct NodeRequest {
    pub(super) context: RequestContext,
    pub(super) id: RequestId,
    pub(super) named: Subnet,
    /// What it says; it may come to say something else.
    pub(super) body: watch::Receiver<Value>,
}

type RequestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Begins to carry out a request; `None` for a kind that this daemon does not know.
fn begin(kind: &str, request: NodeRequest) -> Option<RequestFuture> {
    match kind {
        flannel_connectivity::KIND => Some(Box::pin(connectivity::run(request))),
        marked::request::KIND => Some(Box::pin(marked_packets::run(request))),
        flannel_trace::request::KIND => Some(Box::pin(trace::run(request))),
        flannel_backend::CONFIG_QUESTION => Some(Box::pin(config_check::run(request))),
        _ => None,
    }
}

impl NodeRequest {
    /// What it says now, if that can be understood.
    pub(super) fn read<T: DeserializeOwned>(&mut self) -> Option<T> {
        serde_json::from_value(self.body.borrow_and_update().clone()).ok()
    }

    /// Says it, in place of what was said before, until the store has taken it or nobody asks any more.
    pub(super) async fn answer(&self, body: &impl Serialize) {
        let body = serde_json::to_value(body).unwrap_or_default();
        let answer = NodeAnswer { node: self.named, body };
        let mut tries = RETRY.tries(fastrand::Rng::with_seed(self.context.seed));
        loop {
            match self.context.store.requests().answer(&self.id, &answer).await {
                Ok(()) | Err(StoreError::Lost { .. }) => return,
                Err(error) if error.is_transient() => {
                    tracing::debug!("Cannot answer the request {}: {error}", self.id);
                    tokio::time::sleep(tries.pause()).await;
                }
                Err(error) => {
                    tracing::warn!("Cannot answer the request {}: {error}", self.id);
                    return;
                }
            }
        }
    }
}

struct RunningRequest {
    body: watch::Sender<Value>,
    task: Task,
}

/// Never ends. Nobody is listened to before the node has joined its network.
pub(super) async fn keep_answering(mut context: RequestContext) -> Infallible {
    if context.node.wait_for(Option::is_some).await.is_err() {
        return std::future::pending().await;
    }
    // What a daemon that was killed during a test has left. There is one process, and perhaps many networks.
    static SWEPT: OnceCell<()> = OnceCell::const_new();
    let sweep = || async {
        drop(Task::spawn_blocking("test-pod-sweep", flannel_connectivity::sweep).await)
    };
    SWEPT.get_or_init(sweep).await;
    let mut requests = context.store.requests().follow();
    let mut standing: BTreeMap<RequestId, RunningRequest> = BTreeMap::new();
    loop {
        let now: Requests = requests.borrow_and_update().clone();
        standing.retain(|id, _| now.iter().any(|request| request.id == *id));
        let own = context.node.borrow().as_ref().map(|node| node.subnet);
        let mut is_waiting = false;
        for stored in now.iter() {
            let begin = |named, body| {
                let (context, id) = (context.clone(), stored.id.clone());
                begin(&stored.kind, NodeRequest { context, id, named, body })
            };
            is_waiting |= take(own, &mut standing, stored, begin);
        }
        let room_check = is_waiting.then(|| tokio::time::sleep(ROOM_CHECK_INTERVAL));
        tokio::select! {
            changed = requests.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
            }
            () = run_if_any(room_check) => {}
        }
    }
}

/// Begins a request to the node with the subnet `own` if there is room for it, or tells a running one its new body. Returns
/// whether it waits for room.
fn take(
    own: Option<Subnet>,
    standing: &mut BTreeMap<RequestId, RunningRequest>,
    request: &StoredRequest,
    begin: impl FnOnce(Subnet, watch::Receiver<Value>) -> Option<RequestFuture>,
) -> bool {
    let Some(named) = own.and_then(|own| request.named(&own)) else { return false };
    if let Some(known) = standing.get(&request.id) {
        send_if_changed(&known.body, request.body.clone());
        return false;
    }
    let running = standing.values().filter(|it| !it.task.is_finished()).count();
    if running >= MAX_STANDING_REQUESTS {
        tracing::debug!("The request {} waits: {running} are being carried out", request.id);
        return true;
    }
    let (body, heard) = watch::channel(request.body.clone());
    let (id, kind, limit) = (request.id.clone(), &request.kind, request.limit);
    let Some(work) = begin(named, heard) else {
        tracing::debug!("The request {id} asks for {kind}, which this daemon does not know");
        return false;
    };
    tracing::info!(event = "request", "An operator asks this node for {kind} (request {id})");
    // A request that takes longer than it may is ended here, and not begun again.
    let limited = async move { drop(tokio::time::timeout(limit, work).await) };
    let task = Task::spawn("node-request", limited);
    standing.insert(id, RunningRequest { body, task });
    false
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn request(id: &str, node: Subnet) -> StoredRequest {
        StoredRequest {
            id: id.parse().expect("a name"),
            kind: "test".to_owned(),
            nodes: vec![node],
            limit: Duration::from_secs(60),
            body: Value::Null,
        }
    }

    /// Whoever writes to etcd may write any number of them.
    #[tokio::test]
    async fn a_node_carries_out_four_requests_at_once_and_the_next_when_one_has_ended() {
        let [own, other] =
            ["10.5.1.0-24", "10.5.2.0-24"].map(|text| text.parse().expect("a subnet"));
        let mut standing = BTreeMap::new();
        let mut take = |request: &StoredRequest, work: RequestFuture| {
            take(Some(own), &mut standing, request, |_, _| Some(work))
        };
        let (end, ended) = oneshot::channel::<()>();
        let first = Box::pin(async move { drop(ended.await) });
        assert!(!take(&request("1", own), first));
        for id in ["2", "3", "4"] {
            assert!(!take(&request(id, own), Box::pin(pending())));
        }
        let fifth = request("5", own);
        assert!(take(&fifth, Box::pin(pending())), "it waits");
        assert!(!take(&request("4", own), Box::pin(pending())), "it runs");
        assert!(!take(&request("6", other), Box::pin(pending())), "another's");
        drop(end);
        while take(&fifth, Box::pin(pending())) {
            tokio::task::yield_now().await;
        }
        assert!(take(&request("7", own), Box::pin(pending())), "it waits");
        let ids: Vec<&str> = standing.keys().map(RequestId::as_str).collect();
        assert_eq!(ids, ["1", "2", "3", "4", "5"]);
    }
}
