//! By which address a node is known. There is no name in a lease that every flannel understands: two leases
//! are of one node when they bear one public address.

use std::net::IpAddr;

use crate::{LeaseAttrs, NetworkConfig};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    Ipv4,
    Ipv6,
    /// Where no config says which: the first that the node has.
    FirstAddress,
}

/// Nobody is known by an address that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {0}, by which a node of this network is known: give one")]
pub struct NoAddress(pub &'static str);

impl KnownBy {
    /// The public address of the first family in use.
    pub fn of(config: Option<&NetworkConfig>) -> Self {
        match config.map(|config| config.v4.is_some()) {
            Some(true) => Self::Ipv4,
            Some(false) => Self::Ipv6,
            None => Self::FirstAddress,
        }
    }

    /// "No address" (0.0.0.0) is nobody's identity either.
    pub fn address(self, attrs: &LeaseAttrs) -> Result<IpAddr, NoAddress> {
        let v4 = attrs.public_ip.map(IpAddr::V4);
        let v6 = attrs.public_ipv6.map(IpAddr::V6);
        let (address, key) = match self {
            Self::Ipv4 => (v4, "PublicIP"),
            Self::Ipv6 => (v6, "PublicIPv6"),
            Self::FirstAddress => (v4.or(v6), "PublicIP"),
        };
        address.filter(|ip| !ip.is_unspecified()).ok_or(NoAddress(key))
    }

    /// Whether both tell of one node.
    pub fn same_node(self, one: &LeaseAttrs, other: &LeaseAttrs) -> bool {
        self.address(one).is_ok_and(|address| self.address(other) == Ok(address))
    }
}
