//! Neighbour solicitations and advertisements of IPv6 (RFC 4861) as Ethernet frames.

use std::net::Ipv6Addr;

use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice};
use etherparse::{Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use flannel_common::Mac;
use libc::sock_filter;

use crate::instruction;

const ETHERNET: usize = 14;
const IPV6: usize = 40;
const ICMPV6: u8 = 58;
/// A packet that came through a router has less.
const HOP_LIMIT: u8 = 255;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;

/// Asks whoever has `address`. From no address it is a node's own question before it uses an address (RFC 4862), which
/// makes another one that asks the same at that moment give the address up.
pub(crate) fn solicitation(own: Mac, from: Option<Ipv6Addr>, address: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = address.octets();
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c];
    let mut payload = address.octets().to_vec();
    if from.is_some() {
        payload.extend([SOURCE_LINK_ADDRESS, 1]);
        payload.extend(own.0);
    }
    let from = from.unwrap_or(Ipv6Addr::UNSPECIFIED).octets();
    let mut frame = Vec::new();
    // It fails for payloads of 64 KiB alone.
    let _ = PacketBuilder::ethernet2(own.0, [0x33, 0x33, 0xff, a, b, c])
        .ipv6(from, group, HOP_LIMIT)
        .icmpv6(Icmpv6Type::NeighborSolicitation)
        .write(&mut frame, &payload);
    frame
}

/// The machine that a frame advertises `address` for.
pub(crate) fn advertiser(frame: &[u8], address: Ipv6Addr) -> Option<Mac> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(message))) =
        (packet.net, packet.transport)
    else {
        return None;
    };
    let Icmpv6PayloadSlice::NeighborAdvertisement(advertisement) = message.payload_slice().ok()?
    else {
        return None;
    };
    if ip.header().hop_limit() != HOP_LIMIT || advertisement.target_address() != address {
        return None;
    }
    let named = advertisement.options_iterator().flatten().find_map(|option| match option {
        NdpOptionSlice::TargetLinkLayerAddress(it) => Mac::from_slice(it.link_layer_address()),
        _ => None,
    });
    named.or_else(|| Mac::from_slice(frame.get(6..12)?))
}

/// The kernel's filter for advertisements: a busy link would fill the socket with everything else.
pub(crate) fn only_advertisements() -> [sock_filter; 6] {
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const ACCEPT: u32 = libc::BPF_RET | libc::BPF_K;
    [
        instruction(LOAD_BYTE, (ETHERNET + 6) as u32, 0, 0),
        instruction(IF_EQUAL, ICMPV6.into(), 0, 3),
        instruction(LOAD_BYTE, (ETHERNET + IPV6) as u32, 0, 0),
        instruction(IF_EQUAL, ADVERTISEMENT.into(), 0, 1),
        instruction(ACCEPT, u16::MAX.into(), 0, 0),
        instruction(ACCEPT, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: usize = 24;
    const TARGET_LINK_ADDRESS: u8 = 2;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn address() -> Ipv6Addr {
        "fd00:100::7".parse().expect("an address")
    }

    /// As a machine answers, with these options.
    fn advertisement(options: &[u8]) -> Vec<u8> {
        let mut frame = solicitation(OTHER, None, address());
        frame[ETHERNET + IPV6] = ADVERTISEMENT;
        frame[ETHERNET + 5] = (MESSAGE + options.len()) as u8;
        frame.extend(options);
        frame
    }

    #[test]
    fn whoever_advertises_the_address_is_found_and_other_frames_say_nothing() {
        let asked = solicitation(OWN, None, address());
        assert_eq!(asked.len(), ETHERNET + IPV6 + MESSAGE);
        assert_eq!(asked[..6], [0x33, 0x33, 0xff, 0, 0, 7]);
        assert_eq!(advertiser(&asked, address()), None, "a question");
        let plain = advertisement(&[]);
        assert_eq!(advertiser(&plain, address()), Some(OTHER));
        assert_eq!(advertiser(&plain, "fd00:100::8".parse().expect("an address")), None);
        for length in 0..plain.len() {
            assert_eq!(advertiser(&plain[..length], address()), None, "{length}");
        }
        let mut routed = plain.clone();
        routed[ETHERNET + 7] = 64;
        assert_eq!(advertiser(&routed, address()), None, "it came through a router");
    }

    #[test]
    fn the_link_address_that_an_advertisement_names_counts_before_the_frames() {
        let named = [TARGET_LINK_ADDRESS, 1, 2, 0, 0, 0, 0, 9];
        assert_eq!(advertiser(&advertisement(&named), address()), Some(Mac([2, 0, 0, 0, 0, 9])));
        let second = [&[14, 1, 0, 0, 0, 0, 0, 0][..], &named].concat();
        assert_eq!(advertiser(&advertisement(&second), address()), Some(Mac([2, 0, 0, 0, 0, 9])));
        // Whatever anybody writes there ends.
        for options in [&[TARGET_LINK_ADDRESS, 0][..], &[TARGET_LINK_ADDRESS, 200, 1], &[7]] {
            assert_eq!(advertiser(&advertisement(options), address()), Some(OTHER), "{options:?}");
        }
    }

    #[test]
    fn the_checksum_of_a_solicitation_is_right() {
        let from: Ipv6Addr = "fe80::1".parse().expect("an address");
        let frame = solicitation(OWN, Some(from), address());
        let packet = &frame[ETHERNET..];
        let to: [u8; 16] = packet[24..40].try_into().expect("an address");
        let message = etherparse::Icmpv6Slice::from_slice(&packet[IPV6..]).expect("a message");
        assert!(message.is_checksum_valid(from.octets(), to));
        assert_eq!(usize::from(packet[5]), packet.len() - IPV6);
    }
}
