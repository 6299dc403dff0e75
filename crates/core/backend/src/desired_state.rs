//! The desired state as a pure function: the wishes of the node, and those for each peer.

use flannel_entries::kernel::Ownership;
use flannel_lease::{Lease, LeaseAttrs, Subnet, same_node};
use ipnet::IpNet;

use crate::{Backend, Connected, Node, OverlapKind, PeerProblem, Wishes};

const MAX_QUOTED_BYTES: usize = 60;

/// Wishes for one peer. The checks that hold for all backends are made here, once.
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
            theirs: flannel_common::shorten(theirs, MAX_QUOTED_BYTES).into_owned(),
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
    let displaced =
        connected_overlaps(node, peer).find(|(.., overlap)| *overlap == OverlapKind::Displaces);
    match displaced {
        // A backend without routes displaces nothing.
        Some((connected, theirs, _)) if !wishes.is_empty() => Err(PeerProblem::Displaces {
            key: peer.subnet,
            theirs,
            route: connected.to_string(),
            link: connected.link,
        }),
        _ => Ok(wishes),
    }
}

pub fn connected_overlaps<'a>(
    node: &'a Node,
    peer: &'a Lease,
) -> impl Iterator<Item = (&'a Connected, IpNet, OverlapKind)> {
    let meet = |connected: &'a Connected| {
        connected.overlap_with(peer).map(|(theirs, overlap)| (connected, theirs, overlap))
    };
    node.connected.iter().filter_map(meet)
}

/// What is ours in the kernel, now and from before.
pub fn ownership(backend: &dyn Backend, node: &Node, earlier_networks: &[IpNet]) -> Ownership {
    let mut networks: Vec<IpNet> = node.network.networks().collect();
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

/// Whether a lease is a reservation, which names a node and nothing else until that node comes.
fn is_unclaimed(peer: &Lease) -> bool {
    let LeaseAttrs { backend_type, backend_data, backend_v6_data, .. } = &peer.attrs;
    backend_type.is_empty() && backend_data.is_none() && backend_v6_data.is_none()
}

/// Whether a subnet is a part of the network. A family that is not in use does not count, but there must be one.
fn is_inside(node: &Node, subnet: &Subnet) -> bool {
    let pairs = node
        .families()
        .filter_map(|family| Some((node.network.network(family)?, subnet.net(family)?)));
    let inside: Vec<bool> = pairs
        .map(|(network, net)| network.contains(&net) && net.prefix_len() > network.prefix_len())
        .collect();
    !inside.is_empty() && inside.iter().all(|inside| *inside)
}
