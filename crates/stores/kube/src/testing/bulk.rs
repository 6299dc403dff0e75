//! Many Nodes at once, and a client that keeps all of each: what there is to compare with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::{ApiServer, NodeSpec};
use crate::access::Access;
use crate::client::Client;

const JSON: &str = "application/json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const CONNECTIONS: usize = 4;

impl ApiServer {
    /// With all of their status, as kubelets register them.
    pub fn create_nodes(&self, nodes: &[NodeSpec]) {
        self.send_all(nodes.len(), |number| {
            let mut object = nodes[number].object();
            object["status"] = nodes[number].status(0)["status"].take();
            (Method::POST, "/api/v1/nodes".to_owned(), JSON, object.to_string())
        });
    }

    /// Heartbeats of so many Nodes, one after the other and round and round.
    pub fn heartbeats(&self, nodes: &[NodeSpec], count: usize, beat: u64) {
        self.send_all(count, |number| {
            let node = &nodes[number % nodes.len()];
            let path = format!("/api/v1/nodes/{}/status", node.name());
            let mut status = node.status(beat + number as u64);
            // A kubelet sends what has changed.
            let conditions = status["status"]["conditions"].take();
            let patch = serde_json::json!({"status": {"conditions": conditions}});
            (Method::PATCH, path, STRATEGIC, patch.to_string())
        });
    }

    fn send_all(
        &self,
        count: usize,
        make: impl Fn(usize) -> (Method, String, &'static str, String) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let work = || {
            self.inside(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(async {
                    let client = Client::new(self.admin(), "test");
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            break;
                        }
                        let (method, path, kind, content) = make(number);
                        let content = Some((kind, &*content));
                        let answer = client.answer(method.clone(), &path, METADATA, content);
                        let answer = answer.await.expect("an answer");
                        assert!(answer.status.is_success(), "{method} {path}: {}", answer.status);
                    }
                });
            });
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("a worker"));
        });
    }
}

/// The least that can be answered.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// A client as they are commonly written: it asks for all Nodes page by page, keeps all of each, and
/// follows them. `ready` is called when all are there; then it goes on for ever.
pub async fn keep_whole_nodes(access: Access, ready: impl FnOnce(usize)) -> String {
    let client = Arc::new(Client::new(access, "test"));
    let mut nodes: BTreeMap<String, Value> = BTreeMap::new();
    let (mut next, mut version) = (String::new(), String::new());
    loop {
        let path = format!("/api/v1/nodes?limit=500&continue={next}");
        let answer = match client.answer(Method::GET, &path, JSON, None).await {
            Ok(answer) => answer,
            Err(why) => return why,
        };
        let Ok(mut list) = serde_json::from_slice::<Value>(&answer.body) else {
            return "not a list".to_owned();
        };
        for node in list["items"].as_array_mut().into_iter().flatten().map(Value::take) {
            nodes.insert(node["metadata"]["name"].as_str().unwrap_or_default().to_owned(), node);
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        version.clone_from(&text(&list["metadata"]["resourceVersion"]));
        next = text(&list["metadata"]["continue"]);
        if next.is_empty() {
            break;
        }
    }
    ready(nodes.len());
    let path = format!("/api/v1/nodes?watch=true&resourceVersion={version}");
    let Ok(Ok(mut stream)) = client.stream(&path, JSON).await else {
        return "no watch".to_owned();
    };
    let mut buffer: Vec<u8> = Vec::new();
    while let Ok(Some(data)) = stream.body.next(Duration::MAX).await {
        buffer.extend_from_slice(&data);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let Ok(mut event) = serde_json::from_slice::<Value>(&line) else { continue };
            let node = event["object"].take();
            nodes.insert(node["metadata"]["name"].as_str().unwrap_or_default().to_owned(), node);
        }
    }
    "the watch ended".to_owned()
}
