//! What operators ask of nodes, as annotations of the Nodes that it is asked of, and what those say to it beside it.
//!
//! The Node's own daemon, or the server that speaks for it, takes both away when nobody has said for a while that it
//! is still wanted: nothing else would, if the one who asked was killed.

use std::collections::BTreeMap;
use std::sync::Arc;

use flannel_lease::Subnet;
use flannel_store::{LIFE, NodeAnswer, NodeRequest, RequestId, Requests, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::annotations::{AnnotationPrefix, Key};
use crate::cluster::Cluster;

/// The text of the request in each Node that has one; `None` in one that has but an answer.
pub(crate) type Asked = BTreeMap<Box<str>, Option<Box<str>>>;

/// A request as it stands in a Node. Whenever it is placed again it says another time, so that the Node changes.
struct Placed {
    request: NodeRequest,
}

impl Placed {
    fn read(text: &str) -> Option<Self> {
        Some(Self { request: NodeRequest::read(text).ok()? })
    }

    fn text(request: &NodeRequest, at: u64) -> String {
        let mut value: Value = serde_json::from_str(&request.to_json()).unwrap_or_default();
        value["Placed"] = at.into();
        value.to_string()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answered<'a> {
    id: &'a str,
}

/// A merge patch of a Node's annotations.
fn patch(prefix: &AnnotationPrefix, changes: &[(Key, Option<String>)]) -> String {
    let changes = changes.iter().cloned();
    let changes =
        changes.map(|(key, text)| (prefix.name(key), text.map_or(Value::Null, Value::String)));
    json!({"metadata": {"annotations": changes.collect::<serde_json::Map<_, _>>()}}).to_string()
}

fn none(prefix: &AnnotationPrefix) -> String {
    patch(prefix, &[(Key::Request, None), (Key::Answer, None)])
}

impl Cluster {
    pub(crate) async fn place(&self, request: &NodeRequest) -> Result<(), StoreError> {
        if request.nodes.iter().any(|node| self.table().named_of(*node).is_none()) {
            self.leases().await.map_err(|error| error.into_store_error(""))?;
        }
        let named = |node: &Subnet| self.table().named_of(*node);
        let names: Vec<Box<str>> = request.nodes.iter().filter_map(named).collect();
        let text = Placed::text(request, jiff::Timestamp::now().as_millisecond().unsigned_abs());
        let patch = patch(self.api().prefix(), &[(Key::Request, Some(text))]);
        self.placed().insert(request.id.clone(), names.clone());
        for name in names {
            self.annotate_if_there(&name, &patch).await?;
        }
        Ok(())
    }

    pub(crate) async fn withdraw(&self, id: &RequestId) -> Result<(), StoreError> {
        let names = self.asked_of(id);
        self.placed().remove(id);
        for name in names {
            self.annotate_if_there(&name, &none(self.api().prefix())).await?;
        }
        Ok(())
    }

    pub(crate) async fn answers(&self, id: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        let mut answers = Vec::new();
        for name in self.asked_of(id) {
            let node = self.api().node(&name).await;
            let node = node.map_err(|error| error.into_store_error(&name))?;
            let text = node.as_ref().and_then(|node| node.annotations.text(Key::Answer));
            let of_it = text.filter(|text| {
                serde_json::from_str(text).is_ok_and(|it: Answered<'_>| it.id == id.as_str())
            });
            answers.extend(of_it.and_then(|text| NodeAnswer::read(text).ok()));
        }
        Ok(answers)
    }

    /// Into the Node of this name.
    pub(crate) async fn answer(
        &self,
        name: &str,
        to: &RequestId,
        answer: &NodeAnswer,
    ) -> Result<(), StoreError> {
        let stands = self.asked().borrow().get(name).is_some_and(|text| is_about(text, to));
        if !stands {
            return Err(StoreError::Lost { key: to.to_string() });
        }
        let mut value: Value = serde_json::from_str(&answer.to_json()).unwrap_or_default();
        value["Id"] = to.as_str().into();
        let patch = patch(self.api().prefix(), &[(Key::Answer, Some(value.to_string()))]);
        self.annotate_if_there(name, &patch).await
    }

    /// The Nodes that this is asked of: by this process, or as they say themselves.
    fn asked_of(&self, id: &RequestId) -> Vec<Box<str>> {
        if let Some(names) = self.placed().get(id) {
            return names.clone();
        }
        let asked = self.asked();
        let asked = asked.borrow();
        let of_it = asked.iter().filter(|(_, text)| is_about(text, id));
        of_it.map(|(name, _)| name.clone()).collect()
    }

    async fn annotate_if_there(&self, name: &str, patch: &str) -> Result<(), StoreError> {
        match self.api().annotate(name, patch).await {
            Err(error) if error.code() == Some(404) => Ok(()),
            done => done.map_err(|error| error.into_store_error(name)),
        }
    }
}

fn is_about(text: &Option<Box<str>>, id: &RequestId) -> bool {
    text.as_deref().and_then(Placed::read).is_some_and(|placed| placed.request.id == *id)
}

/// Reports requests to the Nodes that this process speaks for, and removes stale ones.
pub(crate) fn hear(cluster: Arc<Cluster>) -> watch::Receiver<Requests> {
    let (told, receiver) = watch::channel(Requests::default());
    tokio::spawn(async move {
        tokio::select! {
            () = keep(&cluster, &told) => {}
            () = told.closed() => {}
        }
    });
    receiver
}

struct Heard {
    text: Option<Box<str>>,
    placed: Option<Placed>,
    until: Instant,
}

async fn keep(cluster: &Cluster, told: &watch::Sender<Requests>) {
    let mut asked = cluster.asked();
    let mut heard: BTreeMap<Box<str>, Heard> = BTreeMap::new();
    loop {
        let (now, standing) = (Instant::now(), asked.borrow_and_update().clone());
        heard.retain(|name, _| standing.contains_key(name));
        for (name, text) in standing {
            if heard.get(&name).is_none_or(|known| known.text != text) {
                let placed = text.as_deref().and_then(Placed::read);
                heard.insert(name, Heard { text, placed, until: now + LIFE });
            }
        }
        tell(told, requests_of(&heard, now, |name| cluster.table().subnet_of(name)));
        for (name, known) in heard.iter_mut().filter(|(_, known)| known.until <= now) {
            known.placed = None;
            known.until = now + LIFE;
            if let Err(error) = cluster.annotate_if_there(name, &none(cluster.api().prefix())).await
            {
                tracing::debug!("What was asked of the Node {name} cannot be taken away: {error}");
            }
        }
        let next = heard.values().map(|known| known.until).min();
        tokio::select! {
            changed = asked.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep_until(next) => {}
        }
    }
}

/// Requests that stand. A Node's annotation asks the node of that Node alone: whoever may write one Node, as its
/// kubelet may, asks nothing of others.
fn requests_of(
    heard: &BTreeMap<Box<str>, Heard>,
    now: Instant,
    subnet_of: impl Fn(&str) -> Option<Subnet>,
) -> Requests {
    let mut requests: Vec<NodeRequest> = Vec::new();
    for (name, known) in heard.iter().filter(|(_, known)| known.until > now) {
        let Some((placed, own)) = known.placed.as_ref().zip(subnet_of(name)) else { continue };
        let mut request = placed.request.clone();
        request.nodes.retain(|node| node.overlaps(&own));
        if request.nodes.is_empty() {
            continue;
        }
        // Where all is well, Nodes that are asked the same say the same.
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

fn tell(told: &watch::Sender<Requests>, now: Requests) {
    told.send_if_modified(|told| {
        let changed = *told != now;
        *told = now;
        changed
    });
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn subnet(number: u8) -> Subnet {
        format!("10.244.{number}.0-24").parse().expect("a subnet")
    }

    /// A request to these nodes, as it stands in a Node.
    fn heard(nodes: &[u8], body: &str) -> Heard {
        let request = NodeRequest {
            id: "r1".parse().expect("a name"),
            kind: "test".to_owned(),
            nodes: nodes.iter().map(|number| subnet(*number)).collect(),
            limit: Duration::from_secs(60),
            body: body.into(),
        };
        let until = Instant::now() + LIFE;
        Heard { text: None, placed: Some(Placed { request }), until }
    }

    #[tokio::test]
    async fn an_annotation_asks_the_node_of_its_node_alone() {
        let asks = |all: Vec<(&str, Heard)>| -> Vec<(String, Vec<Subnet>)> {
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
