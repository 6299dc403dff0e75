//! Origin of a network's subnets.

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::net::Net;
use crate::pool::Pool;

/// Origin of subnets, which depends on the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubnetOrigin {
    #[serde(rename = "assigned")]
    Store,
    /// Nodes take them from a pool that the network config describes.
    #[default]
    #[serde(rename = "pool", other)]
    Pool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubnetSource<N: Net> {
    Pool(Pool<N>),
    /// Assigned by the store, in Kubernetes a Node's podCIDR, each of its own length inside this network.
    Assigned {
        network: N,
    },
}

pub type SubnetSource4 = SubnetSource<Ipv4Net>;
pub type SubnetSource6 = SubnetSource<Ipv6Net>;

impl<N: Net> SubnetSource<N> {
    pub fn network(&self) -> N {
        match self {
            Self::Pool(pool) => pool.network(),
            Self::Assigned { network } => *network,
        }
    }

    pub fn pool(self) -> Option<Pool<N>> {
        match self {
            Self::Pool(pool) => Some(pool),
            Self::Assigned { .. } => None,
        }
    }

    /// Whether a node may hold `net`. An assigned one may be the whole network, of a single node.
    pub fn accepts(&self, net: N) -> bool {
        match self {
            Self::Pool(pool) => pool.accepts(net),
            Self::Assigned { network } => {
                net == N::around(net.start(), net.prefix_len())
                    && network.start() <= net.start()
                    && net.end() <= network.end()
            }
        }
    }

    /// Whether a node's subnet may be in `net`. Where the store assigns them, that is sure of the whole network alone.
    pub fn may_hand_out_of(&self, net: N) -> bool {
        match self {
            Self::Pool(pool) => pool.covered_by(net).is_some(),
            Self::Assigned { network } => {
                net.start() <= network.start() && network.end() <= net.end()
            }
        }
    }

    /// The length of every subnet, where they are all of one.
    pub fn subnet_len(&self) -> Option<u8> {
        self.pool().map(|pool| pool.subnet_len())
    }

    /// Number of subnets that the network can hold if all are as long as `net`, which is one of them.
    pub fn capacity_for(&self, net: N) -> u128 {
        match self {
            Self::Pool(pool) => pool.capacity(),
            Self::Assigned { network } => {
                let bits = net.prefix_len().saturating_sub(network.prefix_len());
                1u128.checked_shl(bits.into()).unwrap_or(u128::MAX)
            }
        }
    }
}
