//! Why a request is refused, in words for the one who asked.

use std::net::IpAddr;

use flannel_lease::{AcquireError, ConfigError, Subnet};

use super::{Entry, NetworkName};

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error("there is no network {0}: write its config first")]
    NoNetwork(NetworkName),
    #[error("{0}")]
    BadConfig(#[from] ConfigError),
    #[error(
        "{count} live leases do not fit the new config, {example} for one: their nodes would get other \
         subnets and their pods other addresses; force it if that is what you want"
    )]
    Stranded { count: usize, example: Subnet },
    #[error("the network still has {0} leases: release them first, or force it")]
    InUse(usize),
    #[error(
        "the lease attributes have no {0}, by which a node of this network is known: announce one"
    )]
    NoAddress(&'static str),
    #[error("{0} is not an address this client may announce")]
    ForeignAddress(IpAddr),
    #[error("{0}")]
    OutOfSubnets(Box<AcquireError>),
    #[error("there is no lease {0}: acquire a new one")]
    Gone(Subnet),
    #[error("the lease {0} belongs to another node")]
    Taken(Subnet, Box<Entry>),
    #[error("the lease {0} is not this client's to change")]
    NotYours(Subnet),
    #[error("{0} is reserved: remove the reservation first")]
    Reserved(Subnet),
    #[error("{0} is no subnet that this network hands out: see SubnetLen, SubnetMin and SubnetMax")]
    NotInPool(Subnet),
    #[error("{0} overlaps the lease {1}")]
    Overlaps(Subnet, Subnet),
}

impl From<AcquireError> for Refusal {
    fn from(error: AcquireError) -> Self {
        Self::OutOfSubnets(Box::new(error))
    }
}
