//! One address family at a time: backends write their rules once and apply them to IPv4 and IPv6.

use std::net::IpAddr;

pub(crate) use flannel_common::Family;
use flannel_kernel::IPV6_DEFAULT_METRIC;
use flannel_lease::{Lease, LeaseAttrs, RawJson, Subnet};
use ipnet::IpNet;

use crate::{Node, PeerProblem, Underlay};

/// With more subnets than this in a network, routes are spread over metrics. The kernel finds a
/// route's twin by a hash that leaves the gateway out, so ten thousand routes with one gateway each
/// take a second to insert with one metric and 60 ms with 256 of them. Smaller networks keep
/// metric 0 and look in `ip route` as they always have.
const SPREAD_ABOVE: u128 = 2048;
const FIRST_SPREAD_METRIC: u32 = 100;

/// What a lease, a node or its underlay has of one family.
pub(crate) trait PerFamily: Sized {
    /// The families that a network uses, IPv4 first.
    fn used_by(node: &Node) -> impl Iterator<Item = Self>;

    fn subnet(self, subnet: &Subnet) -> Option<IpNet>;

    /// The network, and the length of its subnets where they are all of one.
    fn network(self, node: &Node) -> Option<(IpNet, Option<u8>)>;

    fn data(self, attrs: &LeaseAttrs) -> Option<&RawJson>;

    /// The address a node announces, if it can be sent to at all.
    fn public_address(self, peer: &Lease) -> Result<IpAddr, PeerProblem>;

    fn announced_by(self, underlay: &Underlay) -> Option<IpAddr>;

    /// The address that packets to peers leave from. Behind a NAT it is not the announced one: the
    /// kernel sends nothing from an address it does not have.
    fn source(self, underlay: &Underlay) -> Option<IpAddr>;

    /// A subnet as its one address: the tunnel end-point of whoever holds it.
    fn host(net: IpNet) -> IpNet;

    /// From the config and the subnet alone, so that it changes with nothing else: a metric is part of
    /// what a route is known by.
    fn metric(self, node: &Node, subnet: IpNet) -> u32;
}

impl PerFamily for Family {
    fn used_by(node: &Node) -> impl Iterator<Item = Self> {
        let v4 = node.network.v4.is_some().then_some(Self::V4);
        let v6 = node.network.v6.is_some().then_some(Self::V6);
        v4.into_iter().chain(v6)
    }

    fn subnet(self, subnet: &Subnet) -> Option<IpNet> {
        match self {
            Self::V4 => subnet.v4().map(IpNet::V4),
            Self::V6 => subnet.v6().map(IpNet::V6),
        }
    }

    fn network(self, node: &Node) -> Option<(IpNet, Option<u8>)> {
        match self {
            Self::V4 => node.network.v4.map(|from| (from.network().into(), from.subnet_len())),
            Self::V6 => node.network.v6.map(|from| (from.network().into(), from.subnet_len())),
        }
    }

    fn data(self, attrs: &LeaseAttrs) -> Option<&RawJson> {
        match self {
            Self::V4 => attrs.backend_data.as_ref(),
            Self::V6 => attrs.backend_v6_data.as_ref(),
        }
    }

    fn public_address(self, peer: &Lease) -> Result<IpAddr, PeerProblem> {
        let ip = match self {
            Self::V4 => peer.attrs.public_ip.map(IpAddr::V4),
            Self::V6 => peer.attrs.public_ipv6.map(IpAddr::V6),
        };
        ip.filter(|ip| !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast())
            .ok_or(PeerProblem::NoAddress(self))
    }

    fn announced_by(self, underlay: &Underlay) -> Option<IpAddr> {
        match self {
            Self::V4 => underlay.public_v4.map(IpAddr::V4),
            Self::V6 => underlay.public_v6.map(IpAddr::V6),
        }
    }

    fn source(self, underlay: &Underlay) -> Option<IpAddr> {
        match self {
            Self::V4 => underlay.v4.or(underlay.public_v4).map(IpAddr::V4),
            Self::V6 => underlay.v6.or(underlay.public_v6).map(IpAddr::V6),
        }
    }

    fn host(net: IpNet) -> IpNet {
        IpNet::from(net.network())
    }

    fn metric(self, node: &Node, subnet: IpNet) -> u32 {
        match (self, subnet) {
            (Self::V4, IpNet::V4(net)) => match &node.network.v4 {
                Some(source) if source.capacity_for(net) > SPREAD_ABOVE => {
                    let number =
                        u32::from(net.network()) >> (32 - u32::from(net.prefix_len().max(1)));
                    FIRST_SPREAD_METRIC + (number & 0xff)
                }
                _ => 0,
            },
            _ => IPV6_DEFAULT_METRIC,
        }
    }
}

/// What an operator should know of a node whose IPv6 travels over IPv4.
pub(crate) fn remark_on_v6_over_v4(node: &Node) -> Option<String> {
    let crossed = node.network.v6.is_some() && node.underlay.v6.is_none();
    crossed.then(|| {
        format!(
            "{} has no usable IPv6 address: IPv6 of pods travels over IPv4. Nodes with this flannel reach them so; \
             nodes with the Go flannel do not",
            node.underlay.link
        )
    })
}
