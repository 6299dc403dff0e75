//! ipip: pods' packets travel as they are in the nodes' own, IPv4 in IPv4, in the kernel.
//!
//! One device for all peers: each peer's subnet is routed through it with the peer's public address as
//! the gateway, which is where the kernel then sends the outer packet. With DirectRouting, peers on the
//! same link are reached without it.

use flannel_kernel::{
    Address, Entry, IPIP_DEVICE, IfName, Ipip, LegacyRoutes, Link, LinkKind, Route,
};
use flannel_lease::{BackendConfig, Lease, NetworkConfig};

use crate::family::{Family, PerFamily as _};
use crate::{Backend, BackendError, Node, PeerProblem, Wishes};

/// The outer IPv4 header.
const OVERHEAD: u32 = 20;
/// What IPv4 demands of a link.
const LEAST_MTU: u32 = 68;

pub(crate) struct IpipBackend {
    device: IfName,
    direct_routing: bool,
}

impl IpipBackend {
    pub(crate) fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let device = IfName::new(IPIP_DEVICE).map_err(|e| BackendError::Unfit(e.to_string()))?;
        Ok(Self { device, direct_routing: config.bool("DirectRouting", false)? })
    }
}

impl Backend for IpipBackend {
    fn kind(&self) -> &'static str {
        "ipip"
    }

    fn options(&self) -> &'static [&'static str] {
        &["DirectRouting"]
    }

    fn check_network(&self, network: &NetworkConfig) -> Result<(), BackendError> {
        if network.v6.is_some() {
            return Err(BackendError::Unfit(
                "Backend.Type ipip carries IPv4 alone, and this network has IPv6 too: use vxlan, wireguard or \
                 host-gw, or set EnableIPv6 to false"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        self.check_network(&node.network)?;
        let mtu = self.mtu(node);
        if mtu < LEAST_MTU {
            return Err(BackendError::Unfit(format!(
                "an MTU of {} leaves {mtu} bytes for pods, less than the {LEAST_MTU} that IPv4 needs: raise \
                 the MTU of {}",
                node.underlay.mtu, node.underlay.link
            )));
        }
        Ok(())
    }

    fn mtu(&self, node: &Node) -> u32 {
        node.underlay.mtu.saturating_sub(OVERHEAD)
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        let link = self.device;
        let subnet = Family::V4.subnet(&own.subnet);
        let local = node.underlay.v4.or(node.underlay.public_v4);
        let (Some(subnet), Some(local)) = (subnet, local) else { return Wishes::default() };
        let entries = vec![
            Entry::Link(Box::new(Link {
                name: link,
                kind: LinkKind::Ipip(Ipip { local }),
                mac: None,
                mtu: self.mtu(node),
            })),
            Entry::Address(Address { link, addr: Family::host(subnet) }),
        ];
        entries.into()
    }

    fn peer(&self, node: &Node, _own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        let Some(dst) = Family::V4.subnet(&peer.subnet) else { return Ok(Wishes::default()) };
        let via = Family::V4.public_address(peer)?;
        let direct = node.direct_link(via).filter(|_| self.direct_routing);
        let route = Entry::Route(Route {
            dst,
            metric: Family::V4.metric(node, dst),
            via: Some(via),
            link: direct.unwrap_or(self.device),
            onlink: true,
        });
        Ok(vec![route].into())
    }

    fn devices(&self, _node: &Node) -> Vec<IfName> {
        vec![self.device]
    }

    fn legacy_routes(&self, node: &Node) -> Vec<LegacyRoutes> {
        if self.direct_routing { crate::host_gw::legacy_routes(node, true) } else { Vec::new() }
    }

    fn wants_paths(&self) -> bool {
        self.direct_routing
    }
}
