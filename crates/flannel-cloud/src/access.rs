//! Whose cloud, where in it this node is, and by what right its table is changed.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{CloudInterface, CloudNode, Keys};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    AwsVpc,
    AliVpc,
    Gce,
    TencentVpc,
}

impl Provider {
    /// As in `Backend.Type`.
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
    /// The one by which this node is reached.
    pub interface: CloudInterface,
    /// From the network config; else they are found as the provider's own tools do.
    pub keys: Option<Keys>,
    /// Instead of the provider's usual address.
    pub endpoint: Option<String>,
    pub metadata: Option<String>,
    /// How often the table is looked at when all is well.
    pub check_every: Duration,
}

impl Access {
    pub fn provider(&self) -> Provider {
        self.node.provider
    }
}
