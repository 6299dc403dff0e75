//! What of a node flannel might change: devices, routes, rules, kernel settings, files.

use std::collections::BTreeSet;
use std::time::Duration;

use flannel_lab::{Node, Place as _};
use flannel_runtimes::Cluster;

/// Of one node, a line for each thing.
#[derive(Debug)]
pub(crate) struct HostState(BTreeSet<String>);

/// Each with the word that its lines begin with. `route_localnet` of all devices is kube-proxy's.
const LOOKS: [(&str, &str); 6] = [
    ("link", "ip -o link | cut -d : -f 2 | cut -d @ -f 1"),
    (
        "route",
        "ip -4 route show table all; ip -6 route show table all | sed 's/ expires [0-9]*sec//'",
    ),
    ("rule", "ip -4 rule; ip -6 rule"),
    ("nft", "nft --stateless list ruleset"),
    (
        "setting",
        "cd /proc/sys/net; grep -s . ipv4/ip_forward ipv4/conf/all/* ipv4/conf/default/* ipv4/conf/eth0/* \
         ipv6/conf/all/* ipv6/conf/default/* ipv6/conf/eth0/* bridge/* | grep -v ^ipv4/conf/all/route_localnet",
    ),
    (
        "file",
        "find /etc/cni /opt/cni /run/flannel /run/cni /var/lib/flannel /var/lib/cni /var/lib/rancher ! -type d \
         2>/dev/null || true",
    ),
];

impl HostState {
    /// Of all nodes, in their order.
    pub(crate) fn of_all(cluster: &Cluster) -> Vec<Self> {
        cluster.lab().nodes().iter().map(Self::of).collect()
    }

    /// Waits until nothing is there that was not there before, and nothing is missing.
    pub(crate) fn assert_unchanged(before: &[Self], cluster: &Cluster) {
        for (node, before) in cluster.lab().nodes().iter().zip(before) {
            let look = || {
                let now = Self::of(node);
                let difference = before.difference_to(&now);
                Ok(if difference.is_empty() { Ok(()) } else { Err(difference) })
            };
            cluster
                .kubernetes()
                .wait_until("the node to be as it was", Duration::from_secs(20), look)
                .unwrap_or_else(|error| panic!("{}: {error}", node.label()));
        }
    }

    fn of(node: &Node) -> Self {
        let mut lines = BTreeSet::new();
        for (word, look) in LOOKS {
            let text = node.exec(&["sh", "-c", look]).unwrap_or_else(|error| panic!("{error}"));
            let text = if word == "nft" { without_kubernetes(&text) } else { text };
            lines.extend(text.lines().map(|line| format!("{word} {}", line.trim())));
        }
        Self(lines)
    }

    fn difference_to(&self, now: &Self) -> String {
        let new = now.0.difference(&self.0).map(|line| format!("new: {line}\n"));
        let gone = self.0.difference(&now.0).map(|line| format!("gone: {line}\n"));
        new.chain(gone).collect()
    }
}

/// kube-proxy and the kubelet write rules at times of their own. Of base chains without a rule it does not matter whether
/// they are there: whoever but lists rules with iptables makes them.
fn without_kubernetes(ruleset: &str) -> String {
    let (mut table, mut chain, mut kept) = ("", "", String::new());
    for line in ruleset.lines().map(str::trim) {
        if line.starts_with("table ") {
            table = line;
        }
        if line.starts_with("chain ") || line.starts_with("table ") {
            chain = line;
        }
        let is_foreign = |it: &&str| it.contains("KUBE-") || it.contains("kube-proxy");
        let foreign = [table, chain, line].iter().any(is_foreign);
        let is_frame = ["}", "chain ", "table ", "type "].iter().any(|it| line.starts_with(it));
        if !foreign && !line.is_empty() && !is_frame {
            kept.push_str(&format!("{table} {chain} {line}\n"));
        }
    }
    kept
}
