//! The desired state as a pure function: what the node needs, plus what each peer adds.

use std::net::IpAddr;

use flannel_kernel::Ownership;
use flannel_lease::{Lease, LeaseAttrs, Subnet, same_node};
use ipnet::IpNet;

use crate::{Backend, Connected, Meeting, Node, PeerProblem, Wishes};

/// Of what a peer has written, in messages.
const LONGEST_SHOWN: usize = 60;

/// What one peer adds. The checks that hold for all backends are made here, once.
pub fn peer_wishes(
    backend: &dyn Backend,
    node: &Node,
    own: &Lease,
    peer: &Lease,
) -> Result<Wishes, PeerProblem> {
    let (ours, theirs) = (backend.lease_type(), &peer.attrs.backend_type);
    if peer.subnet.overlaps(&own.subnet) {
        return Err(PeerProblem::OverlapsOurs);
    }
    let untyped = backend.accepts_untyped() && theirs.is_empty();
    if !ours.is_empty() && !untyped && is_unclaimed(peer) {
        return Err(PeerProblem::Unclaimed);
    }
    if !ours.is_empty() && !untyped && !theirs.eq_ignore_ascii_case(ours) {
        return Err(PeerProblem::OtherBackend {
            theirs: flannel_common::shorten(theirs, LONGEST_SHOWN).into_owned(),
            ours: ours.to_owned(),
        });
    }
    if !is_inside(node, &peer.subnet) {
        return Err(PeerProblem::OutsideNetwork);
    }
    if same_node(&node.network, &node.attrs(""), &peer.attrs) && backend.is_own(node, peer) {
        return Err(PeerProblem::OurAddress);
    }
    let wishes = backend.peer(node, own, peer)?;
    let displaced = meetings(node, peer).find(|(.., meeting)| *meeting == Meeting::Displaces);
    match displaced {
        // A backend that leads nowhere displaces nothing.
        Some((connected, theirs, _)) if !wishes.is_empty() => Err(PeerProblem::Displaces {
            key: peer.subnet,
            theirs,
            route: connected.to_string(),
            link: connected.link,
        }),
        _ => Ok(wishes),
    }
}

/// Where a peer's subnet meets networks that this node is connected to.
pub fn meetings<'a>(
    node: &'a Node,
    peer: &'a Lease,
) -> impl Iterator<Item = (&'a Connected, IpNet, Meeting)> {
    let meet = |connected: &'a Connected| {
        connected.meets(peer).map(|(theirs, meeting)| (connected, theirs, meeting))
    };
    node.connected.iter().filter_map(meet)
}

/// What is ours in the kernel, now and from before.
pub fn ownership(backend: &dyn Backend, node: &Node, earlier_networks: &[IpNet]) -> Ownership {
    let mut networks = networks(node);
    for network in earlier_networks {
        if !networks.contains(network) {
            networks.push(*network);
        }
    }
    Ownership {
        links: backend.devices(node).into_iter().collect(),
        networks,
        legacy: backend.legacy_routes(node),
    }
}

pub fn networks(node: &Node) -> Vec<IpNet> {
    let v4 = node.network.v4.map(|source| IpNet::V4(source.network()));
    let v6 = node.network.v6.map(|source| IpNet::V6(source.network()));
    v4.into_iter().chain(v6).collect()
}

/// A reservation names a node and nothing else until that node comes.
fn is_unclaimed(peer: &Lease) -> bool {
    let LeaseAttrs { backend_type, backend_data, backend_v6_data, .. } = &peer.attrs;
    backend_type.is_empty() && backend_data.is_none() && backend_v6_data.is_none()
}

fn is_inside(node: &Node, subnet: &Subnet) -> bool {
    let networks = networks(node);
    let inside = |net: IpNet| {
        networks
            .iter()
            .any(|network| network.contains(&net) && net.prefix_len() > network.prefix_len())
    };
    let v4 = subnet.v4().map(|net| inside(net.into()));
    let v6 = subnet.v6().map(|net| inside(net.into()));
    // A family that we do not use is not looked at; but there must be at least one.
    let used = |family: Option<bool>, enabled: bool| family.filter(|_| enabled);
    let (v4, v6) = (used(v4, node.network.v4.is_some()), used(v6, node.network.v6.is_some()));
    (v4.is_some() || v6.is_some()) && v4 != Some(false) && v6 != Some(false)
}

/// A peer's public addresses, for looking up paths to them.
pub fn public_addresses(attrs: &LeaseAttrs) -> impl Iterator<Item = IpAddr> {
    let v4 = attrs.public_ip.map(IpAddr::V4);
    let v6 = attrs.public_ipv6.map(IpAddr::V6);
    v4.into_iter().chain(v6)
}
