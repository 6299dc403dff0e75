//! Requests of operators as annotations of the Nodes that they concern, and the answers beside them.
//!
//! The Node's own daemon, or the server that speaks for it, removes both when nobody has placed the request again in
//! time: nothing else would, if the operator's process was killed.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use flannel_common::{send_if_changed, sleep_until, spawn_publisher};
use flannel_lease::Subnet;
use flannel_store::{
    NodeAnswer, NodeRequest, REQUEST_LIFETIME, RequestChange, RequestId, RequestStore, Requests,
    StoreError,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::annotations::{AnnotationPrefix, Key};
use crate::client::MERGE;
use crate::cluster::Cluster;
use crate::patch;

/// Text of the request in each Node that has one; `None` in one that has only an answer.
pub(crate) type RequestTexts = BTreeMap<Box<str>, Option<Box<str>>>;

/// Annotation of a request. It carries the time, so that the Node changes whenever the request is placed again.
fn request_text(request: &NodeRequest, now: u64) -> String {
    let mut value: Value = serde_json::from_str(&request.to_json()).unwrap_or_default();
    value["Placed"] = now.into();
    value.to_string()
}

fn read_request(text: Option<&str>) -> Option<NodeRequest> {
    NodeRequest::read(text?).ok()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AnswerId<'a> {
    id: &'a str,
}

fn removal(prefix: &AnnotationPrefix) -> String {
    patch::annotations(prefix, [(Key::Request, None), (Key::Answer, None)])
}

/// Requests as annotations of Nodes. Clones share what has been placed.
#[derive(Clone, Debug)]
pub(crate) struct KubeRequests {
    cluster: Arc<Cluster>,
    /// Names of the Nodes of each request that this process has placed.
    placed: Arc<Mutex<BTreeMap<RequestId, Vec<Box<str>>>>>,
}

#[async_trait]
impl RequestStore for KubeRequests {
    /// Requests to the Nodes that this process speaks for; expired ones are removed.
    fn follow(&self) -> watch::Receiver<Requests> {
        let cluster = self.cluster.clone();
        spawn_publisher("watch of requests in Nodes", Requests::default(), |requests| async move {
            follow(&cluster, &requests).await;
        })
    }

    async fn write(&self, change: RequestChange<'_>) -> Result<(), StoreError> {
        let cluster = &self.cluster;
        let (names, annotation) = match change {
            RequestChange::Place(request) => {
                let names = self.names_of(request).await?;
                self.placed.lock().insert(request.id.clone(), names.clone());
                let now = jiff::Timestamp::now().as_millisecond().unsigned_abs();
                (names, Some((Key::Request, Some(request_text(request, now)))))
            }
            RequestChange::Withdraw(id) => {
                let names = self.nodes_asked(id);
                self.placed.lock().remove(id);
                (names, None)
            }
            RequestChange::Answer(id, answer) => {
                let lost = || StoreError::Lost { key: id.to_string() };
                let name = match cluster.name.as_str() {
                    "" => cluster.table.lock().named_of(answer.node).ok_or_else(lost)?,
                    own => own.into(),
                };
                if !cluster.requests.borrow().get(&name).is_some_and(|text| is_about(text, id)) {
                    return Err(lost());
                }
                let mut value: Value = serde_json::from_str(&answer.to_json()).unwrap_or_default();
                value["Id"] = id.as_str().into();
                (vec![name], Some((Key::Answer, Some(value.to_string()))))
            }
        };
        let prefix = &cluster.api.nodes.prefix;
        let patch = match annotation {
            Some(annotation) => patch::annotations(prefix, [annotation]),
            None => removal(prefix),
        };
        for name in names {
            annotate_if_there(cluster, &name, &patch).await?;
        }
        Ok(())
    }

    async fn answers(&self, to: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        let mut answers = Vec::new();
        for name in self.nodes_asked(to) {
            let node = self.cluster.api.node(&name).await;
            let node = node.map_err(|error| error.into_store_error(&name))?;
            let text = node.as_ref().and_then(|node| node.annotations.text(Key::Answer));
            let of_it = text.filter(|text| {
                serde_json::from_str(text).is_ok_and(|it: AnswerId<'_>| it.id == to.as_str())
            });
            answers.extend(of_it.and_then(|text| NodeAnswer::read(text).ok()));
        }
        Ok(answers)
    }
}

impl KubeRequests {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, placed: Arc::default() }
    }

    /// Names of the Nodes that a request concerns, from the cluster if they are not known yet.
    async fn names_of(&self, request: &NodeRequest) -> Result<Vec<Box<str>>, StoreError> {
        let cluster = &self.cluster;
        let named = |node: &Subnet| cluster.table.lock().named_of(*node);
        if request.nodes.iter().any(|node| named(node).is_none()) {
            cluster.leases().await.map_err(|error| error.into_store_error(""))?;
        }
        Ok(request.nodes.iter().filter_map(named).collect())
    }

    /// Names of the Nodes of a request: as this process placed it, or as their annotations say.
    fn nodes_asked(&self, id: &RequestId) -> Vec<Box<str>> {
        if let Some(names) = self.placed.lock().get(id) {
            return names.clone();
        }
        let texts = self.cluster.requests.borrow();
        let of_it = texts.iter().filter(|(_, text)| is_about(text, id));
        of_it.map(|(name, _)| name.clone()).collect()
    }
}

