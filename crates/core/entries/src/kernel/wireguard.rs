//! Entries of a WireGuard device, beyond the device itself.

use std::fmt;
use std::net::SocketAddr;

use flannel_common::{IfName, PresharedKey, PrivateKey, PublicKey};
use ipnet::IpNet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardIdentity {
    pub link: IfName,
    pub private_key: PrivateKey,
    pub port: u16,
}

/// A WireGuard peer, and the part of the pod network behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardPeer {
    pub link: IfName,
    pub public_key: PublicKey,
    pub preshared_key: Option<PresharedKey>,
    /// Announced address. The kernel follows a peer that moves.
    pub endpoint: SocketAddr,
    /// Whether the peer may move from one address family to the other.
    pub any_family: bool,
    /// Interval in seconds; 0 for none.
    pub keepalive: u16,
    pub allowed: Vec<IpNet>,
}

impl fmt::Display for WireguardIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, port) = (self.private_key.public(), self.port);
        write!(f, "wireguard key of {key} listen-port {port} dev {}", self.link)
    }
}

/// Writes the peer as `wg` does.
impl fmt::Display for WireguardPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wireguard peer {} endpoint {}", self.public_key, self.endpoint)?;
        if self.preshared_key.is_some() {
            f.write_str(" preshared-key <hidden>")?;
        }
        if self.keepalive != 0 {
            write!(f, " persistent-keepalive {}", self.keepalive)?;
        }
        let allowed: Vec<String> = self.allowed.iter().map(ToString::to_string).collect();
        write!(f, " allowed-ips {} dev {}", allowed.join(","), self.link)
    }
}
