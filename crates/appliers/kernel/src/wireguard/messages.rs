//! Messages to and from the kernel's WireGuard. Pure.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use flannel_netlink::{AttributeWriter, Attributes, RawRequest, generic};
use ipnet::IpNet;

use flannel_common::{PresharedKey, PrivateKey, PublicKey};
use flannel_entries::kernel::{WireguardIdentity, WireguardPeer};

pub(super) const FAMILY: &str = "wireguard";
const VERSION: u8 = 1;
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;

mod device {
    pub(super) const INDEX: u16 = 1;
    pub(super) const PRIVATE_KEY: u16 = 3;
    pub(super) const PORT: u16 = 6;
    pub(super) const FWMARK: u16 = 7;
    pub(super) const PEERS: u16 = 8;
}

mod peer {
    pub(super) const PUBLIC_KEY: u16 = 1;
    pub(super) const PRESHARED_KEY: u16 = 2;
    pub(super) const FLAGS: u16 = 3;
    pub(super) const ENDPOINT: u16 = 4;
    pub(super) const KEEPALIVE: u16 = 5;
    pub(super) const LAST_HANDSHAKE: u16 = 6;
    pub(super) const ALLOWED: u16 = 9;

    pub(super) const REMOVE: u32 = 1;
    pub(super) const REPLACE_ALLOWED: u32 = 2;
}

mod allowed {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const ADDRESS: u16 = 2;
    pub(super) const LENGTH: u16 = 3;
}

/// A preshared key of zeros means none.
const NO_KEY: [u8; 32] = [0; 32];

#[derive(Default)]
pub(crate) struct ObservedDevice {
    pub(crate) private_key: Option<PrivateKey>,
    pub(crate) port: u16,
    pub(crate) fwmark: u32,
    pub(crate) peers: Vec<ObservedPeer>,
}

#[derive(Debug)]
pub(crate) struct ObservedPeer {
    pub(crate) public_key: PublicKey,
    pub(crate) preshared_key: Option<PresharedKey>,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) keepalive: u16,
    /// Time since 1970; `None` if there was no handshake.
    pub(crate) last_handshake: Option<Duration>,
    pub(crate) allowed: Vec<IpNet>,
}

fn request(family: u16, command: u8, attributes: AttributeWriter) -> RawRequest {
    generic::request(family, command, VERSION, attributes)
}

pub(super) fn get(family: u16, index: u32) -> RawRequest {
    request(family, GET_DEVICE, AttributeWriter::default().ne32(device::INDEX, index))
}

pub(super) fn set_identity(family: u16, index: u32, identity: &WireguardIdentity) -> RawRequest {
    let attributes = AttributeWriter::default()
        .ne32(device::INDEX, index)
        .bytes(device::PRIVATE_KEY, identity.private_key.bytes())
        .ne16(device::PORT, identity.port)
        .ne32(device::FWMARK, 0);
    request(family, SET_DEVICE, attributes)
}

pub(super) fn put_peer(family: u16, index: u32, wanted: &WireguardPeer) -> RawRequest {
    let mut all = AttributeWriter::default();
    for net in &wanted.allowed {
        let family = if net.addr().is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let one = AttributeWriter::default().ne16(allowed::FAMILY, family as u16);
        let one = match net.network() {
            IpAddr::V4(ip) => one.bytes(allowed::ADDRESS, &ip.octets()),
            IpAddr::V6(ip) => one.bytes(allowed::ADDRESS, &ip.octets()),
        };
        all = all.nest(0, &one.bytes(allowed::LENGTH, &[net.prefix_len()]));
    }
    let preshared = wanted.preshared_key.as_ref().map_or(&NO_KEY, PresharedKey::bytes);
    let attributes = AttributeWriter::default()
        .bytes(peer::PUBLIC_KEY, &wanted.public_key.0)
        .bytes(peer::PRESHARED_KEY, preshared)
        .ne32(peer::FLAGS, peer::REPLACE_ALLOWED)
        .bytes(peer::ENDPOINT, &socket_address(wanted.endpoint))
        .ne16(peer::KEEPALIVE, wanted.keepalive)
        .nest(peer::ALLOWED, &all);
    one_peer(family, index, &attributes)
}

pub(super) fn remove_peer(family: u16, index: u32, key: PublicKey) -> RawRequest {
    let attributes =
        AttributeWriter::default().bytes(peer::PUBLIC_KEY, &key.0).ne32(peer::FLAGS, peer::REMOVE);
    one_peer(family, index, &attributes)
}

fn one_peer(family: u16, index: u32, attributes: &AttributeWriter) -> RawRequest {
    let peers = AttributeWriter::default().nest(0, attributes);
    let attributes = AttributeWriter::default().ne32(device::INDEX, index);
    request(family, SET_DEVICE, attributes.nest(device::PEERS, &peers))
}

/// Encodes an endpoint as `struct sockaddr_in` or `sockaddr_in6`.
fn socket_address(endpoint: SocketAddr) -> Vec<u8> {
    let port = endpoint.port().to_be_bytes();
    match endpoint.ip() {
        IpAddr::V4(ip) => {
            [&(libc::AF_INET as u16).to_ne_bytes()[..], &port, &ip.octets(), &[0; 8]].concat()
        }
        IpAddr::V6(ip) => {
            [&(libc::AF_INET6 as u16).to_ne_bytes()[..], &port, &[0; 4], &ip.octets(), &[0; 4]]
                .concat()
        }
    }
}

