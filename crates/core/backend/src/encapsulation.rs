//! Encapsulation of pods' packets between nodes, for everything that looks whether they arrive.

use std::fmt;

use flannel_common::{Family, IfName};
use flannel_lease::BackendConfig;

use crate::{Stack, create, ipsec};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// A tunnel, whose end on each node has the first address of the node's subnet.
    Tunnel(Box<Tunnel>),
    /// None: packets travel in the underlay as they are.
    Underlay {
        /// Whether each node is the next hop to its pods; else a table of the underlay leads to them.
        direct: bool,
    },
    /// Made by somebody else.
    #[default]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Name, such as `UDP port 8472`.
    pub name: String,
    /// Arguments of a firewall rule that lets it in: `-p udp --dport 8472`.
    pub allow: Vec<String>,
    /// Paths of pods' IPv4 and IPv6 packets.
    pub paths: [Option<TunnelPath>; 2],
    /// Packets that enter a node's end, as the host's firewall sees them.
    pub entrances: Vec<OuterPackets>,
    /// Whether its packets are encrypted, and accepted from peers alone.
    pub encrypted: bool,
    /// Whether nodes behind one public address can be told apart.
    pub tells_nodes_apart: bool,
    pub needs: KernelFeature,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelPath {
    /// Devices that packets may leave by, the usual one first.
    pub devices: Vec<IfName>,
    pub outer: OuterPackets,
    /// Family of the outer packets, where it is always the same.
    pub outer_family: Option<Family>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OuterPackets {
    /// UDP to this port, by IPv4 or IPv6.
    Udp(u16),
    /// This protocol of IPv4.
    Ipv4Protocol(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelFeature {
    Vxlan,
    Ipip,
    /// Replaced by user space where it is missing.
    Wireguard,
    Tun,
    Ipsec,
}

const UDP: u8 = 17;

impl Encapsulation {
    /// Encapsulation of a backend with the default config.
    pub fn usual(kind: &str, stack: Stack) -> Self {
        match create(&BackendConfig::new(kind)) {
            Ok(backend) => backend.encapsulation(stack),
            // It needs a secret, which its packets do not show.
            Err(_) if kind == ipsec::KIND => ipsec::encapsulation(),
            Err(_) => Self::Unknown,
        }
    }

    pub(crate) fn in_udp(
        port: u16,
        stack: Stack,
        devices: impl Fn(Family) -> Vec<IfName>,
        needs: KernelFeature,
    ) -> Self {
        let outer = OuterPackets::Udp(port);
        let path = |family| TunnelPath { devices: devices(family), outer, outer_family: None };
        let (name, allow) = udp_words(&[port]);
        Self::Tunnel(Box::new(Tunnel {
            name,
            allow,
            paths: stack.each(path),
            entrances: vec![outer],
            encrypted: false,
            tells_nodes_apart: false,
            needs,
        }))
    }

    pub fn tunnel(&self) -> Option<&Tunnel> {
        match self {
            Self::Tunnel(tunnel) => Some(tunnel),
            Self::Underlay { .. } | Self::Unknown => None,
        }
    }

    pub fn path(&self, family: Family) -> Option<&TunnelPath> {
        family.choose(self.tunnel()?.paths.each_ref()).as_ref()
    }

    pub fn device<'a>(&self, devices: &'a [String], family: Family) -> Option<&'a str> {
        let usual = self.path(family).into_iter().flat_map(|path| &path.devices);
        let mut found = usual.filter_map(|name| devices.iter().find(|it| *it == name.as_str()));
        found.next().or(devices.first()).map(String::as_str)
    }

    /// Outer packets that the tunnel sends between two addresses of a family.
    pub fn outer_between(&self, family: Family) -> Vec<OuterPackets> {
        let paths = Family::BOTH.into_iter().filter_map(|inner| self.path(inner));
        let fits = |path: &&TunnelPath| path.outer_family.is_none_or(|outer| outer == family);
        let mut packets: Vec<OuterPackets> = paths.filter(fits).map(|path| path.outer).collect();
        packets.dedup();
        packets
    }

    pub fn udp_port(&self, family: Family) -> Option<u16> {
        self.outer_between(family).into_iter().find_map(|packets| match packets {
            OuterPackets::Udp(port) => Some(port),
            OuterPackets::Ipv4Protocol(_) => None,
        })
    }

    pub fn is_encrypted(&self) -> bool {
        self.tunnel().is_some_and(|tunnel| tunnel.encrypted)
    }

    pub fn tells_nodes_apart(&self) -> bool {
        self.tunnel().is_some_and(|tunnel| tunnel.tells_nodes_apart)
    }
}

impl OuterPackets {
    pub fn on_the_wire(self) -> (u8, Option<u16>) {
        match self {
            Self::Udp(port) => (UDP, Some(port)),
            Self::Ipv4Protocol(protocol) => (protocol, None),
        }
    }
}

impl fmt::Display for OuterPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(port) => write!(f, "UDP port {port}"),
            Self::Ipv4Protocol(number) => write!(f, "IP protocol {number}"),
        }
    }
}

