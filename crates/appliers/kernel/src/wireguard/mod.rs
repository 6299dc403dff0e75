//! WireGuard in the kernel: keys, port and peers of a device go over generic netlink, which this module implements. The
//! kernel sends no notification when they change, so they are read every second.

mod messages;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use flannel_netlink::{Connection, NetlinkError, Protocol, RawRequest, generic};
use ipnet::IpNet;

use flannel_common::PublicKey;
use flannel_entries::kernel::{WireguardIdentity, WireguardPeer};
pub(crate) use messages::{ObservedDevice, ObservedPeer};

impl ObservedDevice {
    pub(crate) fn is(&self, wanted: &WireguardIdentity) -> bool {
        self.private_key.as_ref() == Some(&wanted.private_key)
            && self.port == wanted.port
            && self.fwmark == 0
    }
}

/// Validity of a session after its handshake. While it is valid, the kernel knows the peer's current address.
const SESSION: Duration = Duration::from_secs(180);

impl ObservedPeer {
    /// Whether the peer is as wanted. `now` is the time since 1970.
    pub(crate) fn is(&self, wanted: &WireguardPeer, now: Duration) -> bool {
        let allowed = |net: &IpNet| self.allowed.contains(net);
        let moved = || {
            let usable =
                |at: SocketAddr| wanted.any_family || at.is_ipv4() == wanted.endpoint.is_ipv4();
            self.endpoint.is_some_and(usable)
                && self.last_handshake.is_some_and(|then| now < then + SESSION)
        };
        self.preshared_key == wanted.preshared_key
            && self.keepalive == wanted.keepalive
            && self.allowed.len() == wanted.allowed.len()
            && wanted.allowed.iter().all(allowed)
            && (self.endpoint == Some(wanted.endpoint) || moved())
    }
}

/// Whether the kernel has WireGuard, or else why not. It loads its module if it has one.
pub fn has_wireguard() -> io::Result<Result<(), NetlinkError>> {
    Ok(Wireguard::open()?.map(|_| ()))
}

pub(crate) struct Wireguard {
    connection: Connection,
    family: u16,
}

pub(crate) enum Change<'a> {
    Identity(u32, &'a WireguardIdentity),
    Put(u32, &'a WireguardPeer),
    /// Adds or changes a peer, and begins a session with it at once.
    PutAndGreet(u32, &'a WireguardPeer),
    Remove(u32, PublicKey),
}

impl Wireguard {
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

    /// Makes all changes in order, going on past those that fail.
    pub(crate) fn apply<'a>(
        &mut self,
        changes: impl IntoIterator<Item = Change<'a>>,
        failed: impl FnMut(usize, NetlinkError),
    ) -> io::Result<()> {
        let family = self.family;
        let request = |change| -> RawRequest {
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
    use flannel_common::{IfName, PresharedKey};

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
            let found = at(endpoint, handshake).is(&peer(any_family), now);
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
            assert!(observed.is(&peer(false), now));
            alter(&mut observed);
            assert!(!observed.is(&peer(false), now), "{observed:?}");
        }
    }
}
