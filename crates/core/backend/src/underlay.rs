//! The underlay: the interface and addresses through which this node reaches its peers. Chosen by
//! the daemon from the node's facts, taken by every backend as an input.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flannel_common::{Family, IfName};
use flannel_lease::NetworkConfig;

/// Address families, one or both; none before a config is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    pub v4: bool,
    pub v6: bool,
}

impl Stack {
    pub const V4: Self = Self { v4: true, v6: false };
    pub const V6: Self = Self { v4: false, v6: true };

    pub fn of(network: &NetworkConfig) -> Self {
        Self { v4: network.v4.is_some(), v6: network.v6.is_some() }
    }

    pub fn has(self, family: Family) -> bool {
        family.choose([self.v4, self.v6])
    }

    /// Something for each of these families, and nothing for the others.
    pub(crate) fn each<T>(self, of: impl Fn(Family) -> T) -> [Option<T>; 2] {
        Family::BOTH.map(|family| self.has(family).then(|| of(family)))
    }

    /// Families that a network's nodes may have, the best first, where either family travels in either.
    pub(crate) fn any_for(network: &NetworkConfig) -> Vec<Self> {
        match Self::of(network) {
            Self::V6 => vec![Self::V6, Self::V4],
            both @ Self { v4: true, v6: true } => vec![both, Self::V4, Self::V6],
            _ => vec![Self::V4, Self::V6],
        }
    }
}

#[derive(Clone, Debug)]
pub struct Underlay {
    pub link: IfName,
    pub mtu: u32,
    /// Addresses of the interface, one for each family that its packets travel in.
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
    /// Addresses announced to peers; behind a NAT they are not those of the interface.
    pub public_v4: Option<Ipv4Addr>,
    pub public_v6: Option<Ipv6Addr>,
    /// Why this interface was chosen, for the log. It does not count: two underlays that differ only in this are
    /// equal, so that a new metric of a route does not cause anything to be built again.
    pub why: String,
}

impl PartialEq for Underlay {
    fn eq(&self, other: &Self) -> bool {
        let Self { link, mtu, v4, v6, public_v4, public_v6, why: _ } = self;
        (link, mtu, v4, v6, public_v4, public_v6)
            == (&other.link, &other.mtu, &other.v4, &other.v6, &other.public_v4, &other.public_v6)
    }
}

impl Eq for Underlay {}

impl Underlay {
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6)).collect()
    }

    /// Addresses that are announced to peers, IPv4 first.
    pub fn announced_addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = self.public_v4.map(IpAddr::V4);
        v4.into_iter().chain(self.public_v6.map(IpAddr::V6))
    }

    /// Address that is announced to peers.
    pub(crate) fn announced(&self, family: Family) -> Option<IpAddr> {
        family.choose([self.public_v4.map(IpAddr::V4), self.public_v6.map(IpAddr::V6)])
    }

    /// Address that packets to peers leave from: behind a NAT not the announced one, which the kernel does not have.
    pub(crate) fn source(&self, family: Family) -> Option<IpAddr> {
        let own = family.choose([self.v4.map(IpAddr::V4), self.v6.map(IpAddr::V6)]);
        own.or(self.announced(family))
    }
}
