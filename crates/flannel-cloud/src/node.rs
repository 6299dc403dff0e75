//! What a cloud's metadata service says of the machine that asks.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{CloudError, Provider, ali, aws, gce, tencent};

/// What is to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeQuery {
    pub provider: Provider,
    /// Where, instead of the provider's usual address.
    pub metadata: Option<String>,
}

/// This machine, as its cloud knows it. What a provider does not have is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudNode {
    pub provider: Provider,
    pub project: String,
    pub region: String,
    pub zone: String,
    pub instance: String,
    /// The first is the one it was started with.
    pub interfaces: Vec<CloudInterface>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudInterface {
    pub id: String,
    /// The network that has the route table.
    pub vpc: String,
    pub subnet: String,
    pub addresses: Vec<IpAddr>,
}

impl NodeQuery {
    /// Asks the metadata service.
    pub async fn ask(&self) -> Result<CloudNode, CloudError> {
        let place = self.metadata.as_deref();
        match self.provider {
            Provider::AwsVpc => aws::metadata::node(place).await,
            Provider::AliVpc => ali::metadata::node(place).await,
            Provider::Gce => gce::metadata::node(place).await,
            Provider::TencentVpc => tencent::metadata::node(place).await,
        }
    }
}

impl CloudNode {
    /// The interface that has one of these addresses.
    pub fn interface_with(&self, addresses: &[IpAddr]) -> Option<&CloudInterface> {
        let has = |interface: &&CloudInterface| {
            interface.addresses.iter().any(|address| addresses.contains(address))
        };
        self.interfaces.iter().find(has)
    }
}
