//! ARP frames of Ethernet and IPv4.

use std::net::Ipv4Addr;

use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, Ethernet2Header, NetSlice, SlicedPacket,
};
use flannel_common::Mac;

/// Asks everybody for `address`. From no address it is the probe of RFC 5227, by which no neighbour learns anything wrong.
pub(crate) fn request(own: Mac, from: Option<Ipv4Addr>, address: Ipv4Addr) -> Vec<u8> {
    let arp = ArpEthIpv4Packet {
        operation: ArpOperation::REQUEST,
        sender_mac: own.0,
        sender_ipv4: from.unwrap_or(Ipv4Addr::UNSPECIFIED).octets(),
        target_mac: [0; 6],
        target_ipv4: address.octets(),
    };
    let header =
        Ethernet2Header { source: own.0, destination: [0xff; 6], ether_type: EtherType::ARP };
    [&header.to_bytes()[..], &arp.to_bytes()].concat()
}

/// The sender of a frame that says of itself to have `address`, whether it asks or answers.
pub(crate) fn claimant(frame: &[u8], address: Ipv4Addr) -> Option<Mac> {
    let Some(NetSlice::Arp(arp)) = SlicedPacket::from_ethernet(frame).ok()?.net else {
        return None;
    };
    let arp = arp.to_packet().try_eth_ipv4().ok()?;
    (arp.sender_ipv4 == address.octets()).then_some(Mac(arp.sender_mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_claims_the_address_is_found_and_other_frames_say_nothing() {
        let (own, other) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let address = Ipv4Addr::new(192, 0, 2, 7);
        let asked = request(own, None, address);
        assert_eq!(asked.len(), 14 + 28);
        assert_eq!(claimant(&asked, address), None, "who asks has no address");
        let mut reply = request(other, Some(address), Ipv4Addr::UNSPECIFIED);
        assert_eq!(claimant(&reply, address), Some(other));
        assert_eq!(claimant(&reply, Ipv4Addr::new(192, 0, 2, 8)), None);
        for length in 0..32 {
            assert_eq!(claimant(&reply[..length], address), None, "{length}");
        }
        reply[12] = 0x86;
        assert_eq!(claimant(&reply, address), None, "it is not ARP");
    }
}
