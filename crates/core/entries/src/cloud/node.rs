//! This machine, as its cloud describes it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Provider;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeQuery {
    pub provider: Provider,
    /// Address of the metadata service, if not the provider's usual one.
    pub metadata: Option<String>,
}

/// This machine, as its cloud describes it. What a provider does not have is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudNode {
    pub provider: Provider,
    pub project: String,
    pub region: String,
    pub zone: String,
    pub instance: String,
    /// Interfaces, beginning with the primary one.
    pub interfaces: Vec<CloudInterface>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudInterface {
    pub id: String,
    /// Network that has the route table.
    pub vpc: String,
    pub subnet: String,
    pub addresses: Vec<IpAddr>,
}

impl CloudNode {
    pub fn interface_with(&self, addresses: &[IpAddr]) -> Option<&CloudInterface> {
        let has = |interface: &&CloudInterface| {
            interface.addresses.iter().any(|address| addresses.contains(address))
        };
        self.interfaces.iter().find(has)
    }
}
