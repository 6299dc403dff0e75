//! Review of a token by the API server: its user, and the node of the pod that has it.

use std::collections::HashMap;

use serde::Deserialize;

/// Field of a token with the node of its pod; Kubernetes 1.30 and later.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenReview {
    pub authenticated: bool,
    /// `system:serviceaccount:kube-flannel:flannel`
    pub user: String,
    pub node: Option<String>,
    /// Reason why it is not authenticated.
    pub error: Option<String>,
}

#[derive(Deserialize)]
struct RawReview {
    #[serde(default)]
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    authenticated: bool,
    user: RawUser,
    audiences: Vec<String>,
    error: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawUser {
    username: String,
    extra: HashMap<String, Vec<String>>,
}

impl TokenReview {
    /// A server that knows nothing of audiences accepts a token that was made for anybody: such a one is not good.
    pub(crate) fn read(json: &[u8], audience: &str) -> Option<Self> {
        let RawReview { status } = serde_json::from_slice(json).ok()?;
        let meant_for = status.audiences.iter().any(|of| of == audience);
        let not_meant = || format!("it was not made for the audience {audience}");
        let error = match (status.authenticated, meant_for) {
            (true, false) => Some(not_meant()),
            _ => status.error.map(|text| text.chars().take(300).collect()),
        };
        let RawUser { username, mut extra } = status.user;
        let node = extra.remove(NODE_NAME).and_then(|names| names.into_iter().next());
        Some(Self {
            authenticated: status.authenticated && meant_for,
            user: username,
            node: node.filter(|name| !name.is_empty()),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_counts_for_the_audience_it_was_made_for() {
        let json = |audience: &str| {
            format!(
                r#"{{"kind":"TokenReview","status":{{"authenticated":true,"audiences":["{audience}"],"user":{{"username":
                "system:serviceaccount:kube-flannel:flannel","extra":{{"authentication.kubernetes.io/node-name":["node-7"],
                "authentication.kubernetes.io/pod-name":["x"]}}}}}}}}"#
            )
        };
        let read = |json: &str| TokenReview::read(json.as_bytes(), "leases").unwrap();
        let good = read(&json("leases"));
        assert!(good.authenticated && good.node.as_deref() == Some("node-7"), "{good:?}");
        assert_eq!(good.user, "system:serviceaccount:kube-flannel:flannel");
        let other = read(&json("https://kubernetes.default.svc"));
        assert!(!other.authenticated && other.error.unwrap().contains("audience"));
        assert!(!read("{}").authenticated);
        assert_eq!(TokenReview::read(b"not JSON", "leases"), None);
    }
}
