//! IP packets of a test pod, read and written: UDP, TCP as far as it is spoken here, and what routers say of packets
//! that they could not pass on. What is broken or none of ours is not read at all.

use std::net::IpAddr;

use etherparse::checksum::Sum16BitWords;
use etherparse::{
    Icmpv4Slice, Icmpv6Slice, IpNumber, IpSlice, LaxIpSlice, PacketBuilder, TcpHeader, TcpSlice,
    UdpSlice,
};

const HOPS: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) from: (IpAddr, u16),
    pub(crate) to: (IpAddr, u16),
}

impl Flow {
    pub(crate) fn back(self) -> Self {
        Self { from: self.to, to: self.from }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Udp(Vec<u8>),
    Tcp(Segment),
    /// A router, or the other host, could not pass on a packet of this flow of ours.
    Complaint(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) syn: bool,
    pub(crate) rst: bool,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn headers(is_v4: bool, is_tcp: bool) -> usize {
    (if is_v4 { 20 } else { 40 }) + if is_tcp { 20 } else { 8 }
}

/// A packet that must not be cut up.
pub(crate) fn write(flow: &Flow, content: &Content) -> Vec<u8> {
    let ip = match (flow.from.0, flow.to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), HOPS),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), HOPS),
        _ => return Vec::new(),
    };
    let (from, to) = (flow.from.1, flow.to.1);
    let mut packet = Vec::new();
    let written = match content {
        Content::Udp(data) => ip.udp(from, to).write(&mut packet, data),
        Content::Tcp(segment) => {
            let mut header = TcpHeader::new(from, to, segment.seq, u16::MAX);
            header.acknowledgment_number = segment.ack;
            header.syn = segment.syn;
            header.rst = segment.rst;
            header.psh = !segment.data.is_empty();
            header.ack = !segment.syn || segment.ack != 0;
            ip.tcp_header(header).write(&mut packet, &segment.data)
        }
        Content::Complaint(_) => return Vec::new(),
    };
    match written {
        Ok(()) => packet,
        // Larger than any packet: nothing is sent.
        Err(_) => Vec::new(),
    }
}

/// `None` for what is broken, in pieces, or something else.
pub(crate) fn read(packet: &[u8]) -> Option<(Flow, Content)> {
    let ip = IpSlice::from_slice(packet).ok()?;
    // Summed as it came: parsing drops the reserved bit. An intact header, with its checksum, sums up to nothing.
    let header_is_intact = ip.ipv4().is_none_or(|ip| {
        Sum16BitWords::new().add_slice(ip.header().slice()).ones_complement() == 0
    });
    if !header_is_intact || ip.is_fragmenting_payload() {
        return None;
    }
    let (from, to) = (ip.source_addr(), ip.destination_addr());
    let body = ip.payload().payload;
    match ip.payload_ip_number() {
        IpNumber::UDP => {
            let udp = UdpSlice::from_slice(body).ok()?;
            if udp.checksum() != 0 && !is_intact(from, to, IpNumber::UDP, udp.slice()) {
                return None;
            }
            Some((flow(from, to, body)?, Content::Udp(udp.payload().to_vec())))
        }
        IpNumber::TCP => {
            let tcp = TcpSlice::from_slice(body).ok()?;
            if !is_intact(from, to, IpNumber::TCP, body) {
                return None;
            }
            let (seq, ack) = (tcp.sequence_number(), tcp.acknowledgment_number());
            let (syn, rst, data) = (tcp.syn(), tcp.rst(), tcp.payload().to_vec());
            let segment = Segment { seq, ack, syn, rst, data };
            Some((flow(from, to, body)?, Content::Tcp(segment)))
        }
        IpNumber::ICMP | IpNumber::IPV6_ICMP => {
            let (words, quoted) = complaint(from, body)?;
            let (ip, _) = LaxIpSlice::from_slice(quoted).ok()?;
            let ours = flow(ip.source_addr(), ip.destination_addr(), ip.payload().payload)?;
            Some((ours, Content::Complaint(words)))
        }
        _ => None,
    }
}

