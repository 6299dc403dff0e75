//! Cuts one large packet of the kernel (TSO, USO) into the packets it stands for. Only headers are made: payload stays
//! where it was read.

use crate::checksum::Sum;
use crate::packet::{self, IpHeader};
use crate::vnet::{Gso, VnetHeader};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// How a large packet is cut. The packet has been checked, so cutting cannot fail.
pub(crate) struct SegmentPlan {
    ip: IpHeader,
    gso: Gso,
    /// Length of IP and TCP or UDP header.
    pub(crate) header: usize,
    size: usize,
}

pub(crate) struct Segment {
    /// Start of the payload, in the large packet.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) last: bool,
    index: usize,
}

impl SegmentPlan {
    /// Plans the cut; `None` if the packet is not what its header says.
    pub(crate) fn new(packet: &[u8], ip: IpHeader, vnet: &VnetHeader) -> Option<Self> {
        let transport = packet.get(ip.len..ip.total)?;
        let header = ip.len
            + match vnet.gso {
                Gso::Tcp if ip.protocol == packet::TCP => packet::tcp_header_len(transport)?,
                Gso::Udp if ip.protocol == packet::UDP && transport.len() >= 8 => 8,
                _ => return None,
            };
        let size = usize::from(vnet.segment);
        (size > 0 && !ip.fragment).then_some(Self { ip, gso: vnet.gso, header, size })
    }

    /// Length of every segment but the last, which may be shorter.
    pub(crate) fn packet_len(&self) -> usize {
        (self.header + self.size).min(self.ip.total)
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        let (header, size, total) = (self.header, self.size, self.ip.total);
        // Without payload there is still one packet.
        let count = (total - header).div_ceil(size).max(1);
        (0..count).map(move |index| {
            let start = header + index * size;
            Segment { index, start, end: (start + size).min(total), last: index + 1 == count }
        })
    }

    /// Writes the header of a segment, whose checksums cover `payload`.
    pub(crate) fn write_header(&self, large: &[u8], segment: &Segment, to: &mut [u8]) {
        let (header, payload) = (&large[..self.header], &large[segment.start..segment.end]);
        to.copy_from_slice(header);
        let (ip, transport) = to.split_at_mut(self.ip.len);
        let total = self.header + payload.len();
        if !self.ip.v6 {
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(segment.index as u16);
            ip[4..6].copy_from_slice(&id.to_be_bytes());
        }
        packet::set_total(ip, self.ip.v6, total);
        let length = total - self.ip.len;
        let (at, udp) = if self.gso == Gso::Tcp {
            let offset = (segment.index * self.size) as u32;
            let sequence = packet::sequence(transport);
            transport[4..8].copy_from_slice(&sequence.wrapping_add(offset).to_be_bytes());
            if !segment.last {
                transport[13] &= !(FIN | PSH);
            }
            if segment.index > 0 {
                transport[13] &= !CWR;
            }
            (16, false)
        } else {
            transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            (6, true)
        };
        transport[at..at + 2].fill(0);
        let sum = Sum::pseudo_header(self.ip.addresses(large), self.ip.protocol, length)
            .bytes(transport)
            .bytes(payload);
        let sum = if udp { sum.udp_checksum() } else { sum.checksum() };
        transport[at..at + 2].copy_from_slice(&sum);
    }
}
