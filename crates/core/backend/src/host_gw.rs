//! host-gw: nodes on one link route each other's subnets, with nothing in between.

use flannel_entries::kernel::LegacyRoutes;
use flannel_lease::Lease;

use crate::{Backend, BackendError, Encapsulation, Node, PeerProblem, Stack, Wishes};

pub(crate) struct HostGwBackend;

impl Backend for HostGwBackend {
    fn kind(&self) -> &'static str {
        "host-gw"
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        let underlay = &node.underlay;
        for family in node.families() {
            // Without an address of its own it sends from the announced one.
            if let (Some(public), Some(own)) = (underlay.announced(family), underlay.source(family))
                && public != own
            {
                return Err(BackendError::Unfit(format!(
                    "the public address {public} differs from the address {own} of {}: host-gw \
                     routes to peers directly and cannot cross a NAT; drop --public-ip or use \
                     another backend",
                    underlay.link
                )));
            }
        }
        Ok(())
    }

    fn encapsulation(&self, _stack: Stack) -> Encapsulation {
        Encapsulation::Underlay { direct: true }
    }

    fn peer(&self, node: &Node, _own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        let mut entries = Vec::new();
        let mut unreached = None;
        for family in node.families() {
            let Some(dst) = peer.subnet.net(family) else { continue };
            let via = match node.address_of(peer, family) {
                Ok(via) => via,
                Err(problem) => {
                    unreached = Some(problem);
                    continue;
                }
            };
            if let Some(gateway) = node.paths.get(&via).and_then(|path| path.gateway) {
                return Err(PeerProblem::Unreachable(format!(
                    "{via} is behind the gateway {gateway}: host-gw needs all nodes on one link; use \
                     vxlan, with DirectRouting for those that are"
                )));
            }
            entries.push(node.route(dst, Some(via), node.underlay.link, false));
        }
        // One family that works is better than none.
        match unreached {
            Some(problem) if entries.is_empty() => Err(problem),
            _ => Ok(entries.into()),
        }
    }

    fn legacy_routes(&self, node: &Node) -> Vec<LegacyRoutes> {
        legacy_routes(node, false)
    }

    fn wants_paths(&self) -> bool {
        true
    }
}

pub(crate) fn legacy_routes(node: &Node, onlink: bool) -> Vec<LegacyRoutes> {
    let link = node.underlay.link;
    let v4 = node.network.v4.map(|source| (source.network().into(), source.subnet_len()));
    let v6 = node.network.v6.map(|source| (source.network().into(), source.subnet_len()));
    let networks = v4.into_iter().chain(v6);
    networks
        .map(|(network, subnet_len)| LegacyRoutes { link, network, subnet_len, onlink })
        .collect()
}
