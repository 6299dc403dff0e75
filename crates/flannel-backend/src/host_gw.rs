//! host-gw: nodes on one link route each other's subnets, with nothing in between.

use std::net::IpAddr;

use flannel_kernel::{Entry, IfName, LegacyRoutes, Route};
use flannel_lease::{BackendConfig, Lease, LeaseAttrs};

use crate::family::Family;
use crate::{Backend, BackendError, Node, Past, PeerProblem};

pub(crate) struct HostGwBackend;

impl HostGwBackend {
    pub(crate) fn new(_config: &BackendConfig) -> Self {
        Self
    }
}

impl Backend for HostGwBackend {
    fn kind(&self) -> &'static str {
        "host-gw"
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        let underlay = &node.underlay;
        let pairs = [
            (
                underlay.public_v4.map(IpAddr::V4),
                underlay.v4.map(IpAddr::V4),
                node.network.v4.is_some(),
            ),
            (
                underlay.public_v6.map(IpAddr::V6),
                underlay.v6.map(IpAddr::V6),
                node.network.v6.is_some(),
            ),
        ];
        for (public, own, used) in pairs {
            if let (Some(public), Some(own)) = (public, own)
                && used
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

    fn mtu(&self, node: &Node) -> u32 {
        node.underlay.mtu
    }

    fn announce(&self, node: &Node, _past: &Past<'_>) -> LeaseAttrs {
        LeaseAttrs {
            public_ip: node.underlay.public_v4.filter(|_| node.network.v4.is_some()),
            public_ipv6: node.underlay.public_v6.filter(|_| node.network.v6.is_some()),
            backend_type: self.kind().to_owned(),
            backend_data: None,
            backend_v6_data: None,
        }
    }

    fn base(&self, _node: &Node, _own: &Lease) -> Vec<Entry> {
        Vec::new()
    }

    fn peer(&self, node: &Node, _own: &Lease, peer: &Lease) -> Result<Vec<Entry>, PeerProblem> {
        let mut entries = Vec::new();
        for family in Family::used_by(node) {
            let Some(dst) = family.subnet(&peer.subnet) else { continue };
            entries.push(Entry::Route(Route {
                dst,
                metric: family.metric(node, dst),
                via: Some(family.public_address(peer)?),
                link: node.underlay.link,
                onlink: false,
            }));
        }
        Ok(entries)
    }

    fn devices(&self, _node: &Node) -> Vec<IfName> {
        Vec::new()
    }

    fn legacy_routes(&self, node: &Node) -> Vec<LegacyRoutes> {
        legacy_routes(node)
    }
}

pub(crate) fn legacy_routes(node: &Node) -> Vec<LegacyRoutes> {
    Family::used_by(node)
        .filter_map(|family| family.network(node))
        .map(|(network, subnet_len)| LegacyRoutes { link: node.underlay.link, network, subnet_len })
        .collect()
}
