//! ipip: pods' packets travel in the nodes' own IPv4 packets, by the kernel.
//!
//! One device for all peers: each peer's subnet is routed through it with the peer's public address as the gateway,
//! which is where the kernel sends the outer packet. Pods' IPv6 has a device of its own, for which the gateway is
//! that address written as IPv6. With DirectRouting, peers on the same link are reached by their IPv4 without it.

use flannel_common::IfName;
use flannel_entries::devices::ip_tunnel_device;
use flannel_entries::kernel::{Entry, IpTunnel, IpTunnelKind, LegacyRoutes, LinkKind};
use flannel_lease::{BackendConfig, Lease, NetworkConfig};

use crate::encapsulation::{Encapsulation, KernelFeature, OuterPackets, Tunnel, TunnelPath};
use crate::family::{Family, device, host_address};
use crate::{Backend, BackendError, Node, PeerProblem, Stack, Wishes};

/// Bytes of the outer IPv4 header.
const OVERHEAD: u32 = 20;
/// Tunnels for IPv4 and for IPv6 of pods.
const KINDS: [IpTunnelKind; 2] = [IpTunnelKind::Ipip, IpTunnelKind::Sit];

pub(crate) struct IpipBackend {
    devices: [IfName; 2],
    direct_routing: bool,
}

impl IpipBackend {
    pub(crate) fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let [v4, v6] = KINDS.map(|kind| IfName::new(ip_tunnel_device(kind)));
        Ok(Self { devices: [v4?, v6?], direct_routing: config.bool("DirectRouting", false)? })
    }

    fn base_of(&self, family: Family, node: &Node, own: &Lease) -> Option<Vec<Entry>> {
        let link = family.choose(self.devices);
        let subnet = own.subnet.net(family)?;
        let local = node.underlay.v4.or(node.underlay.public_v4)?;
        let kind = LinkKind::IpTunnel(IpTunnel { kind: family.choose(KINDS), local });
        let mut entries = vec![device(link, kind, self.mtu(node))];
        entries.extend(host_address(link, subnet));
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
        node.check_mtu(node.underlay.mtu, "", |_| self.mtu(node))
    }

    fn mtu(&self, node: &Node) -> u32 {
        node.underlay.mtu.saturating_sub(OVERHEAD)
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        node.entries_of_families(|family| self.base_of(family, node, own)).into()
    }

    fn encapsulation(&self, stack: Stack) -> Encapsulation {
        let name = match (stack.v4, stack.v6) {
            (_, false) => "IP protocol 4 (IPIP)",
            (false, true) => "IP protocol 41 (IPv6 in IPv4)",
            (true, true) => "IP protocol 4 (IPIP) or 41 (IPv6 in IPv4)",
        };
        let path = |family: Family| {
            let outer = OuterPackets::Ipv4Protocol(family.choose([4, 41]));
            let devices = vec![family.choose(self.devices)];
            TunnelPath { devices, outer, outer_family: Some(Family::V4) }
        };
        let paths = stack.each(path);
        let entrances: Vec<OuterPackets> = paths.iter().flatten().map(|path| path.outer).collect();
        let protocols = entrances.iter().map(|packets| packets.on_the_wire().0);
        Encapsulation::Tunnel(Box::new(Tunnel {
            name: name.to_owned(),
            allow: protocols.map(|protocol| format!("-p {protocol}")).collect(),
            paths,
            entrances,
            encrypted: false,
            tells_nodes_apart: false,
            needs: KernelFeature::Ipip,
        }))
    }

    fn peer(&self, node: &Node, _own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        let public = node.address_of(peer, Family::V4)?;
        let direct = node.direct_link(public).filter(|_| self.direct_routing);
        let route = |family: Family| {
            let dst = peer.subnet.net(family)?;
            let (via, link) = match (family, public) {
                // As IPv6 writes it: `::192.0.2.1`.
                (Family::V6, std::net::IpAddr::V4(public)) => {
                    (public.to_ipv6_compatible().into(), family.choose(self.devices))
                }
                _ => (public, direct.unwrap_or(Family::V4.choose(self.devices))),
            };
            Some(node.route(dst, Some(via), link, true))
        };
        Ok(node.families().filter_map(route).collect::<Vec<_>>().into())
    }

    fn devices(&self, node: &Node) -> Vec<IfName> {
        node.families().map(|family| family.choose(self.devices)).collect()
    }

    fn legacy_routes(&self, node: &Node) -> Vec<LegacyRoutes> {
        if self.direct_routing { crate::host_gw::legacy_routes(node, true) } else { Vec::new() }
    }

    fn wants_paths(&self) -> bool {
        self.direct_routing
    }
}
