//! One address family at a time: backends write their rules once and apply them to IPv4 and IPv6.

use std::net::IpAddr;

pub(crate) use flannel_common::Family;
use flannel_common::IfName;
use flannel_entries::kernel::{Address, Entry, IPV6_DEFAULT_METRIC, Link, LinkKind, Route};
use flannel_lease::{Lease, NetworkConfig, UnusableAddress, check_public_address};
use ipnet::IpNet;

use crate::{BackendError, Node, PeerProblem, Wishes};

/// Number of subnets above which a network's routes are spread over metrics. The kernel finds a route's duplicate by
/// a hash that leaves the gateway out, so ten thousand routes with one gateway each take a second to insert with one
/// metric and 60 ms with 256 of them. Smaller networks keep metric 0 and look in `ip route` as they always have.
const SPREAD_ABOVE: u128 = 2048;
const FIRST_SPREAD_METRIC: u32 = 100;

/// Smallest MTU of a link for IPv4, and for IPv6.
const MIN_MTU: [u32; 2] = [68, 1280];

impl Node {
    /// Families that the network uses, IPv4 first.
    pub(crate) fn families(&self) -> impl Iterator<Item = Family> + use<> {
        self.network.families()
    }

    /// Address that a lease announces, if packets can be sent to it.
    pub(crate) fn address_of(&self, peer: &Lease, family: Family) -> Result<IpAddr, PeerProblem> {
        let ip = peer.attrs.public_address(family).ok_or(PeerProblem::NoAddress(family))?;
        let own = self.underlay.announced(family);
        match check_public_address(ip, &self.network.networks().collect::<Vec<_>>()) {
            // On a link without other addresses, all nodes have such ones.
            Err(UnusableAddress::LinkLocal)
                if own.is_some_and(|own| {
                    check_public_address(own, &[]) == Err(UnusableAddress::LinkLocal)
                }) =>
            {
                Ok(ip)
            }
            // Where the nodes' LAN is a part of the pod network, all nodes have such ones.
            Err(UnusableAddress::InPodNetwork(network))
                if own.is_some_and(|own| network.contains(&own))
                    && !peer.subnet.net(family).is_some_and(|theirs| theirs.contains(&ip)) =>
            {
                Ok(ip)
            }
            Err(why) => Err(PeerProblem::UnusableAddress(ip, why)),
            Ok(()) => Ok(ip),
        }
    }

    /// Family in which this node's packets of a family travel: the same, if it has an address of it, else the other.
    pub(crate) fn outer(&self, family: Family) -> Option<Family> {
        [family, family.other()].into_iter().find(|outer| self.underlay.source(*outer).is_some())
    }

    pub(crate) fn sends_over(&self, family: Family) -> bool {
        self.families().any(|used| self.outer(used) == Some(family))
    }

    /// All families in which this node's packets travel, IPv4 first.
    pub(crate) fn outers(&self) -> impl Iterator<Item = Family> {
        Family::BOTH.into_iter().filter(|family| self.sends_over(*family))
    }

    /// Family in which packets of a family travel to a peer, and their destination: the same family, if both nodes
    /// have an address of it, else the other. Both sides of a pair come to the same answer.
    pub(crate) fn way_to(
        &self,
        peer: &Lease,
        family: Family,
    ) -> Result<(Family, IpAddr), PeerProblem> {
        let mut theirs = [family, family.other()]
            .into_iter()
            .filter_map(|outer| Some((outer, self.address_of(peer, outer).ok()?)));
        match theirs.clone().find(|(outer, _)| self.sends_over(*outer)) {
            Some(way) => Ok(way),
            None => Err(match theirs.next() {
                Some((theirs, _)) => PeerProblem::Apart(theirs),
                None => match self.address_of(peer, family) {
                    Err(problem) => problem,
                    Ok(_) => PeerProblem::NoAddress(family),
                },
            }),
        }
    }

    /// Metric of the route to a subnet: of config and subnet alone, because it is part of a route's identity.
    pub(crate) fn metric(&self, subnet: IpNet) -> u32 {
        match (subnet, &self.network.v4) {
            (IpNet::V6(_), _) => IPV6_DEFAULT_METRIC,
            (IpNet::V4(net), Some(source)) if source.capacity_for(net) > SPREAD_ABOVE => {
                let number = u32::from(net.network()) >> (32 - u32::from(net.prefix_len().max(1)));
                FIRST_SPREAD_METRIC + (number & 0xff)
            }
            (IpNet::V4(_), _) => 0,
        }
    }

