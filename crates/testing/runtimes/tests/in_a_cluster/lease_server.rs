//! A cluster whose nodes have no podCIDR: the lease server's overlay, as docs/install-kubernetes.md tells people.

use std::net::IpAddr;
use std::process::Command;

use flannel_lab::{Place as _, ProxyMode};
use flannel_runtimes::{Cluster, flannelctl, our_overlay};

use crate::{NAMESPACE, install};

#[test]
fn without_podcidrs_a_lease_server_in_the_cluster_hands_out_the_subnets() {
    let cluster = Cluster::start(ProxyMode::Nftables, |spec| spec.allocate = false);
    let server = cluster.lab().node(1);
    let address = server.addresses().into_iter().find(IpAddr::is_ipv4).expect("an address");
    let pki = tempfile::tempdir().expect("a directory");
    let dir = pki.path().display().to_string();
    let tool = |words: &[&str]| {
        let output = Command::new(flannelctl()).args(["pki", "--dir", &dir]).args(words).output();
        let output = output.expect("run flannelctl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    tool(&["init", &address.to_string()]);
    tool(&["token", "me", "--admin"]);
    cluster.kubectl(&["create", "namespace", NAMESPACE]);
    let create = ["-n", NAMESPACE, "create"];
    let from = |name: &str| format!("--from-file={dir}/{name}");
    let (certificate, key, tokens) = (from("server.pem"), from("server.key"), from("tokens"));
    let of_server = ["secret", "generic", "flannel-lease-server", &certificate, &key, &tokens];
    cluster.kubectl(&[&create[..], &of_server].concat());
    let (named, ca) = (format!("--from-literal=server={address}"), from("ca.pem"));
    cluster.kubectl(&[&create[..], &["configmap", "flannel-lease-client", &named, &ca]].concat());
    cluster.kubectl(&["label", "node", "node1", "flannel-lease-server=here"]);
    install(&cluster, &our_overlay(&cluster, "lease-server"));

    let path = "jsonpath={.items[*].spec.podCIDR}";
    assert_eq!(cluster.kubectl(&["get", "nodes", "-o", path]).trim(), "", "nobody assigns any");
    cluster.serve();
    cluster.everything_reaches_everything();

    // Every lease is its Node's, and none can be written with the token of another node's pod.
    let of_node = |number: u16| {
        let node = cluster.lab().node(number);
        let token = "/run/flannel-token";
        let pods = ["-n", NAMESPACE, "get", "pods", "-l", "app=flannel", "-o"];
        let path =
            format!("jsonpath={{.items[?(@.spec.nodeName==\"node{number}\")].metadata.name}}");
        let pod = cluster.kubectl(&[&pods[..], &[&path]].concat());
        let read = ["-n", NAMESPACE, "exec", pod.trim(), "-c", "kube-flannel", "--"];
        let file = ["cat", "/var/run/secrets/flannel/token"];
        let text = cluster.kubectl(&[&read[..], &file].concat());
        node.write_file(token, &text).expect("the token is kept");
        node.write_file(
            "/run/ca.pem",
            &std::fs::read_to_string(pki.path().join("ca.pem")).expect("a file"),
        )
        .expect("the authority is kept");
        node
    };
    let url = format!("https://{address}:10253/v1/_/leases");
    let curl = |node: &flannel_lab::Node, more: &[&str], path: &str| {
        let at = format!("{url}{path}");
        let script = format!(
            "curl -s --cacert /run/ca.pem -H \"Authorization: Bearer $(cat /run/flannel-token)\" \
             -H 'Content-Type: application/json' {} '{at}'",
            more.join(" ")
        );
        node.exec(&["sh", "-c", &script]).expect("curl runs")
    };
    let (two, three) = (of_node(2), of_node(3));
    let listed: serde_json::Value =
        serde_json::from_str(&curl(three, &[], "")).expect("the leases");
    let leases = listed["snapshot"].as_array().expect("a table");
    let of = |name: &str| {
        let lease = leases.iter().find(|lease| lease["Owner"] == name);
        lease.unwrap_or_else(|| panic!("no lease of {name}: {listed}")).clone()
    };
    let (victims, mut theft) = (of("node2"), of("node3"));
    theft["Version"] = victims["Version"].clone();
    theft.as_object_mut().expect("a lease").remove("Subnet");
    let subnet = victims["Subnet"].as_str().expect("a subnet").replace('/', "-");
    three.write_file("/run/theft.json", &theft.to_string()).expect("a file");
    let put = ["-X", "PUT", "-d", "@/run/theft.json", "-w", "'%{http_code}'"];
    let said = curl(three, &put, &format!("/{subnet}"));
    assert!(said.ends_with("403"), "node3 writes the lease of node2: {said}");
    let mut own = victims.clone();
    own.as_object_mut().expect("a lease").remove("Subnet");
    two.write_file("/run/theft.json", &own.to_string()).expect("a file");
    let said = curl(two, &put, &format!("/{subnet}"));
    assert!(said.ends_with("200"), "node2 writes its own lease: {said}");
    // The leases outlive the server.
    let subnets = || {
        let read = |node: &flannel_lab::Node| node.read_file("/run/flannel/subnet.env").ok();
        cluster.lab().nodes().iter().map(read).collect::<Vec<_>>()
    };
    let before = subnets();
    for what in ["deployment/flannel-lease-server", "ds/kube-flannel-ds"] {
        cluster.kubectl(&["-n", NAMESPACE, "rollout", "restart", what]);
        cluster.kubectl(&["-n", NAMESPACE, "rollout", "status", what, "--timeout=180s"]);
    }
    assert_eq!(subnets(), before);
    cluster.everything_reaches_everything();
}
