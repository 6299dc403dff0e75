//! IPsec policies as data.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Number that connects flannel's policies with its tunnels and marks both. The Go flannel uses the same.
pub const ESP_REQID: u32 = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    In,
    /// Packets that leave this machine, its own and those of others.
    Out,
    Forward,
}

/// Writes the direction as `ip xfrm policy` does.
impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Forward => "fwd",
        })
    }
}

/// Both ends of an ESP tunnel, and the number that connects policies with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspTunnel {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub reqid: u32,
}

/// Sends packets from one network to another through an ESP tunnel, and in no other way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub direction: Direction,
    pub src: IpNet,
    pub dst: IpNet,
    pub tunnel: EspTunnel,
}
