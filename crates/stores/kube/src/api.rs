//! Flannel's requests to the API server, and what its roles must allow for them.

use std::sync::Arc;

use flannel_store::StoreError;
use serde_json::Value;

use crate::access::Access;
use crate::annotations::AnnotationPrefix;
use crate::client::{Action, ApiError, CORE, Client, Collection, Patch};
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
        match self {
            Self::NoAnswer { action, endpoint, reason } => {
                StoreError::Unavailable { attempted: attempted(action, named), endpoint, reason }
            }
            Self::Refused { action, endpoint, credentials, status, .. } => {
                let (code, attempted) = (status.code, attempted(action, named));
                match code {
                    401 => {
                        let reason = format!(
                            "the API server does not know us by {credentials} ({}); has it expired, or was the \
                             service account deleted?",
                            status.message
                        );
                        StoreError::Unavailable { attempted, endpoint, reason }
                    }
                    403 => {
                        let reason = status.message;
                        StoreError::Denied { attempted, endpoint, reason, fix: fix(action) }
                    }
                    429 | 500.. => {
                        let reason = format!("{code} {}", status.message);
                        StoreError::Unavailable { attempted, endpoint, reason }
                    }
                    _ => {
                        let reason = format!("{code} {}", status.message);
                        StoreError::Refused { attempted, endpoint, reason }
                    }
                }
            }
        }
    }
}

fn attempted(action: Action, named: &str) -> String {
    let named = if named.is_empty() { String::new() } else { format!(" {named}") };
    format!("{action}{named}")
}

/// The API server, as flannel uses it.
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
    pub async fn node(&self, name: &str) -> Result<Option<NodeView<'static>>, ApiError> {
        self.client.get(&self.nodes, name, |node| node.into_owned()).await
    }

    /// Changes annotations or conditions of a Node.
    pub async fn patch_status(&self, name: &str, patch: Patch<'_>) -> Result<(), ApiError> {
        self.client.patch(&self.nodes.collection().part("nodes/status"), name, patch).await
    }

    /// Reviews a token that was made for this audience.
    pub async fn review_token(&self, token: &str, audience: &str) -> Result<TokenReview, ApiError> {
        let question = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": token, "audiences": [audience] },
        });
        let reviews = Collection::of_cluster("/apis/authentication.k8s.io/v1", "tokenreviews");
        let review = self.client.review(&reviews, &question.to_string()).await?;
        TokenReview::read(&review, audience)
            .ok_or_else(|| self.client.malformed_review(&reviews, "it is not a TokenReview"))
    }

    /// The name of the node that a pod runs on; `None` when there is no such pod, or it runs nowhere yet.
    pub async fn node_of_pod(
        &self,
        namespace: &str,
        pod: &str,
    ) -> Result<Option<String>, ApiError> {
        let pods = Collection::of_namespace(CORE, namespace, "pods");
        let node = |pod: Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
        let name = self.client.get(&pods, pod, node).await?.flatten();
        Ok(name.filter(|name| !name.is_empty()))
    }
}
