//! Whether peers are reached, as they were found when they were asked.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Moment;

/// One peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeState {
    /// `reached`, `not-probed`, `waiting`, or what is wrong: `underlay-cut`, `tunnel-blocked`. New ones may come.
    pub verdict: String,
    /// Whether pods' packets pass; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<bool>,
    /// Where the fault is: `underlay`, `tunnel`, `entries`, `offload`, `daemon`, `probe`, `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// There and back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_micros: Option<u64>,
    /// The largest packet that is known to pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Of the last probes, small ones, how many were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u32>,
    /// How many of those were lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u32>,
    /// When it was last asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Moment>,
}

/// All peers of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbingState {
    /// Where this node answers, on UDP.
    pub port: u16,
    pub reached: usize,
    /// Pods' packets do not pass, or not all of them.
    pub unreached: usize,
    /// Pods' packets pass, and something is worth knowing: the peer's daemon does not answer, or packets are
    /// fragmented.
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
    /// Of the last probes of all peers, small ones, how many were sent, and how many of those were lost.
    #[serde(default)]
    pub asked: u32,
    #[serde(default)]
    pub lost: u32,
    /// What is wrong, the worst first, with the first peers of which it is so.
    #[serde(default)]
    pub findings: Vec<FindingState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingState {
    pub subnet: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<IpAddr>,
    #[serde(flatten)]
    pub probe: ProbeState,
}
