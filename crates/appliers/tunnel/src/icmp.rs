//! ICMP errors to the senders of packets that are dropped.

use std::net::IpAddr;

use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4, icmpv6};
use flannel_entries::tunnel::OwnAddresses;

use crate::packet::{self, IpHeader};

/// TTL of errors, the same as the Go flannel's.
const TTL: u8 = 8;
/// Largest ICMPv6 error, quotation included: what every path carries.
const MAX_V6_ERROR: usize = 1280;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    NoRoute,
    Expired,
    /// The packet is longer than this MTU.
    TooBig(u16),
}

/// Appends an error to `to`; nothing where none is due, or where we have no address of the family.
pub(crate) fn answer(
    own: OwnAddresses,
    ip: &IpHeader,
    packet: &[u8],
    problem: Problem,
    to: &mut Vec<u8>,
) -> bool {
    match (ip.source(), own) {
        (IpAddr::V4(source), OwnAddresses { v4: Some(own), .. }) if is_due_v4(ip, packet) => {
            use icmpv4::{DestUnreachableHeader as Unreachable, TimeExceededCode};
            let kind = match problem {
                Problem::NoRoute => Icmpv4Type::DestinationUnreachable(Unreachable::Network),
                Problem::TooBig(next_hop_mtu) => {
                    Icmpv4Type::DestinationUnreachable(Unreachable::FragmentationNeeded {
                        next_hop_mtu,
                    })
                }
                Problem::Expired => {
                    Icmpv4Type::TimeExceeded(TimeExceededCode::TtlExceededInTransit)
                }
            };
            let quote = &packet[..ip.total.min(ip.len + 8)];
            let error = PacketBuilder::ipv4(own.octets(), source.octets(), TTL).icmpv4(kind);
            error.write(to, quote).is_ok()
        }
        (IpAddr::V6(source), OwnAddresses { v6: Some(own), .. })
            if is_due_v6(ip, packet, problem) =>
        {
            use icmpv6::{DestUnreachableCode, TimeExceededCode};
            let kind = match problem {
                Problem::NoRoute => {
                    Icmpv6Type::DestinationUnreachable(DestUnreachableCode::NoRoute)
                }
                Problem::TooBig(mtu) => Icmpv6Type::PacketTooBig { mtu: mtu.into() },
                Problem::Expired => Icmpv6Type::TimeExceeded(TimeExceededCode::HopLimitExceeded),
            };
            let quote = &packet[..ip.total.min(MAX_V6_ERROR - 48)];
            let error = PacketBuilder::ipv6(own.octets(), source.octets(), 64).icmpv6(kind);
            error.write(to, quote).is_ok()
        }
        _ => false,
    }
}

/// No error is due about errors and later fragments, nor between others than single hosts.
fn is_due_v4(ip: &IpHeader, packet: &[u8]) -> bool {
    let is_later_fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff != 0;
    // A ping is answered as well; only errors about errors are not sent.
    let is_about_error = ip.protocol == packet::ICMP
        && packet.get(ip.len).is_none_or(|kind| !matches!(kind, 0 | 8 | 13..=18));
    let is_single = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    let between_hosts = is_single(ip.source()) && is_single(ip.destination());
    between_hosts && !is_later_fragment && !is_about_error
}

fn is_due_v6(ip: &IpHeader, packet: &[u8], problem: Problem) -> bool {
    // Errors are below 128; errors about errors are not sent.
    let is_about_error =
        ip.protocol == packet::ICMPV6 && packet.get(40).is_none_or(|kind| *kind < 128);
    // Path MTU discovery works for groups too.
    let to_group = ip.destination().is_multicast() && !matches!(problem, Problem::TooBig(_));
    let of_host = !ip.source().is_unspecified() && !ip.source().is_multicast();
    of_host && !to_group && !is_about_error
}
