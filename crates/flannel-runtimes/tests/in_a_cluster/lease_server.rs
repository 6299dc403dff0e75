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
    let said = tool(&["token", "nodes"]);
    let token = said.split(['\'', '"', ' ', '=', '\n']).find(|word| word.starts_with("fl1."));
    let token = token.unwrap_or_else(|| panic!("no token: {said}"));
    cluster.kubectl(&["create", "namespace", NAMESPACE]);
    let secret = ["-n", NAMESPACE, "create", "secret", "generic"];
    let from = |name: &str| format!("--from-file={dir}/{name}");
    let (certificate, key, tokens) = (from("server.pem"), from("server.key"), from("tokens"));
    let of_server = ["flannel-lease-server", &certificate, &key, &tokens];
    cluster.kubectl(&[&secret[..], &of_server].concat());
    let (address, token) =
        (format!("--from-literal=server={address}"), format!("--from-literal=token={token}"));
    cluster.kubectl(&[&secret[..], &["flannel-lease-client", &address, &token]].concat());
    cluster.kubectl(&["label", "node", "node1", "flannel-lease-server=here"]);
    install(&cluster, &our_overlay(&cluster, "lease-server"));

    let path = "jsonpath={.items[*].spec.podCIDR}";
    assert_eq!(cluster.kubectl(&["get", "nodes", "-o", path]).trim(), "", "nobody assigns any");
    cluster.serve();
    cluster.everything_reaches_everything();

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