/// What a router or a host says of a packet that it quotes.
fn complaint(from: IpAddr, body: &[u8]) -> Option<(String, &[u8])> {
    let (kind, code, [_, _, mtu @ ..], quoted) = if from.is_ipv4() {
        let icmp = Icmpv4Slice::from_slice(body).ok()?;
        (icmp.type_u8(), icmp.code_u8(), icmp.bytes5to8(), icmp.payload())
    } else {
        let icmp = Icmpv6Slice::from_slice(body).ok()?;
        (icmp.type_u8(), icmp.code_u8(), icmp.bytes5to8(), icmp.payload())
    };
    let words = match (from.is_ipv4(), kind, code) {
        (true, 3, 4) | (false, 2, _) => {
            let mtu = u16::from_be_bytes(mtu);
            format!("{from} says that it is too large: it can pass on {mtu} bytes")
        }
        (true, 3, 9 | 10 | 13) | (false, 1, 1 | 5 | 6) => {
            format!("{from} says that it is prohibited: a firewall rejects it")
        }
        (true, 3, _) | (false, 1, _) => {
            format!("{from} says that it cannot be reached (code {code})")
        }
        (true, 11, _) | (false, 3, _) => format!("{from} says that it went in circles"),
        _ => return None,
    };
    Some((words, quoted))
}

/// Of UDP and TCP, which begin with their ports.
fn flow(from: IpAddr, to: IpAddr, body: &[u8]) -> Option<Flow> {
    let &[a, b, c, d] = body.first_chunk()?;
    let (from_port, to_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    Some(Flow { from: (from, from_port), to: (to, to_port) })
}

/// Whether a datagram or a segment is whole: with the addresses, its protocol and its length, it sums up to nothing.
fn is_intact(from: IpAddr, to: IpAddr, protocol: IpNumber, body: &[u8]) -> bool {
    let sum = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            Sum16BitWords::new().add_4bytes(from.octets()).add_4bytes(to.octets())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            Sum16BitWords::new().add_16bytes(from.octets()).add_16bytes(to.octets())
        }
        _ => return false,
    };
    let length = u16::try_from(body.len()).unwrap_or_default();
    let sum = sum.add_2bytes([0, protocol.0]).add_2bytes(length.to_be_bytes());
    sum.add_slice(body).ones_complement() == 0
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use etherparse::Icmpv4Type;
    use etherparse::icmpv4::DestUnreachableHeader;
    use proptest::prelude::*;

    use super::*;

    fn flow(is_v4: bool) -> Flow {
        match is_v4 {
            true => Flow {
                from: (Ipv4Addr::new(10, 5, 1, 254).into(), 8477),
                to: (Ipv4Addr::new(10, 5, 2, 254).into(), 8476),
            },
            false => Flow {
                from: ("fd00::1".parse().expect("an address"), 8477),
                to: ("fd00::2".parse().expect("an address"), 8476),
            },
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same(
            is_v4: bool, data in proptest::collection::vec(any::<u8>(), 0..1400), seq: u32, ack in 1u32.., syn: bool, rst: bool
        ) {
            for content in [
                Content::Udp(data.clone()),
                Content::Tcp(Segment { seq, ack, syn, rst, data: data.clone() }),
            ] {
                let packet = write(&flow(is_v4), &content);
                let is_tcp = matches!(content, Content::Tcp(_));
                prop_assert_eq!(packet.len(), headers(is_v4, is_tcp) + data.len());
                prop_assert_eq!(read(&packet), Some((flow(is_v4), content)));
            }
        }

        #[test]
        fn nothing_that_comes_in_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn no_packet_with_a_wrong_bit_is_read() {
        let segment = Segment { seq: 1, ack: 2, data: vec![7; 40], ..Segment::default() };
        for (is_v4, content) in [true, false].into_iter().flat_map(|is_v4| {
            [Content::Udp(vec![7; 40]), Content::Tcp(segment.clone())].map(|it| (is_v4, it))
        }) {
            let whole = write(&flow(is_v4), &content);
            for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                // Neither hop limit, traffic class nor flow label is protected in IPv6.
                if !is_v4 && matches!(at, 0..=3 | 7) {
                    continue;
                }
                let mut packet = whole.clone();
                packet[at] ^= 1 << bit;
                assert_eq!(read(&packet), None, "bit {bit} of byte {at}, IPv4: {is_v4}");
            }
        }
    }

    #[test]
    fn a_router_that_cannot_pass_on_a_packet_is_understood() {
        let ours = write(&flow(true), &Content::Udp(vec![0; 1000]));
        let too_large = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1400 };
        let mut packet = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 5, 1, 254], HOPS)
            .icmpv4(Icmpv4Type::DestinationUnreachable(too_large))
            .write(&mut packet, &ours[..28])
            .expect("a packet");
        let Some((of, Content::Complaint(words))) = read(&packet) else { panic!("a complaint") };
        assert_eq!(of, flow(true));
        assert!(words.contains("10.0.0.1") && words.contains("1400 bytes"), "{words}");
    }
}
