//! udp: pods' packets travel in UDP between the nodes, carried by a process instead of the kernel. It works
//! wherever UDP does.
//!
//! The pod network, and each peer's subnet, is routed into one TUN device; the process behind it knows where each subnet is. The
//! wire format is the Go flannel's: an inner packet is the payload of a datagram, and nothing else.

use std::net::{IpAddr, SocketAddr};

use flannel_common::IfName;
use flannel_entries::devices::TUN_DEVICES;
use flannel_entries::kernel::{Entry, IPV6_DEFAULT_METRIC, LinkKind, Route};
use flannel_entries::tunnel::{
    DeviceName, Features, OwnAddresses, Peer, TunnelDevice, TunnelEntry,
};
use flannel_lease::{BackendConfig, Lease};

use crate::encapsulation::{Encapsulation, KernelFeature};
use crate::family::{Family, device, for_each_family, host_address};
use crate::{Backend, BackendError, Node, PeerProblem, Stack, Wishes};

const DEFAULT_PORT: u16 = 8285;
/// Bytes of an IP and a UDP header.
const OVERHEAD_V4: u32 = 28;
const OVERHEAD_V6: u32 = 48;

pub(crate) struct UdpBackend {
    port: u16,
    device: IfName,
}

impl UdpBackend {
    pub(crate) fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let port = config.int("Port", DEFAULT_PORT.into(), 1..=65535)? as u16;
        // The Go flannel takes the first name that is free. Networks of one node have different ports, so a
        // name that follows from the port is free too, and is the same after every restart.
        let number = if port == DEFAULT_PORT { 0 } else { port };
        let device = IfName::new(&format!("{TUN_DEVICES}{number}"))
            .map_err(|error| BackendError::Unfit(format!("Backend.Port {port}: {error}")))?;
        Ok(Self { port, device })
    }

    fn kernel(&self, node: &Node, own: &Lease) -> Vec<Entry> {
        let link = self.device;
        let mut entries = vec![
            device(link, LinkKind::Tun, self.mtu(node)),
            Entry::device_setting(Family::V6, link, "accept_ra", "0"),
        ];
        for network in node.network.networks() {
            let family = Family::of(network.addr());
            let Some(subnet) = own.subnet.net(family) else { continue };
            if family == Family::V4 {
                // ICMP errors of the tunnel come out of the device from the node's own address, and are dropped
                // without this.
                entries.push(Entry::device_setting(family, link, "accept_local", "1"));
            }
            let metric = if family == Family::V6 { IPV6_DEFAULT_METRIC } else { 0 };
            entries.extend(host_address(link, subnet));
            let route = Route { dst: network, metric, via: None, link, onlink: false };
            entries.push(Entry::Route(route));
        }
        entries
    }

    fn tunnel(&self, node: &Node, own: &Lease) -> TunnelDevice {
        let families = node.families().filter_map(|family| source(family, node));
        TunnelDevice {
            device: self.device.to_string(),
            bind: families.map(|source| SocketAddr::new(source, self.port)).collect(),
            own: OwnAddresses {
                v4: own.subnet.v4().map(|net| net.network()),
                v6: own.subnet.v6().map(|net| net.network()),
            },
            features: Features::default(),
            wireguard: None,
        }
    }
}

/// Address that datagrams of a family leave from. A link-local address does not count: peers need not be on that
/// link, and no socket is bound to it without naming the link.
fn source(family: Family, node: &Node) -> Option<IpAddr> {
    node.underlay.source(family).filter(|source| !is_link_local(*source))
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn uncarried(node: &Node) -> impl Iterator<Item = Family> {
    node.families().filter(|family| source(*family, node).is_none())
}

impl Backend for UdpBackend {
    fn kind(&self) -> &'static str {
        "udp"
    }

    fn accepts_untyped(&self) -> bool {
        true
    }

    fn options(&self) -> &'static [&'static str] {
        &["Port"]
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        let link = node.underlay.link;
        if let Some(family) = uncarried(node).next()
            && uncarried(node).count() == node.families().count()
        {
            return Err(BackendError::Unfit(format!(
                "{link} has no {family} address that other nodes can send to, only one of its link (fe80::/10): give \
                 {link} a global or a unique local address, or choose another interface with --iface"
            )));
        }
        node.check_mtu(node.underlay.mtu, "", |_| self.mtu(node))
    }

    fn remarks(&self, node: &Node) -> Vec<String> {
        let link = node.underlay.link;
        let remark = |family: Family| {
            format!(
                "{link} has no {family} address that other nodes can send to, only one of its link (fe80::/10): udp \
                 carries {family} of pods over {family} alone, so this node carries none; {} is carried. Give {link} a \
                 global or a unique local {family} address",
                family.other()
            )
        };
        uncarried(node).map(remark).collect()
    }

    fn mtu(&self, node: &Node) -> u32 {
        let overhead = if node.network.v6.is_some() { OVERHEAD_V6 } else { OVERHEAD_V4 };
        node.underlay.mtu.saturating_sub(overhead)
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        let device = TunnelEntry::Device(Box::new(self.tunnel(node, own)));
        Wishes { kernel: self.kernel(node, own), tunnel: vec![device], ..Wishes::default() }
    }

    fn encapsulation(&self, stack: Stack) -> Encapsulation {
        Encapsulation::in_udp(self.port, stack, |_| vec![self.device], KernelFeature::Tun)
    }

    fn peer(&self, node: &Node, _own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        for_each_family(node, peer, |family, subnet| {
            if source(family, node).is_none() {
                return Ok(Wishes::default());
            }
            let public = node.address_of(peer, family)?;
            if is_link_local(public) {
                return Err(PeerProblem::NoAddress(family));
            }
            let device = DeviceName::from(self.device.as_str());
            let endpoint = SocketAddr::new(public, self.port);
            // The network's route leads there as well. This one names the peer, so that a route which takes its
            // packets elsewhere is noticed as with every backend.
            let route = node.route(subnet, None, self.device, false);
            let tunnel = vec![TunnelEntry::Peer(device, Peer { subnet, endpoint })];
            Ok(Wishes { kernel: vec![route], tunnel, ..Wishes::default() })
        })
    }

    fn devices(&self, _node: &Node) -> Vec<IfName> {
        vec![self.device]
    }
}
