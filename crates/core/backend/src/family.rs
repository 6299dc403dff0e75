//! One address family at a time: backends write their rules once and apply them to IPv4 and IPv6.

use std::net::IpAddr;

pub(crate) use flannel_common::Family;
use flannel_entries::kernel::IPV6_DEFAULT_METRIC;
use flannel_lease::{Lease, LeaseAttrs, RawJson, Subnet, UnusableAddress, check_public_address};
use ipnet::IpNet;

use crate::{BackendError, Node, PeerProblem, Underlay, Wishes};

/// Number of subnets above which a network's routes are spread over metrics. The kernel finds a route's duplicate by
/// a hash that leaves the gateway out, so ten thousand routes with one gateway each take a second to insert with one
/// metric and 60 ms with 256 of them. Smaller networks keep metric 0 and look in `ip route` as they always have.
const SPREAD_ABOVE: u128 = 2048;
const FIRST_SPREAD_METRIC: u32 = 100;

/// Smallest MTU of a link for IPv6, and for IPv4.
const MIN_MTU_V6: u32 = 1280;
const MIN_MTU_V4: u32 = 68;

/// The part of a lease, a node or its underlay that belongs to one family.
pub(crate) trait PerFamily: Sized {
    /// Families that a network uses, IPv4 first.
    fn used_by(node: &Node) -> impl Iterator<Item = Self>;

    fn subnet(self, subnet: &Subnet) -> Option<IpNet>;

    /// The network, and the length of its subnets where they all have the same.
    fn network(self, node: &Node) -> Option<(IpNet, Option<u8>)>;

    fn data(self, attrs: &LeaseAttrs) -> Option<&RawJson>;

    /// Address that a lease announces.
    fn public(self, attrs: &LeaseAttrs) -> Option<IpAddr>;

    /// Address that a lease announces, if packets can be sent to it.
    fn public_address(self, node: &Node, peer: &Lease) -> Result<IpAddr, PeerProblem>;

    /// Whether this node has only a link-local address.
    fn has_only_link_address(self, node: &Node) -> bool;

    fn announced_by(self, underlay: &Underlay) -> Option<IpAddr>;

    /// Address that packets to peers leave from. Behind a NAT it is not the announced one: the kernel sends nothing
    /// from an address it does not have.
    fn source(self, underlay: &Underlay) -> Option<IpAddr>;

    /// Family in which this node's packets of this family travel: the same, if it has an address of it, else the
    /// other.
    fn outer(self, node: &Node) -> Option<Self>;

    /// All families in which this node's packets travel, IPv4 first.
    fn outers(node: &Node) -> impl Iterator<Item = Self>;

    /// Family in which packets of this family travel to a peer, and their destination: the same family, if both nodes
    /// have an address of it, else the other. Both sides of a pair come to the same answer.
    fn way_to(self, node: &Node, peer: &Lease) -> Result<(Self, IpAddr), PeerProblem>;

    /// Smallest MTU that the family can work with.
    fn min_mtu(self) -> u32;

    /// Refuses a `Backend.MTU` that leaves pods less than that beside what the tunnel adds.
    fn check_configured_mtu(self, mtu: Option<u32>, overhead: u32) -> Result<(), BackendError>;

    /// Refuses an MTU for pods that is less than that. `outer` is the MTU of the packets around theirs, `raise` names
    /// what to raise.
    fn check_mtu(self, mtu: u32, outer: u32, raise: &str) -> Result<(), BackendError>;

    /// First address of a subnet: the tunnel end-point of its owner.
    fn host(net: IpNet) -> IpNet;

    /// Metric of the route to a subnet. It follows from the config and the subnet alone, because a metric is part of
    /// a route's identity.
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

    fn public(self, attrs: &LeaseAttrs) -> Option<IpAddr> {
        match self {
            Self::V4 => attrs.public_ip.map(IpAddr::V4),
            Self::V6 => attrs.public_ipv6.map(IpAddr::V6),
        }
    }

