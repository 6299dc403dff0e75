//! Entries of datapaths in user space. The processes that carry packets are told the same data.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use flannel_common::{PresharedKey, PrivateKey, PublicKey};
use flannel_wanted::{Importance, KeyedEntry};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// Name of a device, which many peers share.
pub type DeviceName = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelEntry {
    /// A device and its sockets. Boxed: there are one or two among many peers.
    Device(Box<TunnelDevice>),
    Peer(DeviceName, Peer),
    WireguardPeer(DeviceName, Box<WireguardPeer>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TunnelKey {
    Device(DeviceName),
    Peer(DeviceName, IpNet),
    WireguardPeer(DeviceName, PublicKey),
}

impl TunnelEntry {
    pub fn device(&self) -> DeviceName {
        match self {
            Self::Device(config) => config.device.as_str().into(),
            Self::Peer(device, _) | Self::WireguardPeer(device, _) => Arc::clone(device),
        }
    }
}

impl KeyedEntry for TunnelEntry {
    type Key = TunnelKey;
    type Device = DeviceName;

    fn key(&self) -> TunnelKey {
        match self {
            Self::Device(config) => TunnelKey::Device(config.device.as_str().into()),
            Self::Peer(device, peer) => TunnelKey::Peer(Arc::clone(device), peer.subnet),
            Self::WireguardPeer(device, peer) => {
                TunnelKey::WireguardPeer(Arc::clone(device), peer.public_key)
            }
        }
    }

    fn devices(&self) -> impl Iterator<Item = DeviceName> {
        std::iter::once(self.device())
    }

    fn describe(&self) -> String {
        match self {
            Self::Device(config) => {
                let bind: Vec<String> = config.bind.iter().map(ToString::to_string).collect();
                let kind = if config.wireguard.is_some() { "wireguard tunnel" } else { "tunnel" };
                format!("{kind} {} on UDP {}", config.device, bind.join(" and "))
            }
            Self::Peer(_, peer) => format!("tunnel to {} at {}", peer.subnet, peer.endpoint),
            Self::WireguardPeer(device, peer) => {
                let (key, at) = (peer.public_key, peer.endpoint);
                format!("wireguard peer {key} endpoint {at} dev {device}")
            }
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Device(_) => "tunnel",
            Self::Peer(..) => "tunnel-peer",
            Self::WireguardPeer(..) => "wireguard-peer",
        }
    }

    fn importance(&self) -> Importance {
        if matches!(self, Self::Device(_)) { Importance::Foundation } else { Importance::Ordinary }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelDevice {
    /// Name of the TUN device, which is made if it does not exist and stays when the datapath goes.
    pub device: String,
    /// Addresses that datagrams are sent from and received at, at most one of each family.
    pub bind: Vec<SocketAddr>,
    pub own: OwnAddresses,
    #[serde(default)]
    pub features: Features,
    /// Encrypts packets by WireGuard.
    #[serde(default)]
    pub wireguard: Option<WireguardDevice>,
}

/// Kernel features that may be used. Tests turn them off, and people who look for a culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    pub tun_offload: bool,
    pub udp_gso: bool,
    pub udp_gro: bool,
    pub multi_queue: bool,
    /// Largest number of queues; 0 for one a processor.
    pub lanes: usize,
}

impl Default for Features {
    fn default() -> Self {
        Self { tun_offload: true, udp_gso: true, udp_gro: true, multi_queue: true, lanes: 0 }
    }
}

/// This node's addresses on the TUN device, from which ICMP errors are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnAddresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Peer {
    pub subnet: IpNet,
    /// Destination of its packets, and the only source that packets from it are accepted from.
    pub endpoint: SocketAddr,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireguardDevice {
    #[serde(with = "private_key")]
    pub private_key: PrivateKey,
    /// MTU of the device: padding makes no packet longer.
    pub mtu: u32,
}

/// A WireGuard peer, and the part of the pod network behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireguardPeer {
    #[serde(with = "public_key")]
    pub public_key: PublicKey,
    #[serde(with = "preshared_key", default)]
    pub preshared_key: Option<PresharedKey>,
    /// Announced address. A peer that moves is followed.
    pub endpoint: SocketAddr,
    /// Interval in seconds; 0 for none.
    pub keepalive: u16,
    pub allowed: Vec<IpNet>,
}

pub mod public_key {
    use super::{Deserialize as _, Deserializer, PublicKey, Serializer};

    pub fn serialize<S: Serializer>(key: &PublicKey, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(key)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PublicKey, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

mod private_key {
    use super::{Deserialize as _, Deserializer, PrivateKey, Serializer, Zeroizing};

    pub(super) fn serialize<S: Serializer>(key: &PrivateKey, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&key.reveal())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PrivateKey, D::Error> {
        Zeroizing::new(String::deserialize(from)?).parse().map_err(serde::de::Error::custom)
    }
}

mod preshared_key {
    use super::{Deserialize as _, Deserializer, PresharedKey, Serialize as _, Serializer};

    type Key = Option<PresharedKey>;

    pub(super) fn serialize<S: Serializer>(key: &Key, to: S) -> Result<S::Ok, S::Error> {
        key.as_ref().map(PresharedKey::bytes).serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Key, D::Error> {
        Ok(Option::<[u8; 32]>::deserialize(from)?.map(PresharedKey::from_bytes))
    }
}
