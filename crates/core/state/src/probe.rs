//! Whether peers are reached, as they were found when they were asked.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Finding, Layer, Moment};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeState {
    /// `reached`, `not-probed`, `waiting`, or what is wrong: `underlay-cut`, `tunnel-blocked`. New ones may come.
    pub verdict: String,
    /// Whether pods' packets pass; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<Layer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_micros: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Moment>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbingState {
    /// UDP port at which this node answers.
    pub port: u16,
    pub reached: usize,
    /// Pods' packets do not pass, or not all of them.
    pub unreached: usize,
    /// Pods' packets pass, and something is worth knowing: the daemon does not answer, packets are fragmented.
    pub impaired: usize,
    /// They do not take part: the Go flannel, or probing is switched off there.
    pub not_probed: usize,
    /// Their first turn is yet to come.
    pub waiting: usize,
    /// There and back, the median of all peers and the longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_micros: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_latency_micros: Option<u64>,
    /// Numbers of the last small probes of all peers that were sent and lost.
    #[serde(default)]
    pub asked: u32,
    #[serde(default)]
    pub lost: u32,
    /// Faults, the worst first, each with its first peers.
    #[serde(default)]
    pub findings: Vec<ProbedPeer>,
}

/// A peer of which probing found that something is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbedPeer {
    pub subnet: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<IpAddr>,
    #[serde(flatten)]
    pub probe: ProbeState,
}

impl ProbingState {
    /// Numbers of peers by what probing found, in words. `number`: how a number is written.
    pub fn reached_and_others(&self, number: impl Fn(usize) -> String) -> String {
        let parts = [
            (self.unreached, "UNREACHABLE"),
            (self.impaired, "reached with a warning"),
            (self.not_probed, "not probed"),
            (self.waiting, "not probed yet"),
        ];
        format!("{} reached{}", number(self.reached), counted(&parts, number))
    }
}

/// `, 3 of these, 2 of those`, without what there is none of. `number`: how a number is written.
pub fn counted(parts: &[(usize, &str)], number: impl Fn(usize) -> String) -> String {
    let some = parts.iter().filter(|(count, _)| *count > 0);
    some.map(|(count, what)| format!(", {} {what}", number(*count))).collect()
}

impl ProbedPeer {
    pub fn finding(&self) -> Finding {
        let Self { subnet, node, probe } = self;
        let node = node.map(|node| format!(" at {node}")).unwrap_or_default();
        let judge = if probe.traffic == Some(true) { Finding::warning } else { Finding::broken };
        judge(
            probe.layer.unwrap_or(Layer::Unknown),
            format!("peer {subnet}{node}"),
            probe.why.as_deref().unwrap_or(&probe.verdict),
            probe.fix.as_deref().unwrap_or("`flannelctl check` on both nodes"),
        )
    }
}
