//! WireGuard in the kernel. A device is made like any other; its key, its port and its peers go over
//! generic netlink, which is what this module knows.
//!
//! The kernel tells nobody when somebody changes them, so they are looked at every few seconds.

mod messages;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use flannel_netlink::generic::{self, GenericRequest};
use flannel_netlink::{Connection, NetlinkError, Protocol};
use ipnet::IpNet;

use crate::IfName;
pub use flannel_common::{InvalidKey, PresharedKey, PrivateKey, PublicKey};
pub(crate) use messages::{ObservedDevice, ObservedPeer};

/// What a device is known by: its key, and the port it hears peers on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardIdentity {
    pub link: IfName,
    pub private_key: PrivateKey,
    pub port: u16,
}

/// A node behind a device, and what of the pod network is behind that node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardPeer {
    pub link: IfName,
    pub public_key: PublicKey,
    pub preshared_key: Option<PresharedKey>,
    /// Where it is said to be. A peer that moves is followed by the kernel.
    pub endpoint: SocketAddr,
    /// It may move from one address family to the other.
    pub any_family: bool,
    /// In seconds; 0: not at all.
    pub keepalive: u16,
    pub allowed: Vec<IpNet>,
}

impl fmt::Display for WireguardIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, port) = (self.private_key.public(), self.port);
        write!(f, "wireguard key of {key} listen-port {port} dev {}", self.link)
    }
}

/// As `wg` would show it.
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

impl WireguardIdentity {
    pub(crate) fn is(&self, observed: &ObservedDevice) -> bool {
        observed.private_key.as_ref() == Some(&self.private_key)
            && observed.port == self.port
            && observed.fwmark == 0
    }
}

/// How long a session is valid after its handshake. While it is, the kernel knows the peer's current address.
const SESSION: Duration = Duration::from_secs(180);

impl WireguardPeer {
    /// `now`: since 1970.
    pub(crate) fn is(&self, observed: &ObservedPeer, now: Duration) -> bool {
        let allowed = |net: &IpNet| observed.allowed.contains(net);
        let moved = || {
            let known = |at: SocketAddr| self.any_family || at.is_ipv4() == self.endpoint.is_ipv4();
            observed.endpoint.is_some_and(known)
                && observed.last_handshake.is_some_and(|then| now < then + SESSION)
        };
        observed.preshared_key == self.preshared_key
            && observed.keepalive == self.keepalive
            && observed.allowed.len() == self.allowed.len()
            && self.allowed.iter().all(allowed)
            && (observed.endpoint == Some(self.endpoint) || moved())
    }
}

/// Whether the kernel speaks WireGuard, or else why not. It loads its module if it has one.
pub fn has_wireguard() -> io::Result<Result<(), NetlinkError>> {
    Ok(Wireguard::open()?.map(|_| ()))
}

/// A conversation with the kernel's WireGuard.
pub(crate) struct Wireguard {
    connection: Connection,
    family: u16,
}

/// One change to a device, which is known by its index.
pub(crate) enum Change<'a> {
    Identity(u32, &'a WireguardIdentity),
    Put(u32, &'a WireguardPeer),
    /// The same, and a session with it is begun at once.
    PutAndGreet(u32, &'a WireguardPeer),
    Remove(u32, PublicKey),
}

impl Wireguard {
    /// In the network namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Result<Self, NetlinkError>> {
        let mut connection = Connection::open(Protocol::Generic)?;
        let family = connection.generic_family(messages::FAMILY)?;
        Ok(family.map(|family| Self { connection, family }))
    }

    pub(crate) fn read(&mut self, index: u32) -> io::Result<Result<ObservedDevice, NetlinkError>> {
        let family = self.family;
        let parts = self.connection.ask_all(&messages::get(family, index), |message| {
            (message.kind == family).then(|| message.payload.to_vec())
        })?;
        Ok(parts.map(|parts| {
            let mut device = ObservedDevice::default();
            parts.iter().for_each(|part| device.add(generic::attributes(part)));
            device
        }))
    }

    /// Carries out all changes in order, going on past those that fail.
    pub(crate) fn apply<'a>(
        &mut self,
        changes: impl IntoIterator<Item = Change<'a>>,
        failed: impl FnMut(usize, NetlinkError),
    ) -> io::Result<()> {
        let family = self.family;
        let request = |change| -> GenericRequest {
            match change {
                Change::Identity(index, identity) => {
                    messages::set_identity(family, index, identity)
                }
                Change::Put(index, peer) => messages::put_peer(family, index, peer),
                // A newly set keepalive makes the kernel send a first packet.
                Change::PutAndGreet(index, peer) => {
                    let keepalive = peer.keepalive.max(1);
                    messages::put_peer(family, index, &WireguardPeer { keepalive, ..peer.clone() })
                }
                Change::Remove(index, key) => messages::remove_peer(family, index, key),
            }
        };
        self.connection.apply(changes.into_iter().map(request), failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(any_family: bool) -> WireguardPeer {
        WireguardPeer {
            link: IfName::new("flannel-wg").expect("a name"),
            public_key: PublicKey([1; 32]),
            preshared_key: None,
            endpoint: "192.0.2.7:51820".parse().expect("an endpoint"),
            any_family,
            keepalive: 0,
            allowed: vec!["10.244.7.0/24".parse().expect("a subnet")],
        }
    }

    fn at(endpoint: &str, handshake: Option<u64>) -> ObservedPeer {
        ObservedPeer {
            public_key: PublicKey([1; 32]),
            preshared_key: None,
            endpoint: endpoint.parse().ok(),
            keepalive: 0,
            last_handshake: handshake.map(Duration::from_secs),
            allowed: peer(false).allowed,
        }
    }

    #[test]
    fn a_peer_that_has_moved_is_left_where_it_is_while_its_session_is_good() {
        let now = Duration::from_secs(1000);
        for (endpoint, handshake, any_family, good) in [
            ("192.0.2.7:51820", None, false, true),
            ("192.0.2.99:4444", None, false, false),
            ("192.0.2.99:4444", Some(900), false, true),
            ("192.0.2.99:4444", Some(800), false, false),
            ("[2001:db8::7]:51820", Some(900), false, false),
            ("[2001:db8::7]:51820", Some(900), true, true),
            ("nowhere", Some(900), true, false),
        ] {
            let found = peer(any_family).is(&at(endpoint, handshake), now);
            assert_eq!(found, good, "{endpoint} {handshake:?} {any_family}");
        }
    }

    #[test]
    fn whatever_else_is_other_is_to_be_written() {
        let now = Duration::from_secs(1000);
        let alterations: [fn(&mut ObservedPeer); 5] = [
            |peer| peer.keepalive = 9,
            |peer| peer.preshared_key = Some(PresharedKey::from_bytes([1; 32])),
            |peer| peer.allowed.clear(),
            |peer| peer.allowed = vec!["10.244.8.0/24".parse().expect("a subnet")],
            |peer| peer.allowed.push("10.244.8.0/24".parse().expect("a subnet")),
        ];
        for alter in alterations {
            let mut observed = at("192.0.2.7:51820", Some(900));
            assert!(peer(false).is(&observed, now));
            alter(&mut observed);
            assert!(!peer(false).is(&observed, now), "{observed:?}");
        }
    }
}
