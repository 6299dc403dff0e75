//! What a node has in its network: what a walk over it expects to find.

use std::fmt;

use flannel_backend::Underlay;
use flannel_lease::{NetworkConfig, Subnet};
use ipnet::IpNet;

use crate::ends::nets;
use crate::firewall::UDP;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInNetwork {
    pub backend: String,
    pub tunnel: Tunnel,
    pub underlay: Option<Underlay>,
    /// What pods are to have.
    pub mtu: Option<u32>,
    /// Flannel's own.
    pub devices: Vec<String>,
    /// This node's subnets.
    pub own: Vec<IpNet>,
}

/// By what packets travel between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    Udp(u16),
    /// A protocol beside UDP and TCP: ipip is 4, ESP is 50.
    Protocol(u8),
    /// Pods' packets are on the underlay as they are.
    None,
}

impl NodeInNetwork {
    /// `subnet`: this node's. `devices`: those of the backend.
    pub fn new(
        config: &NetworkConfig,
        underlay: &Underlay,
        mtu: u32,
        devices: Vec<String>,
        subnet: &Subnet,
    ) -> Self {
        Self {
            backend: config.backend.kind.to_ascii_lowercase(),
            tunnel: Tunnel::of(config),
            underlay: Some(underlay.clone()),
            mtu: Some(mtu),
            devices,
            own: nets(subnet),
        }
    }

    /// By which packets of a family go to other nodes, where that is a device of flannel's.
    pub fn tunnel_device(&self, v4: bool) -> Option<&str> {
        tunnel_device(&self.devices, v4)
    }
}

/// Which of flannel's devices is for packets of a family.
pub fn tunnel_device(devices: &[String], v4: bool) -> Option<&str> {
    let of_family = |name: &&String| name.contains("-v6") != v4;
    let found = devices.iter().find(of_family).or(devices.first());
    found.map(String::as_str)
}

impl Tunnel {
    /// As a config says.
    pub fn of(config: &NetworkConfig) -> Self {
        let kind = config.backend.kind.to_ascii_lowercase();
        let named = match kind.as_str() {
            "wireguard" => "ListenPort",
            _ => "Port",
        };
        match (Self::usual(&kind), config.backend.int(named, 0, 0..=65535)) {
            (Self::Udp(_), Ok(port)) if port > 0 => Self::Udp(port as u16),
            (usual, _) => usual,
        }
    }

    /// Of a type of backend, if its config says nothing else.
    pub fn usual(backend: &str) -> Self {
        match backend {
            "vxlan" => Self::Udp(8472),
            "wireguard" => Self::Udp(51820),
            "udp" => Self::Udp(8285),
            "ipip" => Self::Protocol(4),
            "ipsec" => Self::Protocol(50),
            _ => Self::None,
        }
    }

    /// The protocol of its packets, and the port where there is one.
    pub fn on_the_wire(self) -> Option<(u8, u16)> {
        match self {
            Self::Udp(port) => Some((UDP, port)),
            Self::Protocol(protocol) => Some((protocol, 0)),
            Self::None => None,
        }
    }
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(port) => write!(f, "UDP port {port}"),
            Self::Protocol(number) => write!(f, "IP protocol {number}"),
            Self::None => f.write_str("packets of pods"),
        }
    }
}
