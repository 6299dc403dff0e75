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
    },
    /// The underlay, as they are.
    Underlay,
    /// Whatever somebody else has made.
    Unknown,
}

impl Carriage {
    pub(crate) fn udp(ports: &[u16], overhead: u32) -> Self {
        let list =
            |between: &str| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(between);
        match ports {
            [port] => Self::Tunnel {
                name: format!("UDP port {port}"),
                allow: vec![format!("-p udp --dport {port}")],
                overhead,
            },
            _ => Self::Tunnel {
                name: format!("UDP ports {}", list(" and ")),
                allow: vec![format!("-p udp -m multiport --dports {}", list(","))],
                overhead,
            },
        }
    }
}
