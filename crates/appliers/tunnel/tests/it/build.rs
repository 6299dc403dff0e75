//! Packets as text books make them, by code that shares nothing with what is tested.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use flannel_entries::tunnel::{OwnAddresses, Peer};
use flannel_tunnel::testing::Pipeline;

pub(crate) const VNET: usize = 10;

/// The node under test has 10.244.1.0/24 and fd00:1::/64; its peer 10.244.2.0/24 and fd00:2::/64.
pub(crate) fn pipeline() -> Pipeline {
    Pipeline::new(own(), &peers())
}

pub(crate) fn own() -> OwnAddresses {
    OwnAddresses { v4: Some(Ipv4Addr::new(10, 244, 1, 0)), v6: Some("fd00:1::".parse().unwrap()) }
}

pub(crate) fn peers() -> Vec<Peer> {
    vec![
        Peer {
            subnet: "10.244.2.0/24".parse().unwrap(),
            endpoint: "192.168.100.2:8285".parse().unwrap(),
        },
        Peer {
            subnet: "fd00:2::/64".parse().unwrap(),
            endpoint: "[fd00:100::2]:8285".parse().unwrap(),
        },
        Peer {
            subnet: "10.244.3.0/24".parse().unwrap(),
            endpoint: "192.168.100.3:8285".parse().unwrap(),
        },
    ]
}

pub(crate) fn peer_address(v6: bool) -> SocketAddr {
    let address = if v6 { "[fd00:100::2]:8285" } else { "192.168.100.2:8285" };
    address.parse().unwrap()
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub ttl: u8,
    pub id: u16,
    pub dont_fragment: bool,
    pub transport: Transport,
    pub payload: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Tcp { ports: (u16, u16), sequence: u32, flags: u8, options: Vec<u8> },
    Udp { ports: (u16, u16) },
    Icmp,
}

