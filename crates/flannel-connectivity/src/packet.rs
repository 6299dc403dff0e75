//! IP packets of a test pod, read and written: UDP, TCP as far as it is spoken here, and what routers say of packets
//! that they could not pass on. What is broken or none of ours is not read at all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOPS: u8 = 64;

/// Who speaks to whom.
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

/// How many bytes headers take of a packet.
pub(crate) fn headers(is_v4: bool, is_tcp: bool) -> usize {
    (if is_v4 { 20 } else { 40 }) + if is_tcp { 20 } else { 8 }
}

/// A packet that must not be cut up.
pub(crate) fn write(flow: &Flow, content: &Content) -> Vec<u8> {
    let (protocol, mut body) = match content {
        Content::Udp(data) => (UDP, udp(flow, data)),
        Content::Tcp(segment) => (TCP, tcp(flow, segment)),
        Content::Complaint(_) => return Vec::new(),
    };
    let sum = transport_sum(flow.from.0, flow.to.0, protocol, &body);
    let at = if protocol == UDP { 6 } else { 16 };
    // To UDP, none at all is written as zero.
    let sum = if protocol == UDP && sum == 0 { 0xffff } else { sum };
    body[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    match (flow.from.0, flow.to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = (20 + body.len()) as u16;
            let mut packet = vec![0x45, 0];
            packet.extend(length.to_be_bytes());
            // No name is needed: it may not be cut up.
            packet.extend([0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let sum = !fold(add(0, &packet));
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            packet.extend(body);
            packet
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend((body.len() as u16).to_be_bytes());
            packet.extend([protocol, HOPS]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet.extend(body);
            packet
        }
        _ => Vec::new(),
    }
}

fn udp(flow: &Flow, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(8 + data.len());
    body.extend(flow.from.1.to_be_bytes());
    body.extend(flow.to.1.to_be_bytes());
    body.extend(((8 + data.len()) as u16).to_be_bytes());
    body.extend([0, 0]);
    body.extend(data);
    body
}

fn tcp(flow: &Flow, segment: &Segment) -> Vec<u8> {
    const ACK: u8 = 0x10;
    let is_first = segment.syn && segment.ack == 0;
    let flags = u8::from(segment.syn) << 1
        | u8::from(segment.rst) << 2
        | u8::from(!segment.data.is_empty()) << 3
        | if is_first { 0 } else { ACK };
    let mut body = Vec::with_capacity(20 + segment.data.len());
    body.extend(flow.from.1.to_be_bytes());
    body.extend(flow.to.1.to_be_bytes());
    body.extend(segment.seq.to_be_bytes());
    body.extend(segment.ack.to_be_bytes());
    body.extend([5 << 4, flags]);
    body.extend(u16::MAX.to_be_bytes());
    body.extend([0, 0, 0, 0]);
    body.extend(&segment.data);
    body
}

/// `None` for what is broken, in pieces, or something else.
pub(crate) fn read(packet: &[u8]) -> Option<(Flow, Content)> {
    let (from, to, protocol, body) = read_ip(packet)?;
    match protocol {
        UDP | TCP => {
            if transport_sum(from, to, protocol, body) != 0
                && !(protocol == UDP && body.get(6..8)? == [0, 0])
            {
                return None;
            }
            let flow = flow(from, to, body)?;
            match protocol {
                UDP => {
                    let length = usize::from(number(body, 4)?);
                    Some((flow, Content::Udp(body.get(8..length)?.to_vec())))
                }
                _ => Some((flow, Content::Tcp(read_tcp(body)?))),
            }
        }
        ICMP | ICMPV6 => {
            let (kind, code, rest) = (*body.first()?, *body.get(1)?, number(body, 6)?);
            let words = match (protocol, kind, code) {
                (ICMP, 3, 4) => {
                    format!("{from} says that it is too large: it can pass on {rest} bytes")
                }
                (ICMPV6, 2, _) => {
                    format!("{from} says that it is too large: it can pass on {rest} bytes")
                }
                (ICMP, 3, 9 | 10 | 13) | (ICMPV6, 1, 1 | 5 | 6) => {
                    format!("{from} says that it is prohibited: a firewall rejects it")
                }
                (ICMP, 3, _) | (ICMPV6, 1, _) => {
                    format!("{from} says that it cannot be reached (code {code})")
                }
                (ICMP, 11, _) | (ICMPV6, 3, _) => {
                    format!("{from} says that it went in circles")
                }
                _ => return None,
            };
            let (from, to, _, inner) = read_ip_beginning(body.get(8..)?)?;
            Some((flow(from, to, inner)?, Content::Complaint(words)))
        }
        _ => None,
    }
}

fn flow(from: IpAddr, to: IpAddr, body: &[u8]) -> Option<Flow> {
    Some(Flow { from: (from, number(body, 0)?), to: (to, number(body, 2)?) })
}

fn read_tcp(body: &[u8]) -> Option<Segment> {
    let word = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let (offset, flags) = (usize::from(*body.get(12)? >> 4) * 4, *body.get(13)?);
    Some(Segment {
        seq: word(4)?,
        ack: word(8)?,
        syn: flags & 2 != 0,
        rst: flags & 4 != 0,
        data: body.get(offset.max(20)..)?.to_vec(),
    })
}

/// A whole packet: addresses, protocol and what it carries.
fn read_ip(packet: &[u8]) -> Option<(IpAddr, IpAddr, u8, &[u8])> {
    let (from, to, protocol, _) = read_ip_beginning(packet)?;
    let body = if from.is_ipv4() {
        let header = usize::from(packet[0] & 15) * 4;
        let whole =
            number(packet, 6)? & 0x3fff == 0 && fold(add(0, packet.get(..header)?)) == 0xffff;
        packet.get(header..usize::from(number(packet, 2)?)).filter(|_| whole)?
    } else {
        packet.get(40..40 + usize::from(number(packet, 4)?))?
    };
    Some((from, to, protocol, body))
}

/// The same of one that may have been cut off.
fn read_ip_beginning(packet: &[u8]) -> Option<(IpAddr, IpAddr, u8, &[u8])> {
    match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let address = |at: usize| {
                let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
                Some(IpAddr::from(Ipv4Addr::from(octets)))
            };
            Some((address(12)?, address(16)?, *packet.get(9)?, packet.get(header.max(20)..)?))
        }
        6 => {
            let address = |at: usize| {
                let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
                Some(IpAddr::from(Ipv6Addr::from(octets)))
            };
            Some((address(8)?, address(24)?, *packet.get(6)?, packet.get(40..)?))
        }
        _ => None,
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The checksum to be written where it is zero, or zero where it is right.
fn transport_sum(from: IpAddr, to: IpAddr, protocol: u8, body: &[u8]) -> u16 {
    let address = |sum, ip| match ip {
        IpAddr::V4(ip) => add(sum, &ip.octets()),
        IpAddr::V6(ip) => add(sum, &ip.octets()),
    };
    let sum = address(address(0, from), to) + u64::from(protocol) + body.len() as u64;
    !fold(add(sum, body))
}

fn add(sum: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2).map(|pair| {
        u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]))
    });
    sum + words.sum::<u64>()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
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
        fn what_was_damaged_on_the_way_is_not_read(is_v4: bool, at in 0usize..60, bit in 0u8..8) {
            let content = Content::Udp(vec![7; 40]);
            let mut packet = write(&flow(is_v4), &content);
            packet[at] ^= 1 << bit;
            // Neither hop limit, traffic class nor flow label is protected in IPv6.
            prop_assume!(is_v4 || !matches!(at, 0..=3 | 7));
            prop_assert_ne!(read(&packet), Some((flow(is_v4), content)));
        }

        #[test]
        fn nothing_that_comes_in_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn a_router_that_cannot_pass_on_a_packet_is_understood() {
        let ours = write(&flow(true), &Content::Udp(vec![0; 1000]));
        let mut body = vec![3, 4, 0, 0, 0, 0, 5, 120];
        body.extend(&ours[..28]);
        let mut packet =
            vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, ICMP, 0, 0, 10, 0, 0, 1, 10, 5, 1, 254];
        let length = (packet.len() + body.len()) as u16;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        let sum = !fold(add(0, &packet));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(body);
        let Some((of, Content::Complaint(words))) = read(&packet) else { panic!("a complaint") };
        assert_eq!(of, flow(true));
        assert!(words.contains("10.0.0.1") && words.contains("1400 bytes"), "{words}");
    }
}
