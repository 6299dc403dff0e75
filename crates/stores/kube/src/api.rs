//! Flannel's requests to the API server, and what its roles must allow for them.

use std::sync::Arc;

use flannel_store::StoreError;
use serde_json::Value;

use crate::access::Access;
use crate::annotations::AnnotationPrefix;
use crate::client::{Action, ApiError, CORE, Client, Collection, Result};
use crate::message::Resource as _;
use crate::node::{NodeResource, NodeView};
use crate::token_review::TokenReview;

/// Fix of a missing permission: the line of the manifest.
fn fix(action: Action) -> &'static str {
    match (action.verb, action.resource) {
        (_, "nodes") => {
            "the ClusterRole of flannel's service account needs the rule {apiGroups: [\"\"], resources: \
                 [nodes], verbs: [get, list, watch]}"
        }
        (_, "nodes/status") => {
            "the ClusterRole of flannel's service account needs the rule {apiGroups: [\"\"], resources: \
                 [nodes/status], verbs: [patch]}"
        }
        ("get", "pods") => {
            "set NODE_NAME in flannel's DaemonSet (fieldRef spec.nodeName), or give its ClusterRole the rule \
                 {apiGroups: [\"\"], resources: [pods], verbs: [get]}"
        }
        (_, "pods" | "pods/portforward") => {
            "reading the state of nodes needs, in flannel's namespace, the rules {apiGroups: [\"\"], resources: \
                 [pods], verbs: [list]} and {apiGroups: [\"\"], resources: [pods/portforward], verbs: [get, create]}: \
                 dist/kubernetes/operator.yml has them"
        }
        (_, "events") => {
            "flannel's service account needs, by a Role in the namespace default, the rule {apiGroups: [\"\"], \
                 resources: [events], verbs: [create, patch]}"
        }
        (_, "tokenreviews") => {
            "the ClusterRole of the lease server's service account needs the rule {apiGroups: \
                 [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}"
        }
        (_, "configmaps") => {
            "reading the network config needs the right to get that ConfigMap, and writing it to patch it"
        }
        _ => "the role of this client does not allow it",
    }
}

impl ApiError {
    /// The error as one of a store. `named` is the object, for people.
    pub fn into_store_error(self, named: &str) -> StoreError {
        let Self { action, endpoint, code, reason, .. } = self;
        let space = if named.is_empty() { "" } else { " " };
        let attempted = format!("{action}{space}{named}");
        match code {
            None | Some(401) => StoreError::Unavailable { attempted, endpoint, reason },
            Some(403) => StoreError::Denied { attempted, endpoint, reason, fix: fix(action) },
            Some(code) => {
                let reason = format!("{code} {reason}");
                match code {
                    429 | 500.. => StoreError::Unavailable { attempted, endpoint, reason },
                    _ => StoreError::Refused { attempted, endpoint, reason },
                }
            }
        }
    }
}

#[derive(Debug)]
pub struct Api {
    pub client: Arc<Client>,
    pub nodes: NodeResource,
}

impl Api {
    pub fn new(access: Access, prefix: AnnotationPrefix) -> Self {
        let client = Arc::new(Client::new(access, "flannel"));
        Self { client, nodes: NodeResource::new(prefix) }
    }

    /// `None` when there is none of that name.
    pub async fn node(&self, name: &str) -> Result<Option<NodeView<'static>>> {
        self.client.get(&self.nodes, name, |node| node.into_owned()).await
    }

    pub(crate) async fn patch_status(
        &self,
        name: &str,
        kind: &'static str,
        patch: &str,
    ) -> Result<()> {
        self.client.patch(&self.nodes.collection().part("nodes/status"), name, kind, patch).await
    }

    pub async fn review_token(&self, token: &str, audience: &str) -> Result<TokenReview> {
        let question = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": token, "audiences": [audience] },
        });
        let reviews = Collection::of_cluster("/apis/authentication.k8s.io/v1", "tokenreviews");
        let read = |review: &[u8]| TokenReview::read(review, audience);
        self.client.review(&reviews, &question.to_string(), read).await
    }

    /// The name of the node that a pod runs on; `None` when there is no such pod, or it runs nowhere yet.
    pub async fn node_of_pod(&self, namespace: &str, pod: &str) -> Result<Option<String>> {
        let pods = Collection::of_namespace(CORE, namespace, "pods");
        let node = |pod: Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
        let name = self.client.get(&pods, pod, node).await?.flatten();
        Ok(name.filter(|name| !name.is_empty()))
    }
}
