//! Identities of a node at the link, besides its address: packets for a peer go to whoever announces its identity.
//! Two nodes that announce the same one cannot both be sent to.

use std::fmt;
use std::str::FromStr;

use flannel_common::{Family, Mac, PublicKey};
use flannel_lease::{BackendConfig, LeaseAttrs};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkIdentity {
    /// MAC address of the VTEP whose packets travel in this family.
    VtepMac(Family, Mac),
    WireguardKey(PublicKey),
}

impl LinkIdentity {
    /// Whether packets sent to the wrong node are useless to it: they can be read with the private key alone.
    pub fn guards_packets(&self) -> bool {
        matches!(self, Self::WireguardKey(_))
    }

    /// How the node that came second gets another identity.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::VtepMac(..) => {
                "restart flanneld on the node that came second: it then gives its device another MAC \
                 (the Go flannel: `ip link del` its flannel device before)"
            }
            Self::WireguardKey(_) => {
                "on the node that came second, remove the key file (see WIREGUARD_KEY_FILE) and restart flanneld"
            }
        }
    }
}

impl fmt::Display for LinkIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VtepMac(_, mac) => write!(f, "the VTEP MAC {mac}"),
            Self::WireguardKey(key) => write!(f, "the WireGuard key {key}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a link identity")]
pub struct InvalidLinkIdentity;

const VTEP_MAC: [&str; 2] = ["vtep-mac-ipv4", "vtep-mac-ipv6"];
const WIREGUARD_KEY: &str = "wireguard-key";

impl LinkIdentity {
    /// Text in files, which [`FromStr`] reads.
    pub fn to_key(&self) -> String {
        match self {
            Self::VtepMac(family, mac) => format!("{}/{mac}", family.choose(VTEP_MAC)),
            Self::WireguardKey(key) => format!("{WIREGUARD_KEY}/{key}"),
        }
    }
}

impl FromStr for LinkIdentity {
    type Err = InvalidLinkIdentity;

    fn from_str(text: &str) -> Result<Self, InvalidLinkIdentity> {
        let (kind, value) = text.split_once('/').ok_or(InvalidLinkIdentity)?;
        let vtep = Family::BOTH.into_iter().find(|family| family.choose(VTEP_MAC) == kind);
        let identity = match vtep {
            Some(family) => value.parse().ok().map(|mac| Self::VtepMac(family, mac)),
            None if kind == WIREGUARD_KEY => value.parse().ok().map(Self::WireguardKey),
            None => None,
        };
        identity.ok_or(InvalidLinkIdentity)
    }
}

pub fn link_identities(attrs: &LeaseAttrs) -> Vec<LinkIdentity> {
    let backend = crate::create(&BackendConfig::new(&attrs.backend_type));
    backend.map(|backend| backend.link_identities(attrs)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use flannel_lease::RawJson;

    use super::*;

    fn announced(kind: &str, v4: &str, v6: &str) -> Vec<LinkIdentity> {
        let data = |text| RawJson::read(text).expect("JSON");
        link_identities(&LeaseAttrs {
            backend_type: kind.into(),
            backend_data: data(v4),
            backend_v6_data: data(v6),
            ..LeaseAttrs::default()
        })
    }

    #[test]
    fn a_lease_announces_its_macs_or_its_key_and_data_that_cannot_be_read_announce_nothing() {
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        let data = r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:07"}"#;
        let of = |family| LinkIdentity::VtepMac(family, mac);
        assert_eq!(announced("VXLAN", data, ""), [of(Family::V4)]);
        assert_eq!(announced("vxlan", data, data), [of(Family::V4), of(Family::V6)]);
        let key = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let data = format!(r#"{{"PublicKey":"{key}"}}"#);
        let expected = LinkIdentity::WireguardKey(key.parse().expect("a key"));
        assert_eq!(announced("wireguard", &data, &data), [expected], "one key, however often");
        for identity in [of(Family::V4), of(Family::V6), expected] {
            assert_eq!(identity.to_key().parse(), Ok(identity));
        }
        for (kind, data) in [("vxlan", "{}"), ("vxlan", ""), ("host-gw", "7"), ("", ""), ("x", "1")]
        {
            assert_eq!(announced(kind, data, data), [], "{kind} {data}");
        }
    }
}