/// Names what is on the wire, whatever family is inside.
impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tunnel(tunnel) => f.write_str(&tunnel.name),
            Self::Underlay { .. } | Self::Unknown => f.write_str("packets of pods"),
        }
    }
}

pub(crate) fn udp_words(ports: &[u16]) -> (String, Vec<String>) {
    let list =
        |between: &str| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(between);
    match ports {
        [port] => (format!("UDP port {port}"), vec![format!("-p udp --dport {port}")]),
        _ => (
            format!("UDP ports {}", list(" and ")),
            vec![format!("-p udp -m multiport --dports {}", list(","))],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Stack = Stack { v4: true, v6: true };

    fn of(config: BackendConfig) -> Encapsulation {
        create(&config).unwrap().encapsulation(BOTH)
    }

    #[test]
    fn ipip_carries_ipv6_by_another_device_and_protocol() {
        let ipip = Encapsulation::usual("ipip", BOTH);
        let devices = ["flannel.ipip".to_owned(), "flannel.sit".to_owned()];
        assert_eq!(ipip.device(&devices, Family::V4), Some("flannel.ipip"));
        assert_eq!(ipip.device(&devices, Family::V6), Some("flannel.sit"));
        let outer = |family| ipip.path(family).unwrap().outer.on_the_wire();
        assert_eq!((outer(Family::V4), outer(Family::V6)), ((4, None), (41, None)));
        assert_eq!(ipip.outer_between(Family::V6), [], "both travel in IPv4");
    }

    #[test]
    fn wireguards_second_port_is_that_of_ipv6() {
        let config = BackendConfig::new("wireguard").with("ListenPortV6", 51999);
        let separate = of(config.clone());
        assert_eq!(separate.udp_port(Family::V4), Some(51820));
        assert_eq!(separate.udp_port(Family::V6), Some(51999));
        let devices = ["flannel-wg".to_owned(), "flannel-wg-v6".to_owned()];
        assert_eq!(separate.device(&devices, Family::V6), Some("flannel-wg-v6"));
        let one = of(config.with("Mode", "ipv4"));
        assert_eq!(one.path(Family::V6).unwrap().outer, OuterPackets::Udp(51820));
        assert_eq!(one.device(&devices[..1], Family::V6), Some("flannel-wg"));
    }

    #[test]
    fn what_a_config_leaves_out_is_as_usual() {
        let words = |kind: &str| Encapsulation::usual(kind, BOTH).to_string();
        assert_eq!(words("vxlan"), "UDP port 8472");
        assert_eq!(words("udp"), "UDP port 8285");
        assert_eq!(words("wireguard"), "UDP ports 51820 and 51821");
        assert_eq!(words("ipsec"), "IPsec (ESP, and UDP ports 500 and 4500)");
        assert_eq!(words("host-gw"), "packets of pods");
        assert_eq!(Encapsulation::usual("nonsense", BOTH), Encapsulation::Unknown);
    }

    #[test]
    fn a_device_that_is_alone_carries_either_family() {
        let vxlan = Encapsulation::usual("vxlan", BOTH);
        assert_eq!(vxlan.device(&["flannel.1".to_owned()], Family::V6), Some("flannel.1"));
        let both = ["flannel.1".to_owned(), "flannel-v6.1".to_owned()];
        assert_eq!(vxlan.device(&both, Family::V6), Some("flannel-v6.1"));
        assert_eq!(vxlan.device(&[], Family::V6), None);
    }
}