async fn annotate_if_there(cluster: &Cluster, name: &str, patch: &str) -> Result<(), StoreError> {
    match cluster.api.patch_status(name, MERGE, patch).await {
        Err(error) if error.code == Some(404) => Ok(()),
        done => done.map_err(|error| error.into_store_error(name)),
    }
}

fn is_about(text: &Option<Box<str>>, id: &RequestId) -> bool {
    read_request(text.as_deref()).is_some_and(|request| request.id == *id)
}

/// The request in one Node's annotations, and when it expires.
struct NodeAnnotation {
    text: Option<Box<str>>,
    request: Option<NodeRequest>,
    until: Instant,
}

async fn follow(cluster: &Cluster, published: &watch::Sender<Requests>) {
    let mut texts = cluster.requests.subscribe();
    let mut known: BTreeMap<Box<str>, NodeAnnotation> = BTreeMap::new();
    loop {
        let (now, standing) = (Instant::now(), texts.borrow_and_update().clone());
        let until = now + REQUEST_LIFETIME;
        known.retain(|name, _| standing.contains_key(name));
        for (name, text) in standing {
            if known.get(&name).is_none_or(|known| known.text != text) {
                let request = read_request(text.as_deref());
                known.insert(name, NodeAnnotation { text, request, until });
            }
        }
        let subnet_of = |name: &str| cluster.table.lock().subnet_of(name);
        send_if_changed(published, requests_of(&known, now, subnet_of));
        for (name, expired) in known.iter_mut().filter(|(_, known)| known.until <= now) {
            (expired.request, expired.until) = (None, until);
            let removal = removal(&cluster.api.nodes.prefix);
            if let Err(error) = annotate_if_there(cluster, name, &removal).await {
                tracing::debug!("Cannot remove an expired request from the Node {name}: {error}");
            }
        }
        let next = known.values().map(|known| known.until).min();
        tokio::select! {
            changed = texts.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep_until(next) => {}
        }
    }
}

/// Requests that stand. An annotation concerns its own Node alone: a kubelet can request nothing of others.
fn requests_of(
    known: &BTreeMap<Box<str>, NodeAnnotation>,
    now: Instant,
    subnet_of: impl Fn(&str) -> Option<Subnet>,
) -> Requests {
    let mut requests: Vec<NodeRequest> = Vec::new();
    for (name, known) in known.iter().filter(|(_, known)| known.until > now) {
        let Some((request, own)) = known.request.as_ref().zip(subnet_of(name)) else { continue };
        let mut request = request.clone();
        request.nodes.retain(|node| node.overlaps(&own));
        if request.nodes.is_empty() {
            continue;
        }
        // One request to several Nodes stands in each of them.
        let same = |other: &&mut NodeRequest| {
            let NodeRequest { id, kind, nodes: _, limit, body } = &**other;
            (id, kind, limit, body) == (&request.id, &request.kind, &request.limit, &request.body)
        };
        match requests.iter_mut().find(same) {
            Some(other) => other.nodes.extend(request.nodes),
            None => requests.push(request),
        }
    }
    requests.into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn subnet(number: u8) -> Subnet {
        format!("10.244.{number}.0-24").parse().expect("a subnet")
    }

    /// A request to these nodes, as it stands in a Node.
    fn heard(nodes: &[u8], body: &str) -> NodeAnnotation {
        let request = NodeRequest {
            id: "r1".parse().expect("a name"),
            kind: "test".to_owned(),
            nodes: nodes.iter().map(|number| subnet(*number)).collect(),
            limit: Duration::from_secs(60),
            body: body.into(),
        };
        let until = Instant::now() + REQUEST_LIFETIME;
        NodeAnnotation { text: None, request: Some(request), until }
    }

    #[tokio::test]
    async fn an_annotation_asks_the_node_of_its_node_alone() {
        let asks = |all: Vec<(&str, NodeAnnotation)>| -> Vec<(String, Vec<Subnet>)> {
            let all = all.into_iter().map(|(name, heard)| (name.into(), heard)).collect();
            let subnet_of = |name: &str| Some(subnet(name.strip_prefix("node-")?.parse().ok()?));
            let requests = requests_of(&all, Instant::now(), subnet_of);
            let told = |it: &NodeRequest| (it.body.as_str().unwrap_or("").into(), it.nodes.clone());
            requests.iter().map(told).collect()
        };
        let both = || heard(&[1, 2], "operator's");
        assert_eq!(
            asks(vec![("node-1", both()), ("node-2", both())]),
            [("operator's".to_owned(), vec![subnet(1), subnet(2)])]
        );
        // A kubelet writes into its own Node a request to all others, by the name of the operator's or not.
        let own = ("kubelet's".to_owned(), vec![subnet(1)]);
        assert_eq!(
            asks(vec![("node-1", heard(&[1, 2, 3], "kubelet's"))]),
            std::slice::from_ref(&own)
        );
        assert_eq!(
            asks(vec![("node-1", heard(&[1, 2, 3], "kubelet's")), ("node-2", both())]),
            [own, ("operator's".to_owned(), vec![subnet(2)])]
        );
        assert_eq!(asks(vec![("node-1", heard(&[2, 3], "kubelet's"))]), []);
        assert_eq!(asks(vec![("unknown", both())]), []);
    }
}
