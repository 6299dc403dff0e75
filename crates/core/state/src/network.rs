//! One network of a daemon.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::{Finding, Layer, Moment, ProbedPeer, ProbingState};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkState {
    /// `_` where there is one network without a name.
    pub name: String,
    pub verdict: Verdict,
    /// Faults and notes, with the fix where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The ranges of the network, of each family in use.
    #[serde(default)]
    pub networks: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The network config with every derived value, without secrets. Told on the socket alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<UnderlayState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_why: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreState>,
    #[serde(default)]
    pub peers: PeerCounts,
    /// Whether peers are reached; absent where that is not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probing: Option<ProbingState>,
    #[serde(default)]
    pub entries: EntriesState,
    /// Faults and notes, the worst first, without what probing found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<Finding>,
}

impl NetworkState {
    /// Whether pods of this node reach those of others, as far as it can tell by itself and as it has looked.
    pub fn is_healthy(&self) -> bool {
        self.verdict.is_healthy()
            && self.probing.as_ref().is_none_or(|probing| probing.unreached == 0)
            && self.peers.incomplete == 0
            && self.issues.iter().all(|issue| issue.traffic_flows)
    }

    /// Issues, what probing found, and why a network that has neither is not ready; the worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let probed = self.probing.iter().flat_map(|probing| &probing.findings);
        let mut findings: Vec<Finding> =
            self.issues.iter().cloned().chain(probed.map(ProbedPeer::finding)).collect();
        if let Some(why) = self.why.as_ref().filter(|_| self.issues.is_empty()) {
            let judge = if self.is_healthy() { Finding::warning } else { Finding::broken };
            let fix = "`flannelctl events` says since when";
            findings.push(judge(Layer::Daemon, "flanneld", why, fix));
        }
        Finding::sort(&mut findings);
        findings
    }

    /// State of a network of which only the name is known.
    pub fn starting(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

/// Health, from good to bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Ready,
    /// Ready, and something is worth knowing.
    ReadyBut,
    /// All that is flannel's to do is done, and yet pods are cut off.
    CutOff,
    #[default]
    NotReady,
}

impl Verdict {
    /// Whether pods of this node reach those of others, as far as this node can tell.
    pub fn is_healthy(self) -> bool {
        matches!(self, Self::Ready | Self::ReadyBut)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseState {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_subnet: Option<String>,
    /// End unless it is renewed; absent for a reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Moment>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<u64>,
}

impl LeaseState {
    pub fn subnets(&self) -> impl Iterator<Item = &str> {
        self.subnet.iter().chain(&self.ipv6_subnet).map(String::as_str)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnderlayState {
    pub interface: String,
    pub why: String,
    pub mtu: u32,
    /// The interface's own addresses.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ip: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ipv6: Option<Ipv6Addr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreState {
    pub name: String,
    pub up: bool,
    /// Time since which it is reachable or unreachable.
    pub since: Moment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Interface, addresses and MTU.
impl fmt::Display for UnderlayState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        write!(f, "{} {}, MTU {}", self.interface, addresses.join(" "), self.mtu)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerCounts {
    pub known: usize,
    /// Known, and this node cannot send to them.
    pub unusable: usize,
    /// Known, and something that leads to them is missing.
    #[serde(default)]
    pub incomplete: usize,
    /// Missing from the store's list, and still sent to for a while.
    pub vanished: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntriesState {
    pub wanted: usize,
    pub missing: usize,
    /// Wanted by several in different versions.
    pub contested: usize,
    /// The first of those missing.
    #[serde(default)]
    pub problems: Vec<ProblemState>,
    /// Actions of others on this node that cut pods off although all entries are in place, with the fix.
    #[serde(default)]
    pub hazards: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProblemState {
    pub entry: String,
    pub why: String,
}