fn read_socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip: IpAddr = match family {
        libc::AF_INET => IpAddr::from(*bytes.get(4..)?.first_chunk::<4>()?),
        libc::AF_INET6 => Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

impl ObservedDevice {
    /// Adds one of the messages that describe a device; the next may continue in the middle of a peer.
    pub(super) fn add(&mut self, attributes: Attributes<'_>) {
        if let Some(key) = attributes.get(device::PRIVATE_KEY).and_then(key_bytes) {
            self.private_key = Some(PrivateKey::from_bytes(key)).filter(|_| key != NO_KEY);
        }
        if let Some(port) = attributes.ne16(device::PORT) {
            self.port = port;
        }
        if let Some(mark) = attributes.ne32(device::FWMARK) {
            self.fwmark = mark;
        }
        for (_, bytes) in attributes.nested(device::PEERS).unwrap_or_default().iter() {
            let Some(peer) = read_peer(Attributes(bytes)) else { continue };
            match self.peers.last_mut() {
                Some(last) if last.public_key == peer.public_key => {
                    last.allowed.extend(peer.allowed);
                }
                _ => self.peers.push(peer),
            }
        }
    }
}

fn read_peer(attributes: Attributes<'_>) -> Option<ObservedPeer> {
    let handshake = attributes.get(peer::LAST_HANDSHAKE).and_then(|bytes| bytes.first_chunk());
    let allowed = attributes.nested(peer::ALLOWED).unwrap_or_default();
    Some(ObservedPeer {
        public_key: PublicKey(key_bytes(attributes.get(peer::PUBLIC_KEY)?)?),
        preshared_key: attributes
            .get(peer::PRESHARED_KEY)
            .and_then(key_bytes)
            .filter(|key| *key != NO_KEY)
            .map(PresharedKey::from_bytes),
        endpoint: attributes.get(peer::ENDPOINT).and_then(read_socket_address),
        keepalive: attributes.ne16(peer::KEEPALIVE).unwrap_or(0),
        last_handshake: handshake
            .and_then(|bytes| u64::try_from(i64::from_ne_bytes(*bytes)).ok())
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        allowed: allowed.iter().filter_map(|(_, one)| read_allowed(Attributes(one))).collect(),
    })
}

fn read_allowed(attributes: Attributes<'_>) -> Option<IpNet> {
    let ip = flannel_netlink::ip(attributes.get(allowed::ADDRESS)?)?;
    IpNet::new(ip, *attributes.get(allowed::LENGTH)?.first()?).ok()
}

fn key_bytes(bytes: &[u8]) -> Option<[u8; 32]> {
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use flannel_common::IfName;

    fn wanted(endpoint: &str) -> WireguardPeer {
        WireguardPeer {
            link: IfName::new("flannel-wg").expect("a name"),
            public_key: PublicKey([1; 32]),
            preshared_key: Some(PresharedKey::from_bytes([2; 32])),
            endpoint: endpoint.parse().expect("an endpoint"),
            any_family: false,
            keepalive: 25,
            allowed: ["10.244.7.0/24", "fd00:244:0:7::/64"]
                .iter()
                .map(|net| net.parse().expect("a subnet"))
                .collect(),
        }
    }

    /// What is asked for has the form in which the kernel tells of it.
    fn observed(request: &RawRequest) -> ObservedDevice {
        let mut device = ObservedDevice::default();
        device.add(request.attributes.read());
        device
    }

    #[test]
    fn a_peer_that_is_written_is_read() {
        for endpoint in ["192.0.2.7:51820", "[2001:db8::7]:51821"] {
            let wanted = wanted(endpoint);
            let device = observed(&put_peer(30, 5, &wanted));
            let [peer] = device.peers.as_slice() else { panic!("{:?}", device.peers) };
            assert_eq!(peer.public_key, wanted.public_key);
            assert_eq!(peer.preshared_key, wanted.preshared_key);
            assert_eq!(peer.endpoint, Some(wanted.endpoint));
            assert_eq!((peer.keepalive, &peer.allowed), (25, &wanted.allowed));
        }
    }

    #[test]
    fn a_peer_without_a_preshared_key_takes_the_one_away_that_it_had() {
        let wanted = WireguardPeer { preshared_key: None, ..wanted("192.0.2.7:1") };
        let request = put_peer(30, 5, &wanted);
        let peers = request.attributes.read().nested(device::PEERS).expect("peers");
        let (_, one) = peers.iter().next().expect("a peer");
        assert_eq!(Attributes(one).get(peer::PRESHARED_KEY), Some(&NO_KEY[..]));
        assert_eq!(observed(&request).peers[0].preshared_key, None);
    }

    #[test]
    fn a_device_that_takes_several_messages_is_put_together() {
        let mut device = ObservedDevice::default();
        let identity = WireguardIdentity {
            link: IfName::new("flannel-wg").expect("a name"),
            private_key: PrivateKey::from_random([9; 32]),
            port: 51820,
        };
        device.add(set_identity(30, 5, &identity).attributes.read());
        let mut first = wanted("192.0.2.7:1");
        let rest = first.allowed.split_off(1);
        device.add(put_peer(30, 5, &first).attributes.read());
        device.add(put_peer(30, 5, &WireguardPeer { allowed: rest, ..first }).attributes.read());
        assert_eq!(device.private_key, Some(identity.private_key));
        assert_eq!((device.port, device.peers.len(), device.peers[0].allowed.len()), (51820, 1, 2));
    }

    proptest! {
        #[test]
        fn nonsense_is_read_without_a_panic(bytes: Vec<u8>) {
            let mut device = ObservedDevice::default();
            device.add(Attributes(&bytes));
            let _ = read_peer(Attributes(&bytes));
            let _ = read_socket_address(&bytes);
        }
    }
}
