//! What is wanted of a WireGuard device and of its peers, as it is told to the process that serves them.

use std::net::SocketAddr;

use flannel_common::{PresharedKey, PrivateKey, PublicKey};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// A device that speaks WireGuard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireguardDevice {
    #[serde(with = "private_key")]
    pub private_key: PrivateKey,
    /// Of the device: padding makes no packet longer.
    pub mtu: u32,
}

/// A node behind it, and what of the pod network is behind that node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireguardPeer {
    #[serde(with = "public_key")]
    pub public_key: PublicKey,
    #[serde(with = "preshared_key", default)]
    pub preshared_key: Option<PresharedKey>,
    /// Where it is said to be. A peer that moves is followed.
    pub endpoint: SocketAddr,
    /// In seconds; 0: not at all.
    pub keepalive: u16,
    pub allowed: Vec<IpNet>,
}

pub(crate) mod public_key {
    use super::{Deserialize as _, PublicKey};

    pub(crate) fn serialize<S: serde::Serializer>(
        key: &PublicKey,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(key)
    }

    pub(crate) fn deserialize<'a, D: serde::Deserializer<'a>>(
        from: D,
    ) -> Result<PublicKey, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

mod private_key {
    use super::{Deserialize as _, PrivateKey, Zeroizing};

    pub(super) fn serialize<S: serde::Serializer>(
        key: &PrivateKey,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&key.reveal())
    }

    pub(super) fn deserialize<'a, D: serde::Deserializer<'a>>(
        from: D,
    ) -> Result<PrivateKey, D::Error> {
        Zeroizing::new(String::deserialize(from)?).parse().map_err(serde::de::Error::custom)
    }
}

mod preshared_key {
    use super::{Deserialize as _, PresharedKey, Serialize as _};

    pub(super) fn serialize<S: serde::Serializer>(
        key: &Option<PresharedKey>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        key.as_ref().map(PresharedKey::bytes).serialize(to)
    }

    pub(super) fn deserialize<'a, D: serde::Deserializer<'a>>(
        from: D,
    ) -> Result<Option<PresharedKey>, D::Error> {
        Ok(Option::<[u8; 32]>::deserialize(from)?.map(PresharedKey::from_bytes))
    }
}
