//! ICMP errors to the senders of packets that are dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flannel_entries::tunnel::OwnAddresses;

use crate::checksum::Sum;
use crate::packet::{self, IpHeader};

/// TTL of errors, the same as the Go flannel's.
const TTL: u8 = 8;
/// Largest ICMPv6 error, quotation included: what every path carries.
const MAX_V6_ERROR: usize = 1280;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// No peer has the destination.
    NoRoute,
    /// The TTL is used up.
    Expired,
    /// The packet is longer than this MTU.
    TooBig(u16),
}

/// Appends an error to `to`; nothing where none is due: about errors, about later fragments, to senders that are not
/// single hosts, or where we have no address of the family.
pub(crate) fn answer(
    own: OwnAddresses,
    ip: &IpHeader,
    packet: &[u8],
    problem: Problem,
    to: &mut Vec<u8>,
) -> bool {
    match (ip.v6, own.v4, own.v6) {
        (false, Some(own), _) => answer_v4(own, ip, packet, problem, to),
        (true, _, Some(own)) => answer_v6(own, ip, packet, problem, to),
        _ => false,
    }
}

fn answer_v4(
    own: Ipv4Addr,
    ip: &IpHeader,
    packet: &[u8],
    problem: Problem,
    to: &mut Vec<u8>,
) -> bool {
    let later_fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff != 0;
    let IpAddr::V4(source) = ip.source() else { return false };
    let IpAddr::V4(destination) = ip.destination() else { return false };
    let single = |ip: Ipv4Addr| !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast());
    // A ping is answered as well; only errors about errors are not sent.
    let about_error = ip.protocol == packet::ICMP
        && packet.get(ip.len).is_none_or(|kind| !matches!(kind, 0 | 8 | 13..=18));
    if later_fragment || about_error || !single(source) || !single(destination) {
        return false;
    }
    let quote = &packet[..ip.total.min(ip.len + 8)];
    let (kind, code, mtu) = match problem {
        Problem::NoRoute => (3, 0, 0),
        Problem::TooBig(mtu) => (3, 4, mtu),
        Problem::Expired => (11, 0, 0),
    };
    let total = (20 + 8 + quote.len()) as u16;
    let start = to.len();
    to.extend_from_slice(&[0x45, 0]);
    to.extend_from_slice(&total.to_be_bytes());
    to.extend_from_slice(&[0, 0, 0, 0, TTL, packet::ICMP, 0, 0]);
    to.extend_from_slice(&own.octets());
    to.extend_from_slice(&source.octets());
    let sum = Sum::default().bytes(&to[start..]).checksum();
    to[start + 10..start + 12].copy_from_slice(&sum);
    let body = to.len();
    to.extend_from_slice(&[kind, code, 0, 0, 0, 0]);
    to.extend_from_slice(&mtu.to_be_bytes());
    to.extend_from_slice(quote);
    let sum = Sum::default().bytes(&to[body..]).checksum();
    to[body + 2..body + 4].copy_from_slice(&sum);
    true
}

fn answer_v6(
    own: Ipv6Addr,
    ip: &IpHeader,
    packet: &[u8],
    problem: Problem,
    to: &mut Vec<u8>,
) -> bool {
    let IpAddr::V6(source) = ip.source() else { return false };
    let IpAddr::V6(destination) = ip.destination() else { return false };
    // Errors are below 128; errors about errors are not sent.
    let about_error =
        ip.protocol == packet::ICMPV6 && packet.get(40).is_none_or(|kind| *kind < 128);
    // Path MTU discovery works for groups too.
    let to_group = destination.is_multicast() && !matches!(problem, Problem::TooBig(_));
    if about_error || to_group || source.is_unspecified() || source.is_multicast() {
        return false;
    }
    let quote = &packet[..ip.total.min(MAX_V6_ERROR - 48)];
    let (kind, code, mtu) = match problem {
        Problem::NoRoute => (1, 0, 0),
        Problem::TooBig(mtu) => (2, 0, mtu),
        Problem::Expired => (3, 0, 0),
    };
    let length = 8 + quote.len();
    to.extend_from_slice(&[0x60, 0, 0, 0]);
    to.extend_from_slice(&(length as u16).to_be_bytes());
    to.extend_from_slice(&[packet::ICMPV6, 64]);
    let addresses = to.len();
    to.extend_from_slice(&own.octets());
    to.extend_from_slice(&source.octets());
    let body = to.len();
    to.extend_from_slice(&[kind, code, 0, 0]);
    to.extend_from_slice(&u32::from(mtu).to_be_bytes());
    to.extend_from_slice(quote);
    let sum = Sum::pseudo_header(&to[addresses..body], packet::ICMPV6, length).bytes(&to[body..]);
    to[body + 2..body + 4].copy_from_slice(&sum.checksum());
    true
}