    fn public_address(self, node: &Node, peer: &Lease) -> Result<IpAddr, PeerProblem> {
        let ip = self.public(&peer.attrs).ok_or(PeerProblem::NoAddress(self))?;
        match check_public_address(ip, &crate::networks(node)) {
            // On a link without other addresses, all nodes have such ones.
            Err(UnusableAddress::LinkLocal) if self.has_only_link_address(node) => Ok(ip),
            // Where the nodes' LAN is a part of the pod network, all nodes have such ones.
            Err(UnusableAddress::InPodNetwork(network))
                if self.announced_by(&node.underlay).is_some_and(|own| network.contains(&own))
                    && !self.subnet(&peer.subnet).is_some_and(|theirs| theirs.contains(&ip)) =>
            {
                Ok(ip)
            }
            Err(why) => Err(PeerProblem::UnusableAddress(ip, why)),
            Ok(()) => Ok(ip),
        }
    }

    fn has_only_link_address(self, node: &Node) -> bool {
        let own = self.announced_by(&node.underlay);
        own.is_some_and(|ip| check_public_address(ip, &[]) == Err(UnusableAddress::LinkLocal))
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

    fn outer(self, node: &Node) -> Option<Self> {
        [self, self.other()].into_iter().find(|family| family.source(&node.underlay).is_some())
    }

    fn outers(node: &Node) -> impl Iterator<Item = Self> {
        let [one, other] = Self::BOTH.map(|family| {
            let used = Self::used_by(node).any(|used| used == family);
            family.outer(node).filter(|_| used)
        });
        Self::BOTH.into_iter().filter(move |family| [one, other].contains(&Some(*family)))
    }

    fn way_to(self, node: &Node, peer: &Lease) -> Result<(Self, IpAddr), PeerProblem> {
        let mut theirs = [self, self.other()]
            .into_iter()
            .filter_map(|family| Some((family, family.public_address(node, peer).ok()?)));
        let ours = |family| Self::outers(node).any(|outer| outer == family);
        match theirs.clone().find(|(family, _)| ours(*family)) {
            Some(way) => Ok(way),
            None => Err(match theirs.next() {
                Some((theirs, _)) => PeerProblem::Apart(theirs),
                None => match self.public_address(node, peer) {
                    Err(problem) => problem,
                    Ok(_) => PeerProblem::NoAddress(self),
                },
            }),
        }
    }

    fn min_mtu(self) -> u32 {
        match self {
            Self::V4 => MIN_MTU_V4,
            Self::V6 => MIN_MTU_V6,
        }
    }

    fn check_configured_mtu(self, mtu: Option<u32>, overhead: u32) -> Result<(), BackendError> {
        let least = self.min_mtu();
        match mtu {
            Some(mtu) if mtu < least + overhead => Err(BackendError::Unfit(format!(
                "Backend.MTU {mtu} leaves {} bytes for pods, less than the {least} that {self} needs: \
                 raise it to {} or more, or leave it out",
                mtu.saturating_sub(overhead),
                least + overhead
            ))),
            _ => Ok(()),
        }
    }

    fn check_mtu(self, mtu: u32, outer: u32, raise: &str) -> Result<(), BackendError> {
        let least = self.min_mtu();
        if mtu >= least {
            return Ok(());
        }
        Err(BackendError::Unfit(format!(
            "an MTU of {outer} leaves {mtu} bytes for pods, less than the {least} that {self} needs: raise {raise}"
        )))
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

/// Collects the wishes for each family of a peer. One family that works is better than none.
pub(crate) fn for_each_family(
    node: &Node,
    peer: &Lease,
    wishes: impl Fn(Family, IpNet) -> Result<Wishes, PeerProblem>,
) -> Result<Wishes, PeerProblem> {
    let (mut all, mut problem) = (Wishes::default(), None);
    for family in Family::used_by(node) {
        let Some(subnet) = family.subnet(&peer.subnet) else { continue };
        match wishes(family, subnet) {
            Ok(Wishes { kernel, tunnel, .. }) => {
                // What both families of a device share is wanted once.
                for entry in kernel {
                    if !all.kernel.contains(&entry) {
                        all.kernel.push(entry);
                    }
                }
                all.tunnel.extend(tunnel);
            }
            Err(error) => problem = Some(error),
        }
    }
    match problem {
        Some(problem) if all.is_empty() => Err(problem),
        _ => Ok(all),
    }
}

/// Remark on a node whose packets of one family travel in the other.
pub(crate) fn remark_on_crossing(node: &Node) -> Option<String> {
    let crossed = Family::used_by(node).find(|used| used.outer(node) == Some(used.other()))?;
    Some(format!(
        "{} has no usable {crossed} address: {crossed} of pods travels over {}. Nodes with this flannel reach them \
         so; nodes with the Go flannel do not",
        node.underlay.link,
        crossed.other()
    ))
}
