//! The parts of an inner packet that are needed to route, split and join it.

use std::net::IpAddr;

use crate::checksum::{self, Sum};

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

/// IP header of a complete packet: nothing here points outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpHeader {
    pub(crate) v6: bool,
    /// Length of the IP header alone; the protocol's header follows.
    pub(crate) len: usize,
    pub(crate) total: usize,
    /// TCP and UDP only where their complete header follows at once: not in later fragments.
    pub(crate) protocol: u8,
    /// Whether it is part of a larger packet that was cut.
    pub(crate) fragment: bool,
    pub(crate) src: u128,
    pub(crate) dst: u128,
}

impl IpHeader {
    pub(crate) fn read(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::read_v4(packet),
            6 => Self::read_v6(packet),
            _ => None,
        }
    }

    fn read_v4(packet: &[u8]) -> Option<Self> {
        let header = packet.first_chunk::<20>()?;
        let len = usize::from(header[0] & 0xf) * 4;
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if len < 20 || total < len || total > packet.len() {
            return None;
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let (words, _) = header.as_chunks();
        let [src, dst] = [words[3], words[4]].map(|word| u32::from_be_bytes(word).into());
        Some(Self { v6: false, len, total, protocol: header[9], fragment, src, dst })
    }

    fn read_v6(packet: &[u8]) -> Option<Self> {
        let header = packet.first_chunk::<40>()?;
        let total = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
        if total > packet.len() {
            return None;
        }
        let (addresses, _) = header[8..].as_chunks();
        let [src, dst] = [addresses[0], addresses[1]].map(u128::from_be_bytes);
        let protocol = header[6];
        // The fragment header, like any other, is not looked behind.
        Some(Self { v6: true, len: 40, total, protocol, fragment: protocol == 44, src, dst })
    }

    pub(crate) fn source(&self) -> IpAddr {
        self.ip(self.src)
    }

    pub(crate) fn destination(&self) -> IpAddr {
        self.ip(self.dst)
    }

    fn ip(&self, address: u128) -> IpAddr {
        if self.v6 { IpAddr::V6(address.into()) } else { IpAddr::V4((address as u32).into()) }
    }

    /// Bytes of both addresses, as checksums cover them.
    pub(crate) fn addresses<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        if self.v6 { &packet[8..40] } else { &packet[12..20] }
    }
}

/// Decrements the TTL or hop limit. Returns false if nothing would be left, and then nothing is changed.
pub(crate) fn age(packet: &mut [u8], v6: bool) -> bool {
    if v6 {
        let Some(limit) = packet.get_mut(7).filter(|limit| **limit > 1) else { return false };
        *limit -= 1;
        return true;
    }
    let Some(header) = packet.first_chunk_mut::<20>().filter(|header| header[8] > 1) else {
        return false;
    };
    let before = [header[8], header[9]];
    header[8] -= 1;
    let sum = checksum::corrected([header[10], header[11]], before, [header[8], header[9]]);
    header[10..12].copy_from_slice(&sum);
    true
}

/// Writes the length of a packet into its IP header, and the checksum that follows from it.
pub(crate) fn set_total(ip: &mut [u8], v6: bool, total: usize) {
    if v6 {
        return ip[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
    }
    ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    ip[10..12].fill(0);
    let sum = Sum::default().bytes(ip).checksum();
    ip[10..12].copy_from_slice(&sum);
}

/// Completes a checksum that the kernel has left to us, from `start` to the end of the packet.
pub(crate) fn complete_checksum(packet: &mut [u8], start: usize, offset: usize, udp: bool) -> bool {
    let Some(covered) = packet.get_mut(start..) else { return false };
    if covered.len() < offset + 2 {
        return false;
    }
    // The field holds the sum of the pseudo header, so it is summed like the rest.
    let sum = Sum::default().bytes(covered);
    let sum = if udp { sum.udp_checksum() } else { sum.checksum() };
    covered[offset..offset + 2].copy_from_slice(&sum);
    true
}

pub(crate) fn sequence(tcp: &[u8]) -> u32 {
    u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])
}

/// Length of a complete TCP header that is followed by `packet`'s payload.
pub(crate) fn tcp_header_len(segment: &[u8]) -> Option<usize> {
    let len = usize::from(segment.get(12)? >> 4) * 4;
    (20..=segment.len()).contains(&len).then_some(len)
}
