//! One network of a daemon.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::{Moment, ProbingState};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkState {
    /// `_` where there is one network without a name.
    pub name: String,
    pub verdict: Verdict,
    /// What is wrong, or worth knowing, and where known the remedy.
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
    /// What pods are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// How that was found, in words.
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
    /// What else is wrong, the worst first, with what mends it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<IssueState>,
}

impl NetworkState {
    /// Whether pods of this node reach those of others: as far as it can tell by itself, and as far as it has
    /// looked.
    pub fn is_whole(&self) -> bool {
        self.verdict.is_whole()
            && self.probing.as_ref().is_none_or(|probing| probing.unreached == 0)
            && self.peers.incomplete == 0
            && self.issues.iter().all(|issue| issue.traffic)
    }

    /// Of which no more is known than its name.
    pub fn starting(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            verdict: Verdict::NotReady,
            why: None,
            networks: Vec::new(),
            backend: None,
            config: None,
            lease: None,
            underlay: None,
            mtu: None,
            mtu_why: None,
            store: None,
            peers: PeerCounts::default(),
            probing: None,
            entries: EntriesState::default(),
            issues: Vec::new(),
        }
    }
}

/// Something that is wrong: of what, in which layer, why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssueState {
    pub about: String,
    /// `lease`, `entries`, `store`, `files`. New ones may come.
    pub layer: String,
    pub why: String,
    pub fix: String,
    /// Whether pods' packets pass all the same.
    pub traffic: bool,
}

/// How it is, from well to not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Ready,
    /// Ready, and something is worth knowing.
    ReadyBut,
    /// All that is flannel's to do is done, and yet pods are cut off.
    CutOff,
    NotReady,
}

impl Verdict {
    /// Whether pods of this node reach those of others, as far as this node can tell.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Ready | Self::ReadyBut)
    }
}

/// This node's own lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseState {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_subnet: Option<String>,
    /// When it ends unless it is renewed; absent for a reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Moment>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<u64>,
}

/// What the node reaches its peers through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnderlayState {
    pub interface: String,
    /// Why this one.
    pub why: String,
    pub mtu: u32,
    /// The interface's own addresses.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// What peers are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ip: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ipv6: Option<Ipv6Addr>,
}

/// Where leases are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreState {
    pub name: String,
    pub up: bool,
    /// Since when it is up or away.
    pub since: Moment,
    /// Why it is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How many peers are how.
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

/// What is wanted of the kernel and others, and what of it is not there.
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
    /// What others do on this node that keeps pods apart though all is as wanted, with the remedy.
    #[serde(default)]
    pub hazards: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProblemState {
    pub entry: String,
    pub why: String,
}
