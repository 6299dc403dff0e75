//! Access to a cloud: the provider, this node's place in it, and credentials.

use std::fmt;
use std::time::Duration;

use flannel_common::Secret;
use serde::{Deserialize, Serialize};

use super::{CloudInterface, CloudNode};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    AwsVpc,
    AliVpc,
    Gce,
    TencentVpc,
}

impl Provider {
    pub fn name(self) -> &'static str {
        match self {
            Self::AwsVpc => "aws-vpc",
            Self::AliVpc => "ali-vpc",
            Self::Gce => "gce",
            Self::TencentVpc => "tencent-vpc",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub node: CloudNode,
    pub interface: CloudInterface,
    /// Keys of the network config; without them they are found as the provider's own tools do.
    pub keys: Option<Keys>,
    /// Address of the API, if not the provider's usual one.
    pub endpoint: Option<String>,
    pub metadata: Option<String>,
    /// Interval between two looks at the table when all is well.
    pub check_every: Duration,
}

impl Access {
    pub fn provider(&self) -> Provider {
        self.node.provider
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub id: String,
    pub secret: Secret,
    pub token: Option<Secret>,
}
