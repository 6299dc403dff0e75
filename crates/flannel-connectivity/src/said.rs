//! What an operator says in a request, and what nodes say to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// In the request. First it names no pods: each node makes its own and says where it is. Then it names them all, and
/// each node tries them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Asked {
    pub port: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Pod>,
}

/// A test pod.
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
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Said {
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// The largest packet that pods of this node may send.
    #[serde(default)]
    pub mtu: u32,
    /// Why there is no pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<Found>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
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
pub struct Found {
    /// The subnet of the other pod's node, as the request names it.
    pub to: String,
    pub address: IpAddr,
    pub tcp: Outcome,
    pub udp: Outcome,
    /// A packet as large as pods may send.
    pub full: Outcome,
    /// From the node itself, at its address towards other nodes. Nothing where it has none of that family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Outcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

impl Found {
    /// Each by its name.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, &Outcome)> {
        let node = self.node.as_ref().map(|outcome| ("node", outcome));
        [("tcp", &self.tcp), ("udp", &self.udp), ("mtu", &self.full)].into_iter().chain(node)
    }

    pub fn is_whole(&self) -> bool {
        self.outcomes().all(|(_, outcome)| matches!(outcome, Outcome::Passed(_)))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// After so many microseconds.
    Passed(u64),
    /// What was seen instead.
    Failed(String),
}

/// What is wrong, in the words of the probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Cause {
    pub layer: String,
    pub why: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}
