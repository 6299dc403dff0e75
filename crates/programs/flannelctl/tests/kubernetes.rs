//! `flannelctl` and the Nodes of a real API server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use flannel_kube::testing::{ApiServer, NodeSpec};
use http::Method;
use serde_json::{Value, json};

const CONFIG: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

fn flannelctl(server: &ApiServer, words: &[&str]) -> Output {
    let kubeconfig = format!("--kubeconfig={}", server.admin_kubeconfig().display());
    Command::new(env!("CARGO_BIN_EXE_flannelctl")).args(words).arg(kubeconfig).output().unwrap()
}

fn said(server: &ApiServer, words: &[&str]) -> String {
    let output = flannelctl(server, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(server: &ApiServer, words: &[&str]) -> String {
    let output = flannelctl(server, words);
    assert!(!output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn nodes(server: &ApiServer) {
    for number in 1..=2 {
        let spec = NodeSpec::new(&format!("node-{number}")).cidr(format!("10.244.{number}.0/24"));
        let spec = spec.vxlan(&format!("192.0.2.{number}"), "02:00:00:00:00:01");
        server.create_node(&spec);
    }
    server.create_node(&NodeSpec::new("without-flannel").cidr("10.244.3.0/24"));
}

fn config_map(server: &ApiServer, config: &str) {
    let namespace = json!({"metadata": {"name": "kube-flannel"}});
    server.ask(
        &Method::POST,
        "/api/v1/namespaces",
        Some(("application/json", &namespace.to_string())),
    );
    let map = json!({"metadata": {"name": "kube-flannel-cfg"},
                     "data": {"net-conf.json": config, "cni-conf.json": "{}"}});
    server.create("/api/v1/namespaces/kube-flannel/configmaps", &map);
}

fn in_config_map(server: &ApiServer) -> Value {
    let path = "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg";
    server.must(&Method::GET, path, None)["data"].clone()
}

#[test]
fn leases_and_config_are_those_of_the_cluster_and_what_kubernetes_owns_is_said() {
    let server = ApiServer::start();
    nodes(&server);
    let leases = said(&server, &["leases"]);
    let rows: Vec<Vec<&str>> =
        leases.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows,
        [
            ["10.244.1.0/24", "192.0.2.1", "node-1", "vxlan", "assigned"],
            ["10.244.2.0/24", "192.0.2.2", "node-2", "vxlan", "assigned"],
        ]
    );
    let all: Value = serde_json::from_str(&said(&server, &["leases", "-o", "json"])).unwrap();
    assert_eq!(all[1]["attrs"]["Owner"], "node-2");
    assert_eq!(all[0]["expires"], Value::Null);

    let text = refused(&server, &["release", "10.244.2.0/24"]);
    assert!(text.contains("kubectl delete node node-2"), "{text}");
    let text = refused(&server, &["reserve", "10.244.9.0/24", "--public-ip", "192.0.2.9"]);
    assert!(text.contains("spec.podCIDRs"), "{text}");
    let text = refused(&server, &["unreserve", "10.244.2.0/24"]);
    assert!(text.contains("as long as the Node lives"), "{text}");
    assert!(server.node("node-2").is_some());

    // Where no flannel has been installed yet.
    let text = refused(&server, &["config", "get"]);
    assert!(text.contains("there is no network config"), "{text}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("net-conf.json");
    let set = |config: &str, more: &[&str]| {
        std::fs::write(&file, config).unwrap();
        let words = [&["config", "set", file.to_str().unwrap()], more].concat();
        flannelctl(&server, &words)
    };
    let text = String::from_utf8(set(CONFIG, &[]).stderr).unwrap();
    assert!(text.contains("there is no ConfigMap kube-flannel/kube-flannel-cfg"), "{text}");

    config_map(&server, CONFIG);
    let shown: Value = serde_json::from_str(&said(&server, &["config", "get"])).unwrap();
    assert_eq!(shown["Network"], "10.244.0.0/16");
    assert_eq!(said(&server, &["config", "get", "--raw"]), CONFIG);
    let other = CONFIG.replace("vxlan", "host-gw");
    assert!(set(&other, &[]).status.success());
    assert_eq!(in_config_map(&server), json!({"net-conf.json": other, "cni-conf.json": "{}"}));
    let strands = CONFIG.replace("10.244.0.0/16", "10.244.2.0/24");
    let text = String::from_utf8(set(&strands, &[]).stderr).unwrap();
    assert!(text.contains("1 live leases do not fit") && text.contains("10.244.1.0"), "{text}");
    assert_eq!(in_config_map(&server)["net-conf.json"], other, "nothing was written");
    assert!(set(&strands, &["--force"]).status.success());
    let forced = strands.replacen('{', r#"{"Replaces":["10.244.0.0/16"],"#, 1);
    assert_eq!(in_config_map(&server)["net-conf.json"], forced);
}

#[test]
fn a_right_that_an_operator_has_not_is_named() {
    let server = ApiServer::start();
    config_map(&server, CONFIG);
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let token = server.service_account("nobody", &rules);
    let file = server.kubeconfig("nobody", &server.url(), json!({"token": token}));
    for (words, right) in
        [(["leases", "-o", "wide"], "watch nodes"), (["config", "get", "--raw"], "get configmaps")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_flannelctl"))
            .args(words)
            .arg("--kubeconfig-file")
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(&format!("not allowed to {right}")), "{text}");
        assert!(!text.contains(&token), "a token is a secret");
    }
}

#[test]
fn leases_of_a_cluster_are_followed() {
    let server = ApiServer::start();
    nodes(&server);
    let mut watch = Command::new(env!("CARGO_BIN_EXE_flannelctl"))
        .args(["leases", "--watch"])
        .arg(format!("--kubeconfig={}", server.admin_kubeconfig().display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |words: &[&str]| {
        let is_it = |line: &String| words.iter().all(|word| line.contains(word));
        assert!(lines.any(|line| is_it(&line)), "it ended before {words:?}");
    };
    until(&["10.244.2.0/24", "192.0.2.2"]);
    let third = NodeSpec::new("node-4").cidr("10.244.4.0/24");
    server.create_node(&third.vxlan("192.0.2.4", "02:00:00:00:00:01"));
    until(&["10.244.4.0/24", "192.0.2.4"]);
    server.delete_node("node-1");
    until(&["10.244.1.0/24"]);
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn the_ends_of_a_trace_are_pods_of_any_node_by_the_name_that_the_cluster_knows() {
    let server = ApiServer::start();
    nodes(&server);
    config_map(&server, CONFIG);
    let post = |path: &str, object: Value| {
        server.ask(&Method::POST, path, Some(("application/json", &object.to_string())));
    };
    post("/api/v1/namespaces", json!({"metadata": {"name": "shop"}}));
    // Without one no pod can be made.
    post("/api/v1/namespaces/shop/serviceaccounts", json!({"metadata": {"name": "default"}}));
    let pods = "/api/v1/namespaces/shop/pods";
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"nodeName": "node-2", "containers": [{"name": "c", "image": "x"}],
                 "automountServiceAccountToken": false},
    });
    server.create(pods, &pod);
    // It ends with 2: what it traces is not on this machine, or not there at all.
    let trace = |kubeconfig: &std::path::Path, from: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_flannelctl"))
            .args(["trace", from, "192.0.2.77", "--kubeconfig-file"])
            .arg(kubeconfig)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let admin = server.admin_kubeconfig();
    let said = trace(&admin, "shop/web");
    assert!(said.contains("the pod shop/web has no address yet"), "{said}");
    let status = json!({"status": {"podIP": "203.0.113.5", "podIPs": [{"ip": "203.0.113.5"}]}});
    let patch = ("application/merge-patch+json", status.to_string());
    server.must(&Method::PATCH, &format!("{pods}/web/status"), Some((patch.0, &patch.1)));
    let said = trace(&admin, "shop/web");
    assert!(said.contains("neither 203.0.113.5 nor 192.0.2.77 is in a pod network"), "{said}");
    let said = trace(&admin, "web");
    assert!(said.contains("there is no pod default/web: kubectl get pods -A"), "{said}");

    let nodes_only = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]);
    let token = server.service_account("looker", &nodes_only);
    let file = server.kubeconfig("looker", &server.url(), json!({"token": token}));
    let said = trace(&file, "shop/web");
    assert!(said.contains("does not allow to get pods in the namespace shop"), "{said}");
    assert!(said.contains("resources: [pods], verbs: [get]"), "{said}");
}
