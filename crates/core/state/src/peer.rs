//! One peer of this node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::ProbeState;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerState {
    pub network: String,
    /// Its name, where the store knows that: the lease server by its clients' tokens, Kubernetes by its Nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_subnet: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ip: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ipv6: Option<Ipv6Addr>,
    pub backend: String,
    pub condition: PeerCondition,
    /// Reason why it is unreachable, or what is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Result of its probes; absent without probing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeState>,
}

impl PeerState {
    pub fn subnets(&self) -> impl Iterator<Item = &str> {
        self.subnet.iter().chain(&self.ipv6_subnet).map(String::as_str)
    }

    /// Addresses that it announces, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = self.public_ip.map(IpAddr::V4);
        v4.into_iter().chain(self.public_ipv6.map(IpAddr::V6))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerCondition {
    /// Everything that leads to it is in place.
    Programmed,
    /// Something that leads to it is missing.
    Incomplete,
    /// Missing from the store's list, and still sent to for a while.
    Vanished,
    /// Nothing leads to it: its lease cannot be used here.
    Unusable,
}
