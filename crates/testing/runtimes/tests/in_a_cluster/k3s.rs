//! Not k3s itself: its directories, its network, its chain of plugins, its annotation, the rules of its policy
//! controller.

use std::net::IpAddr;
use std::time::Duration;

use flannel_lab::{Node, Place as _, ProxyMode};
use flannel_runtimes::{Cluster, WebPod, our_overlay};

use crate::host_state::HostState;
use crate::{install, uninstall};

#[test]
fn our_overlay_for_k3s_works_in_its_directories_with_its_annotation_and_beside_its_policies() {
    let cluster = Cluster::start(ProxyMode::Iptables, |spec| {
        spec.pods = "10.42.0.0/16".into();
        spec.cni_bin_dir = "/var/lib/rancher/k3s/data/cni".into();
        spec.cni_conf_dir = "/var/lib/rancher/k3s/agent/etc/cni/net.d".into();
    });
    let before = HostState::of_all(&cluster);
    let external = give_an_external_address(&cluster);
    for node in cluster.lab().nodes() {
        sh(node, "iptables -N KUBE-ROUTER-FORWARD; iptables -I FORWARD -j KUBE-ROUTER-FORWARD");
    }
    let overlay = our_overlay(&cluster, "k3s");
    install(&cluster, &overlay);
    let pods = cluster.serve();
    cluster.everything_reaches_everything();
    peers_use_the_external_address(&cluster, external);
    policies_stay_first_and_effective(&cluster, &pods);
    pods_are_held_to_their_bandwidth(&cluster);

    uninstall(&cluster, &overlay, &our_overlay(&cluster, "k3s/uninstall"));
    for node in cluster.lab().nodes() {
        sh(node, "iptables -D FORWARD -j KUBE-ROUTER-FORWARD; iptables -X KUBE-ROUTER-FORWARD");
    }
    sh(cluster.lab().node(2), &format!("ip addr del {external}/32 dev eth0"));
    HostState::assert_unchanged(&before, &cluster);
}

/// As `k3s --flannel-external-ip --node-external-ip=…` does it: node 2 is to be reached at another address than the one
/// that its interface has first.
fn give_an_external_address(cluster: &Cluster) -> IpAddr {
    let external: IpAddr = "192.0.2.2".parse().expect("an address");
    let node = cluster.lab().node(2);
    let own = node.addresses().into_iter().find(IpAddr::is_ipv4).expect("an address");
    sh(node, &format!("ip addr add {external}/32 dev eth0"));
    for other in [1, 3] {
        sh(cluster.lab().node(other), &format!("ip route add {external}/32 via {own}"));
    }
    let overwrite = format!("flannel.alpha.coreos.com/public-ip-overwrite={external}");
    cluster.kubectl(&["annotate", "node", "node2", &overwrite]);
    external
}

fn peers_use_the_external_address(cluster: &Cluster, external: IpAddr) {
    let path = r"jsonpath={.metadata.annotations.flannel\.alpha\.coreos\.com/public-ip}";
    let announced = cluster.kubectl(&["get", "node", "node2", "-o", path]);
    assert_eq!(announced, external.to_string());
    for other in [1, 3] {
        let node = cluster.lab().node(other);
        let entries = sh(node, "bridge fdb show dev flannel.1");
        assert!(entries.contains(&format!("dst {external} ")), "node{other}: {entries}");
        // Not part of flannel, and not to be missed when it is gone.
        sh(node, &format!("ip route del {external}/32"));
    }
}

/// kube-router, which k3s runs for network policies, judges a pod's packets in a chain of its own at the head of FORWARD.
fn policies_stay_first_and_effective(cluster: &Cluster, pods: &[WebPod]) {
    let on = |node: &str| pods.iter().find(|pod| pod.node == node).expect("a pod on every node");
    let (from, to) = (on("node1"), on("node3"));
    let node = cluster.lab().node(3);
    // kube-proxy goes to the head as well, whenever it writes its rules anew.
    let judged_before_flannel = || {
        let rules = sh(node, "iptables -S FORWARD");
        let at = |chain: &str| rules.lines().position(|rule| rule.ends_with(chain));
        let (policies, flannel) = (at("-j KUBE-ROUTER-FORWARD"), at("-j FLANNEL-FWD"));
        assert!(policies.is_some() && flannel.is_some() && policies < flannel, "{rules}");
    };
    judged_before_flannel();
    let address = to.addresses[0];
    let ping = format!("ping -c 2 -W 2 {address}");
    let reaches =
        || cluster.kubernetes().kubectl(&["exec", &from.name, "--", "sh", "-c", &ping]).is_ok();
    assert!(reaches());
    sh(
        node,
        &format!(
            "iptables -N KUBE-POD-FW-TEST; iptables -A KUBE-POD-FW-TEST -j REJECT; \
             iptables -A KUBE-ROUTER-FORWARD -d {address} -j KUBE-POD-FW-TEST"
        ),
    );
    assert!(!reaches(), "a policy is passed by");

    // What flanneld puts back goes behind it, too.
    let flannel = "-A FORWARD .*-j FLANNEL-FWD";
    sh(node, "iptables -S FORWARD | grep -e '-j FLANNEL-FWD' | sed s/-A/-D/ | xargs iptables");
    cluster
        .kubernetes()
        .wait_until("flanneld to repair its rules", Duration::from_secs(60), || {
            node.exec(&["sh", "-c", &format!("iptables -S FORWARD | grep -e '{flannel}'")])
                .map(Ok::<_, String>)
        })
        .unwrap_or_else(|error| panic!("{error}"));
    judged_before_flannel();
    assert!(!reaches(), "a policy is passed by after a repair");
    sh(
        node,
        "iptables -F KUBE-ROUTER-FORWARD; iptables -F KUBE-POD-FW-TEST; iptables -X KUBE-POD-FW-TEST",
    );
    assert!(reaches());
}

fn pods_are_held_to_their_bandwidth(cluster: &Cluster) {
    let node = cluster.lab().node(2);
    cluster.apply(LIMITED);
    cluster.kubectl(&["wait", "pod/limited", "--for=condition=Ready", "--timeout=60s"]);
    let look = || {
        let limits = node.exec(&["sh", "-c", "tc qdisc | grep tbf"]).unwrap_or_default();
        (limits.matches("rate 1Mbit").count(), limits.matches("rate 2Mbit").count())
    };
    assert_eq!(look(), (1, 1));
    cluster.kubectl(&["delete", "pod", "limited"]);
    // The kubelet may remove the pod from the API before its network.
    let gone = || {
        let links = node.ip("link show type ifb")?;
        Ok(if look() == (0, 0) && links.is_empty() { Ok(()) } else { Err(links) })
    };
    cluster
        .kubernetes()
        .wait_until("the limits to go with the pod", Duration::from_secs(30), gone)
        .unwrap_or_else(|error| panic!("{error}"));
}

fn sh(node: &Node, line: &str) -> String {
    node.exec(&["sh", "-ec", line]).unwrap_or_else(|error| panic!("{error}"))
}

const LIMITED: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: limited
  annotations:
    kubernetes.io/ingress-bandwidth: 1M
    kubernetes.io/egress-bandwidth: 2M
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 0
  containers: [{name: limited, image: "lab/pod:1"}]
"#;