impl Packet {
    /// From a pod of ours to one of the peer.
    pub(crate) fn out(v6: bool, transport: Transport, payload: Vec<u8>) -> Self {
        let (src, dst): (IpAddr, IpAddr) = if v6 {
            (
                Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 5).into(),
                Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 6).into(),
            )
        } else {
            (Ipv4Addr::new(10, 244, 1, 5).into(), Ipv4Addr::new(10, 244, 2, 6).into())
        };
        Self { src, dst, ttl: 63, id: 1000, dont_fragment: true, transport, payload }
    }

    /// The other way.
    pub(crate) fn back(v6: bool, transport: Transport, payload: Vec<u8>) -> Self {
        let out = Self::out(v6, transport, payload);
        Self { src: out.dst, dst: out.src, ..out }
    }

    fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp { .. } => 6,
            Transport::Udp { .. } => 17,
            Transport::Icmp if self.src.is_ipv6() => 58,
            Transport::Icmp => 1,
        }
    }

    pub(crate) fn transport_header(&self) -> Vec<u8> {
        match &self.transport {
            Transport::Tcp { ports, sequence, flags, options } => {
                assert_eq!(options.len() % 4, 0);
                let mut header = Vec::new();
                header.extend_from_slice(&ports.0.to_be_bytes());
                header.extend_from_slice(&ports.1.to_be_bytes());
                header.extend_from_slice(&sequence.to_be_bytes());
                header.extend_from_slice(&77_u32.to_be_bytes());
                header.push(((5 + options.len() / 4) as u8) << 4);
                header.push(*flags);
                header.extend_from_slice(&[2, 0, 0, 0, 0, 0]);
                header.extend_from_slice(options);
                header
            }
            Transport::Udp { ports } => {
                let mut header = Vec::new();
                header.extend_from_slice(&ports.0.to_be_bytes());
                header.extend_from_slice(&ports.1.to_be_bytes());
                header.extend_from_slice(&((8 + self.payload.len()) as u16).to_be_bytes());
                header.extend_from_slice(&[0, 0]);
                header
            }
            Transport::Icmp => vec![if self.src.is_ipv6() { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 1],
        }
    }

    /// Whole, with every checksum.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut transport = self.transport_header();
        let header = transport.len();
        transport.extend_from_slice(&self.payload);
        let at = match self.transport {
            Transport::Tcp { .. } => 16,
            Transport::Udp { .. } => 6,
            Transport::Icmp => 2,
        };
        assert!(header >= 8);
        let mut covered = self.pseudo_header(transport.len());
        if matches!(self.transport, Transport::Icmp) && self.src.is_ipv4() {
            covered.clear();
        }
        covered.extend_from_slice(&transport);
        let mut sum = checksum(&covered);
        if matches!(self.transport, Transport::Udp { .. }) && sum == [0, 0] {
            sum = [0xff, 0xff];
        }
        transport[at..at + 2].copy_from_slice(&sum);
        let mut packet = self.ip_header(transport.len());
        packet.extend_from_slice(&transport);
        packet
    }

    pub(crate) fn pseudo_header(&self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes.extend_from_slice(&src.octets());
                bytes.extend_from_slice(&dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                bytes.extend_from_slice(&src.octets());
                bytes.extend_from_slice(&dst.octets());
            }
            _ => panic!("families differ"),
        }
        bytes.extend_from_slice(&(length as u32).to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 0, self.protocol()]);
        bytes
    }

    fn ip_header(&self, length: usize) -> Vec<u8> {
        let mut header = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                header.extend_from_slice(&[0x45, 0]);
                header.extend_from_slice(&((20 + length) as u16).to_be_bytes());
                header.extend_from_slice(&self.id.to_be_bytes());
                header.extend_from_slice(&[if self.dont_fragment { 0x40 } else { 0 }, 0]);
                header.extend_from_slice(&[self.ttl, self.protocol(), 0, 0]);
                header.extend_from_slice(&src.octets());
                header.extend_from_slice(&dst.octets());
                let sum = checksum(&header);
                header[10..12].copy_from_slice(&sum);
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                header.extend_from_slice(&[0x60, 0, 0, 0]);
                header.extend_from_slice(&(length as u16).to_be_bytes());
                header.extend_from_slice(&[self.protocol(), self.ttl]);
                header.extend_from_slice(&src.octets());
                header.extend_from_slice(&dst.octets());
            }
            _ => panic!("families differ"),
        }
        header
    }

    /// As the device hands it over where the kernel leaves cutting and checksums to us.
    pub(crate) fn large(&self, segment: usize) -> Vec<u8> {
        let mut packet = self.bytes();
        let ip = if self.src.is_ipv6() { 40 } else { 20 };
        let header = self.transport_header().len();
        let (kind, at) = match self.transport {
            Transport::Tcp { .. } if self.src.is_ipv6() => (4, 16),
            Transport::Tcp { .. } => (1, 16),
            Transport::Udp { .. } => (5, 6),
            Transport::Icmp => panic!("ICMP is not cut"),
        };
        let pseudo = checksum(&self.pseudo_header(packet.len() - ip));
        packet[ip + at] = !pseudo[0];
        packet[ip + at + 1] = !pseudo[1];
        let mut bytes = vnet(1, kind, ip + header, segment, ip, at);
        bytes.extend_from_slice(&packet);
        bytes
    }

    /// As the device hands over what needs nothing more.
    pub(crate) fn plain(&self) -> Vec<u8> {
        [vnet(0, 0, 0, 0, 0, 0), self.bytes()].concat()
    }
}

pub(crate) fn vnet(
    flags: u8,
    kind: u8,
    header: usize,
    segment: usize,
    start: usize,
    offset: usize,
) -> Vec<u8> {
    let mut bytes = vec![flags, kind];
    for word in [header, segment, start, offset] {
        bytes.extend_from_slice(&(word as u16).to_ne_bytes());
    }
    bytes
}

/// RFC 1071, word by word.
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
