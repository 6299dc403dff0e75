//! The header before every packet of a TUN device with offloads (`struct virtio_net_hdr`).

pub(crate) const LEN: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const NONE: u8 = 0;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
/// Flag beside the kind: the first segment carries the mark of a congestion window that shrank.
const ECN: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gso {
    None,
    Tcp,
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VnetHeader {
    pub(crate) gso: Gso,
    /// Payload of each packet that this one stands for.
    pub(crate) segment: u16,
    /// Length up to the end of the TCP or UDP header.
    pub(crate) header: u16,
    /// Where the checksum has to be completed from, and its offset from there.
    pub(crate) checksum: Option<(u16, u16)>,
}

impl VnetHeader {
    pub(crate) const PLAIN: Self = Self { gso: Gso::None, segment: 0, header: 0, checksum: None };

    /// Decodes a header; `None` for a kind of packet that we have not asked for.
    pub(crate) fn read(bytes: &[u8; LEN]) -> Option<Self> {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let gso = match bytes[1] & !ECN {
            NONE => Gso::None,
            TCP_V4 | TCP_V6 => Gso::Tcp,
            UDP => Gso::Udp,
            _ => return None,
        };
        let checksum = (bytes[0] & NEEDS_CHECKSUM != 0).then(|| (word(6), word(8)));
        Some(Self { gso, header: word(2), segment: word(4), checksum })
    }

    pub(crate) fn write(&self, v6: bool) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let mut put = |at: usize, word: u16| bytes[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        put(2, self.header);
        put(4, self.segment);
        if let Some((start, offset)) = self.checksum {
            put(6, start);
            put(8, offset);
            bytes[0] = NEEDS_CHECKSUM;
        }
        bytes[1] = match (self.gso, v6) {
            (Gso::None, _) => NONE,
            (Gso::Tcp, false) => TCP_V4,
            (Gso::Tcp, true) => TCP_V6,
            (Gso::Udp, _) => UDP,
        };
        bytes
    }
}
