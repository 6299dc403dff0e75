//! ipip: pods' packets travel as they are in the nodes' own, which are IPv4, in the kernel.
//!
//! One device for all peers: each peer's subnet is routed through it with the peer's public address as
//! the gateway, which is where the kernel then sends the outer packet. Pods' IPv6 has a device of its own, for which the
//! gateway is that address as IPv6 can write it. With DirectRouting, peers on the same link are reached by their
//! IPv4 without it.

use flannel_kernel::{
    Address, Entry, IfName, IpTunnel, IpTunnelKind, LegacyRoutes, Link, LinkKind, Route, Sysctl,
    ip_tunnel_device,
};
use flannel_lease::{BackendConfig, Lease, NetworkConfig};

use crate::family::{Family, PerFamily as _};
use crate::{Backend, BackendError, Carriage, Node, PeerProblem, Stack, TunnelPackets, Wishes};

/// The outer IPv4 header.
const OVERHEAD: u32 = 20;

pub(crate) struct IpipBackend {
    device_v4: IfName,
    device_v6: IfName,
    direct_routing: bool,
}

impl IpipBackend {
    pub(crate) fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let name = |kind| {
            let name = IfName::new(ip_tunnel_device(kind));
            name.map_err(|error| BackendError::Unfit(error.to_string()))
        };
        Ok(Self {
            device_v4: name(IpTunnelKind::Ipip)?,
            device_v6: name(IpTunnelKind::Sit)?,
            direct_routing: config.bool("DirectRouting", false)?,
        })
    }

    fn device(&self, family: Family) -> IfName {
        match family {
            Family::V4 => self.device_v4,
            Family::V6 => self.device_v6,
        }
    }

    fn base_of(&self, family: Family, node: &Node, own: &Lease) -> Option<Vec<Entry>> {
        let link = self.device(family);
        let subnet = family.subnet(&own.subnet)?;
        let local = node.underlay.v4.or(node.underlay.public_v4)?;
        let kind = match family {
            Family::V4 => IpTunnelKind::Ipip,
            Family::V6 => IpTunnelKind::Sit,
        };
        let mut entries = vec![
            Entry::Link(Box::new(Link {
                name: link,
                kind: LinkKind::IpTunnel(IpTunnel { kind, local }),
                mac: None,
                mtu: self.mtu(node),
            })),
            Entry::Address(Address { link, addr: Family::host(subnet) }),
        ];
        if family == Family::V6 {
            // Without it the device can have no address.
            let path = format!("net/ipv6/conf/{link}/disable_ipv6");
            entries.push(Entry::Sysctl(Sysctl { path, value: "0".to_owned() }));
        }
        Some(entries)
    }
}

impl Backend for IpipBackend {
    fn kind(&self) -> &'static str {
        "ipip"
    }

    fn options(&self) -> &'static [&'static str] {
        &["DirectRouting"]
    }

    /// Over IPv6 there is no tunnel of the kernel's that leads to many nodes: docs/backends/ipip.md says why.
    fn underlays(&self, _network: &NetworkConfig) -> Vec<Stack> {
        vec![Stack::V4]
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        let raise = format!("the MTU of {}", node.underlay.link);
        Family::used_by(node)
            .try_for_each(|family| family.check_mtu(self.mtu(node), node.underlay.mtu, &raise))
    }

    fn mtu(&self, node: &Node) -> u32 {
        node.underlay.mtu.saturating_sub(OVERHEAD)
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        let of = Family::used_by(node).filter_map(|family| self.base_of(family, node, own));
        of.flatten().collect::<Vec<_>>().into()
    }

    fn carriage(&self, node: &Node) -> Carriage {
        let (name, protocols) = match (&node.network.v4, &node.network.v6) {
            (_, None) => ("IP protocol 4 (IPIP)", &[4][..]),
            (None, Some(_)) => ("IP protocol 41 (IPv6 in IPv4)", &[41][..]),
            (Some(_), Some(_)) => ("IP protocol 4 (IPIP) or 41 (IPv6 in IPv4)", &[4, 41][..]),
        };
        Carriage::Tunnel {
            name: name.to_owned(),
            allow: protocols.iter().map(|protocol| format!("-p {protocol}")).collect(),
            overhead: OVERHEAD,
            packets: protocols.iter().copied().map(TunnelPackets::Ipv4Protocol).collect(),
            forgeable: true,
        }
    }

    fn peer(&self, node: &Node, _own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        let public = Family::V4.public_address(node, peer)?;
        let direct = node.direct_link(public).filter(|_| self.direct_routing);
        let route = |family: Family| {
            let dst = family.subnet(&peer.subnet)?;
            let (via, link) = match (family, public) {
                // As IPv6 writes it: `::192.0.2.1`.
                (Family::V6, std::net::IpAddr::V4(public)) => {
                    (public.to_ipv6_compatible().into(), self.device_v6)
                }
                _ => (public, direct.unwrap_or(self.device_v4)),
            };
            let metric = family.metric(node, dst);
            Some(Entry::Route(Route { dst, metric, via: Some(via), link, onlink: true }))
        };
        Ok(Family::used_by(node).filter_map(route).collect::<Vec<_>>().into())
    }

    fn devices(&self, node: &Node) -> Vec<IfName> {
        Family::used_by(node).map(|family| self.device(family)).collect()
    }

    fn legacy_routes(&self, node: &Node) -> Vec<LegacyRoutes> {
        if self.direct_routing { crate::host_gw::legacy_routes(node, true) } else { Vec::new() }
    }

    fn wants_paths(&self) -> bool {
        self.direct_routing
    }
}
