//! The request of an operator for a connectivity test, and the report of each node.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flannel_lease::Subnet;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Body of a request. Without pods, each node makes its own and says where it is; with pods, each node tries them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TestRequest {
    pub port: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Pod>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Pod {
    /// The subnet of its node, as the request names it.
    pub node: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v4: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v6: Option<Ipv6Addr>,
}

impl Pod {
    /// Whether it is where a pod of its node can be: in the subnet by which it is named, which is a lease's.
    fn is_of_lease(&self, lease_nets: &BTreeSet<IpNet>) -> bool {
        let Ok(node) = self.node.parse::<Subnet>() else { return false };
        let is_in =
            |ip: IpAddr| node.nets().any(|net| net.contains(&ip) && lease_nets.contains(&net));
        self.addresses().all(is_in)
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

/// Pods that may be sent to, one of each node, and the others: no request may have every node send to any host.
pub fn confine(pods: Vec<Pod>, lease_nets: &BTreeSet<IpNet>) -> (Vec<Pod>, Vec<Pod>) {
    let mut nodes = BTreeSet::new();
    let pods = pods.into_iter().filter(|pod| nodes.insert(pod.node.clone()));
    pods.partition(|pod| pod.is_of_lease(lease_nets))
}

/// A node's answer to a [`TestRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TestReport {
    pub state: TestState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// The largest packet that pods of this node may send.
    #[serde(default)]
    pub mtu: u32,
    /// Why there is no pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<TrialResult>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TestState {
    /// The pod is there.
    Ready,
    Testing,
    /// All that was asked for has been tried.
    Done,
    /// There is no pod, and there will be none.
    Failed,
}

/// What came of trying one other pod at one of its addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TrialResult {
    /// The subnet of the other pod's node, as the request names it.
    pub to: String,
    pub address: IpAddr,
    pub tcp: TrialOutcome,
    pub udp: TrialOutcome,
    /// A packet as large as pods may send.
    pub full: TrialOutcome,
    /// From the node itself, at its address towards other nodes. Nothing where it has none of that family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<TrialOutcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

impl TrialResult {
    /// Nothing was sent to this address, and why.
    pub fn untried(to: &str, address: IpAddr, why: &str) -> Self {
        let failed = || TrialOutcome::Failed(why.to_owned());
        let (tcp, udp, full) = (failed(), failed(), failed());
        Self { to: to.to_owned(), address, tcp, udp, full, node: None, cause: None }
    }

    /// Each by its name.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, &TrialOutcome)> {
        let node = self.node.as_ref().map(|outcome| ("node", outcome));
        [("tcp", &self.tcp), ("udp", &self.udp), ("mtu", &self.full)].into_iter().chain(node)
    }

    pub fn is_whole(&self) -> bool {
        self.outcomes().all(|(_, outcome)| matches!(outcome, TrialOutcome::Passed(_)))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrialOutcome {
    /// After so many microseconds.
    Passed(u64),
    /// What was seen instead.
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Cause {
    pub layer: String,
    pub why: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_subnets_of_leases_is_sent_to() {
        let nets: BTreeSet<IpNet> =
            ["10.5.1.0/24", "fd05:1::/64", "10.5.2.0/24"].map(|net| net.parse().unwrap()).into();
        let pod = |node: &str, address: &str| {
            let ip: IpAddr = address.parse().unwrap();
            let (v4, v6) = match ip {
                IpAddr::V4(ip) => (Some(ip), None),
                IpAddr::V6(ip) => (None, Some(ip)),
            };
            Pod { node: node.to_owned(), v4, v6 }
        };
        for (node, address, is_sent_to) in [
            ("10.5.1.0-24", "10.5.1.254", true),
            ("10.5.1.0-24&fd05:1::-64", "fd05:1::ffff", true),
            ("10.5.2.0-24&fd05:2::-64", "10.5.2.9", true),
            // A host of the operator's network, of another lease than it names, of no lease.
            ("10.5.1.0-24", "192.0.2.7", false),
            ("10.5.1.0-24", "10.5.2.9", false),
            ("192.0.2.0-24", "192.0.2.7", false),
            ("10.5.0.0-16", "10.5.1.9", false),
            ("10.5.2.0-24&fd05:2::-64", "fd05:2::1", false),
            ("", "10.5.1.9", false),
        ] {
            let (sent_to, refused) = confine(vec![pod(node, address)], &nets);
            assert_eq!(
                (sent_to.len() == 1, refused.len() == 1),
                (is_sent_to, !is_sent_to),
                "{node} {address}"
            );
        }
        let many = (1..=200).map(|number| pod("10.5.1.0-24", &format!("10.5.1.{number}")));
        assert_eq!(confine(many.collect(), &nets).0.len(), 1, "one pod of each node");
    }
}