    pub(crate) fn route(
        &self,
        dst: IpNet,
        via: Option<IpAddr>,
        link: IfName,
        onlink: bool,
    ) -> Entry {
        Entry::Route(Route { dst, metric: self.metric(dst), via, link, onlink })
    }

    /// Collects entries of the node for each family. What both families of a device share is wanted once.
    pub(crate) fn entries_of_families(
        &self,
        entries: impl Fn(Family) -> Option<Vec<Entry>>,
    ) -> Vec<Entry> {
        let mut all = Vec::new();
        self.families().filter_map(entries).for_each(|entries| add_missing(&mut all, entries));
        all
    }

    /// Refuses an MTU for pods of some family that is less than the family can work with. `outer` is the MTU of the
    /// packets around theirs, `raise` names what to raise beside that of the interface.
    pub(crate) fn check_mtu(
        &self,
        outer: u32,
        raise: &str,
        mtu: impl Fn(Family) -> u32,
    ) -> Result<(), BackendError> {
        self.families().try_for_each(|family| match (mtu(family), family.choose(MIN_MTU)) {
            (mtu, least) if mtu >= least => Ok(()),
            (mtu, least) => Err(BackendError::Unfit(format!(
                "an MTU of {outer} leaves {mtu} bytes for pods, less than the {least} that {family} needs: raise the \
                 MTU of {}{raise}",
                self.underlay.link
            ))),
        })
    }
}

/// Refuses a `Backend.MTU` that leaves pods less than their family can work with, beside what the tunnel adds.
pub(crate) fn check_configured_mtu(
    network: &NetworkConfig,
    mtu: Option<u32>,
    overhead: [u32; 2],
) -> Result<(), BackendError> {
    let family = if network.v6.is_some() { Family::V6 } else { Family::V4 };
    let overhead = family.choose(overhead);
    let least = family.choose(MIN_MTU);
    match mtu {
        Some(mtu) if mtu < least + overhead => Err(BackendError::Unfit(format!(
            "Backend.MTU {mtu} leaves {} bytes for pods, less than the {least} that {family} needs: \
             raise it to {} or more, or leave it out",
            mtu.saturating_sub(overhead),
            least + overhead
        ))),
        _ => Ok(()),
    }
}

/// This node's address among its pods, on the device by which they are sent to others.
pub(crate) fn host_address(link: IfName, subnet: IpNet) -> Vec<Entry> {
    // The first of the subnet: the tunnel end-point of its owner.
    let address = Entry::Address(Address { link, addr: IpNet::from(subnet.network()) });
    match subnet {
        IpNet::V4(_) => vec![address],
        // Without it the device can have no address.
        IpNet::V6(_) => {
            vec![address, Entry::device_setting(Family::V6, link, "disable_ipv6", "0")]
        }
    }
}

fn add_missing(all: &mut Vec<Entry>, entries: Vec<Entry>) {
    for entry in entries {
        if !all.contains(&entry) {
            all.push(entry);
        }
    }
}

/// A device without a MAC of its own choice.
pub(crate) fn device(name: IfName, kind: LinkKind, mtu: u32) -> Entry {
    Entry::Link(Box::new(Link { name, kind, mac: None, mtu }))
}

/// Collects the wishes for each family of a peer. One family that works is better than none.
pub(crate) fn for_each_family(
    node: &Node,
    peer: &Lease,
    wishes: impl Fn(Family, IpNet) -> Result<Wishes, PeerProblem>,
) -> Result<Wishes, PeerProblem> {
    let (mut all, mut problem) = (Wishes::default(), None);
    for family in node.families() {
        let Some(subnet) = peer.subnet.net(family) else { continue };
        match wishes(family, subnet) {
            Ok(Wishes { kernel, tunnel, .. }) => {
                add_missing(&mut all.kernel, kernel);
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
    let crossed = node.families().find(|used| node.outer(*used) == Some(used.other()))?;
    Some(format!(
        "{} has no usable {crossed} address: {crossed} of pods travels over {}. Nodes with this flannel reach them \
         so; nodes with the Go flannel do not",
        node.underlay.link,
        crossed.other()
    ))
}
