//! Nodes, made as a kubelet and the controller of podCIDRs make them.

use http::Method;
use serde_json::{Map, Value, json};

use super::ApiServer;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// A Node to be made.
#[derive(Clone, Debug, Default)]
pub struct NodeSpec {
    name: String,
    cidrs: Vec<String>,
    annotations: Map<String, Value>,
    /// Container images, as a kubelet lists them: most of a Node's size.
    images: usize,
}

impl NodeSpec {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// One more podCIDR.
    pub fn cidr(mut self, cidr: impl Into<String>) -> Self {
        self.cidrs.push(cidr.into());
        self
    }

    /// By its whole name.
    pub fn annotation(mut self, name: &str, value: impl Into<String>) -> Self {
        self.annotations.insert(name.to_owned(), Value::String(value.into()));
        self
    }

    /// As a node has them that runs a flannel with vxlan.
    pub fn vxlan(self, public_ip: &str, mac: &str) -> Self {
        let name = |suffix: &str| format!("flannel.alpha.coreos.com/{suffix}");
        self.annotation(&name("kube-subnet-manager"), "true")
            .annotation(&name("backend-type"), "vxlan")
            .annotation(&name("backend-data"), format!(r#"{{"VNI":1,"VtepMAC":"{mac}"}}"#))
            .annotation(&name("public-ip"), public_ip)
    }

    /// Fills its status as a kubelet does: with so many images, and conditions.
    pub fn images(mut self, count: usize) -> Self {
        self.images = count;
        self
    }

    pub fn object(&self) -> Value {
        let first = self.cidrs.first().cloned().unwrap_or_default();
        let mut spec = json!({});
        if !self.cidrs.is_empty() {
            spec = json!({"podCIDR": first, "podCIDRs": self.cidrs});
        }
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": self.name,
                "annotations": self.annotations,
                "labels": {
                    "kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux",
                    "beta.kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "zone-a",
                },
            },
            "spec": spec,
        })
    }

    /// What the kubelet of that node reports, again and again; `beat` counts.
    pub fn status(&self, beat: u64) -> Value {
        let time =
            format!("2026-11-16T{:02}:{:02}:{:02}Z", beat / 3600 % 24, beat / 60 % 60, beat % 60);
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": time,
                "lastTransitionTime": "2026-11-16T00:00:00Z", "message": "kubelet has said so",
            })
        };
        let image = |number: usize| {
            let digest = format!("{:064x}", number + 1);
            json!({
                "names": [
                    format!("registry.example.com/team-{number}/service-{number}@sha256:{digest}"),
                    format!("registry.example.com/team-{number}/service-{number}:v1.{number}.0"),
                ],
                "sizeBytes": 50_000_000 + number,
            })
        };
        json!({"status": {
            "capacity": {"cpu": "16", "memory": "65805212Ki", "pods": "110"},
            "allocatable": {"cpu": "15800m", "memory": "64805212Ki", "pods": "110"},
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"},
                          {"type": "Hostname", "address": self.name}],
            "images": (0..self.images).map(image).collect::<Vec<_>>(),
        }})
    }
}

impl ApiServer {
    pub fn create_node(&self, node: &NodeSpec) {
        self.create("/api/v1/nodes", &node.object());
        if node.images > 0 {
            self.heartbeat(node, 0);
        }
    }

    /// As a kubelet writes its status.
    pub fn heartbeat(&self, node: &NodeSpec, beat: u64) {
        let path = format!("/api/v1/nodes/{}/status", node.name);
        self.must(&Method::PATCH, &path, Some((STRATEGIC, &node.status(beat).to_string())));
    }

    pub fn node(&self, name: &str) -> Option<Value> {
        let (status, node) = self.ask(&Method::GET, &format!("/api/v1/nodes/{name}"), None);
        (status == 200).then_some(node)
    }

    pub fn annotations(&self, name: &str) -> Map<String, Value> {
        let node = self.node(name).unwrap_or_else(|| panic!("there is no Node {name}"));
        node["metadata"]["annotations"].as_object().cloned().unwrap_or_default()
    }

    /// By its whole name.
    pub fn annotation(&self, node: &str, name: &str) -> Option<String> {
        Some(self.annotations(node).get(name)?.as_str()?.to_owned())
    }

    /// `None` removes it.
    pub fn annotate(&self, node: &str, name: &str, value: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {name: value}}}).to_string();
        self.must(&Method::PATCH, &format!("/api/v1/nodes/{node}"), Some((MERGE, &patch)));
    }

    /// Gives a Node that has none its podCIDRs, as the controller does.
    pub fn assign(&self, node: &str, cidrs: &[&str]) {
        let patch = json!({"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}}).to_string();
        self.must(&Method::PATCH, &format!("/api/v1/nodes/{node}"), Some((MERGE, &patch)));
    }

    pub fn delete_node(&self, name: &str) {
        self.must(&Method::DELETE, &format!("/api/v1/nodes/{name}"), None);
    }

    /// The status of the condition `NetworkUnavailable`.
    pub fn network_unavailable(&self, node: &str) -> Option<String> {
        let node = self.node(node)?;
        let conditions = node["status"]["conditions"].as_array()?.clone();
        let ours = conditions.into_iter().find(|it| it["type"] == "NetworkUnavailable")?;
        Some(ours["status"].as_str()?.to_owned())
    }

    /// As a cloud's controller says that a new node has no routes yet.
    pub fn set_network_unavailable(&self, node: &str) {
        let patch = json!({"status": {"conditions": [{
            "type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated",
        }]}});
        let path = format!("/api/v1/nodes/{node}/status");
        self.must(&Method::PATCH, &path, Some((STRATEGIC, &patch.to_string())));
    }

    /// A service account with these rules, and a token of it.
    pub fn service_account(&self, name: &str, rules: &Value) -> String {
        let space = "/api/v1/namespaces/kube-system/serviceaccounts";
        let account = json!({"metadata": {"name": name}});
        self.ask(&Method::POST, space, Some((JSON, &account.to_string())));
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let role = json!({"metadata": {"name": name}, "rules": rules}).to_string();
        let (status, _) =
            self.ask(&Method::POST, &format!("{rbac}/clusterroles"), Some((JSON, &role)));
        if status == 409 {
            self.must(&Method::PUT, &format!("{rbac}/clusterroles/{name}"), Some((JSON, &role)));
        }
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}],
        });
        self.ask(
            &Method::POST,
            &format!("{rbac}/clusterrolebindings"),
            Some((JSON, &binding.to_string())),
        );
        let asked = json!({"spec": {"expirationSeconds": 3600}}).to_string();
        let answer =
            self.must(&Method::POST, &format!("{space}/{name}/token"), Some((JSON, &asked)));
        answer["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// After this its tokens are not worth anything.
    pub fn delete_service_account(&self, name: &str) {
        let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{name}");
        self.must(&Method::DELETE, &path, None);
    }
}
