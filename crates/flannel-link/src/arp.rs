//! ARP frames of Ethernet and IPv4.

use std::net::Ipv4Addr;

use flannel_netlink::Mac;

const ETHER_TYPE: [u8; 2] = (libc::ETH_P_ARP as u16).to_be_bytes();
/// Ethernet and IPv4, with addresses of six and four bytes.
const ETHERNET_AND_IPV4: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];

/// Asks everybody for `address`. From no address it is the probe of RFC 5227, by which no neighbour learns anything wrong.
pub(crate) fn request(own: Mac, from: Option<Ipv4Addr>, address: Ipv4Addr) -> Vec<u8> {
    let from = from.unwrap_or(Ipv4Addr::UNSPECIFIED).octets();
    let parts: [&[u8]; 9] = [
        &[0xff; 6],
        &own.0,
        &ETHER_TYPE,
        &ETHERNET_AND_IPV4,
        &REQUEST,
        &own.0,
        &from,
        &[0; 6],
        &address.octets(),
    ];
    parts.concat()
}

/// The sender of a frame that says of itself to have `address`, whether it asks or answers.
pub(crate) fn claimant(frame: &[u8], address: Ipv4Addr) -> Option<Mac> {
    let arp = frame.get(12..)?.strip_prefix(&ETHER_TYPE)?;
    let says = arp.starts_with(&ETHERNET_AND_IPV4) && arp.get(14..18)? == address.octets();
    Mac::from_slice(arp.get(8..14)?).filter(|_| says)
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
