//! What an ADD made: interfaces, addresses, routes and name servers. The shape is that of the
//! newest version of the protocol; `result_json` writes and reads the older ones.

use std::net::IpAddr;

use flannel_common::Mac;
use ipnet::IpNet;
use serde::Serialize;

use super::{Call, Version};

/// Result of an ADD, and the version of the protocol in which the runtime is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    pub outcome: Outcome,
    pub version: Version,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    pub dns: Dns,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: i64,
    /// Empty: it is on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    #[serde(rename = "socketPath", skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IpConfig {
    /// The word for the family that versions 0.3 and 0.4 carry, when it was read from one of them.
    #[serde(rename = "version", skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Which of the interfaces has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<i64>,
    pub address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    pub dst: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub advmss: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Added {
    /// In the version of the configuration that asked for it.
    pub fn for_call(call: &Call, outcome: Outcome) -> Self {
        Self { outcome, version: call.conf.version }
    }
}

impl Interface {
    pub fn new(name: &str, mac: Option<Mac>, sandbox: &str) -> Self {
        let mac = mac.map(|mac| mac.to_string()).unwrap_or_default();
        Self { name: name.to_owned(), mac, sandbox: sandbox.to_owned(), ..Self::default() }
    }
}

impl Route {
    pub fn to(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

impl Dns {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
pub(super) fn is_zero(number: &i64) -> bool {
    *number == 0
}
