//! What flannel's manifest says of its rights, on a real API server.

use http::Method;
use serde_json::{Value, json};

use super::ApiServer;

const JSON: &str = "application/json";
/// The namespace of the manifest.
const NAMESPACE: &str = "kube-flannel";
const RIGHTS: [&str; 3] = [
    include_str!("../../../../../dist/kubernetes/base/namespace.yaml"),
    include_str!("../../../../../dist/kubernetes/base/rbac.yaml"),
    include_str!("../../../../../dist/kubernetes/base/admission.yaml"),
];

/// The rules of all roles in flannel's manifest, whatever namespace they are for.
pub fn manifest_rules() -> Value {
    let is_role = |it: &Value| it["kind"] == "ClusterRole" || it["kind"] == "Role";
    let roles = objects().filter(is_role);
    roles.flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default()).collect()
}

fn objects() -> impl Iterator<Item = Value> {
    let documents = RIGHTS.iter().flat_map(|text| {
        yaml_rust2::YamlLoader::load_from_str(text).expect("flannel's manifest is YAML")
    });
    documents.map(crate::kubeconfig::to_json)
}

impl ApiServer {
    /// Makes flannel's namespace, its service account, roles and admission policy, as the manifest has them.
    pub fn apply_rights(&self) {
        for object in objects() {
            let kind = object["kind"].as_str().expect("a kind");
            let kinds = match kind {
                "ValidatingAdmissionPolicy" => "validatingadmissionpolicies".to_owned(),
                other => format!("{}s", other.to_lowercase()),
            };
            let group = match object["apiVersion"].as_str().expect("a version") {
                "v1" => "/api/v1".to_owned(),
                group => format!("/apis/{group}"),
            };
            let namespace = object["metadata"]["namespace"].as_str();
            let namespace = namespace.map(|it| format!("/namespaces/{it}")).unwrap_or_default();
            self.create(&format!("{group}{namespace}/{kinds}"), &object);
        }
    }

    /// A token of flannel's service account as a kubelet gets it for flannel's pod on a node. Needs
    /// [`Self::apply_rights`].
    pub fn token_of_pod_on(&self, node: &str) -> String {
        let pod = json!({
            "metadata": {"name": format!("flannel-{node}")},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x"}],
                     "serviceAccountName": "flannel", "automountServiceAccountToken": false},
        });
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let (_, made) = self.ask(&Method::POST, &path, Some((JSON, &pod.to_string())));
        let bound = json!({
            "kind": "Pod", "apiVersion": "v1", "name": made["metadata"]["name"],
            "uid": made["metadata"]["uid"],
        });
        self.token(&json!({"expirationSeconds": 3600, "boundObjectRef": bound}))
    }

    /// A token of flannel's service account that belongs to no pod.
    pub fn token_of_no_pod(&self) -> String {
        self.token(&json!({"expirationSeconds": 3600}))
    }

    fn token(&self, spec: &Value) -> String {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/flannel/token");
        let asked = json!({"spec": spec}).to_string();
        let answer = self.must(&Method::POST, &path, Some((JSON, &asked)));
        answer["status"]["token"].as_str().expect("a token").to_owned()
    }
}
