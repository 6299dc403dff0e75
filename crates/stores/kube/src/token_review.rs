//! Review of a token by the API server: its user, and the node of the pod that has it.

use serde_json::Value;

/// Field of a token with the node of its pod; Kubernetes 1.30 and later.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenReview {
    pub authenticated: bool,
    /// `system:serviceaccount:kube-flannel:flannel`
    pub user: String,
    pub node: Option<String>,
    pub error: Option<String>,
}

impl TokenReview {
    /// A server that knows nothing of audiences accepts a token that was made for anybody: such a one is not good.
    pub(crate) fn read(json: &[u8], audience: &str) -> Option<Self> {
        let review: Value = serde_json::from_slice(json).ok()?;
        let status = &review["status"];
        let authenticated = status["authenticated"] == true;
        let meant_for =
            status["audiences"].as_array().is_some_and(|all| all.contains(&audience.into()));
        let not_meant = || format!("it was not made for the audience {audience}");
        let error = match (authenticated, meant_for) {
            (true, false) => Some(not_meant()),
            _ => status["error"].as_str().map(|text| text.chars().take(300).collect()),
        };
        let user = &status["user"];
        let node = user["extra"][NODE_NAME][0].as_str().filter(|name| !name.is_empty());
        Some(Self {
            authenticated: authenticated && meant_for,
            user: user["username"].as_str().unwrap_or_default().to_owned(),
            node: node.map(str::to_owned),
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
