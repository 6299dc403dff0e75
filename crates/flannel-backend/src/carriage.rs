//! What pods' packets travel in between nodes, for those who look whether they arrive.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// A tunnel, whose end on each node has the first address of the node's subnet.
    Tunnel {
        /// In words: `UDP port 8472`.
        name: String,
        /// As a firewall is told of it: `-p udp --dport 8472`.
        allow: Vec<String>,
        /// What it adds to a packet, in bytes.
        overhead: u32,
        /// What a node takes out of it, as the host's firewall sees it.
        packets: Vec<TunnelPackets>,
        /// Whether a node takes such packets from anybody who sends them, since nothing in them proves who did.
        forgeable: bool,
    },
    /// The underlay, as they are.
    Underlay,
    /// Whatever somebody else has made.
    Unknown,
}

/// Packets by which something enters a node's end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelPackets {
    /// UDP to this port, by IPv4 or IPv6.
    Udp(u16),
    /// This protocol of IPv4.
    Ipv4Protocol(u8),
}

impl Carriage {
    /// A tunnel in UDP.
    pub(crate) fn udp(ports: &[u16], overhead: u32, forgeable: bool) -> Self {
        let packets = ports.iter().copied().map(TunnelPackets::Udp).collect();
        let list =
            |between: &str| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(between);
        match ports {
            [port] => Self::Tunnel {
                name: format!("UDP port {port}"),
                allow: vec![format!("-p udp --dport {port}")],
                overhead,
                packets,
                forgeable,
            },
            _ => Self::Tunnel {
                name: format!("UDP ports {}", list(" and ")),
                allow: vec![format!("-p udp -m multiport --dports {}", list(","))],
                overhead,
                packets,
                forgeable,
            },
        }
    }
}
