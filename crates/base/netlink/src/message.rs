//! Netlink messages, to bytes and back. Pure.
//!
//! A message: length, kind, flags, sequence number, port (16 bytes), then its payload, padded to four
//! bytes. All numbers of the header are in the machine's order.

use std::io;

pub const HEADER_LEN: usize = 16;

pub(crate) const ERROR: u16 = 2;
pub(crate) const DONE: u16 = 3;

pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
pub(crate) const DUMP: u16 = 0x300;

/// One message as it stands in the receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// The port of whoever caused it: 0 is the kernel.
    pub port: u32,
    pub payload: &'a [u8],
}

pub fn messages(datagram: &[u8]) -> impl Iterator<Item = io::Result<Message<'_>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let header: &[u8; HEADER_LEN] = rest.first_chunk()?;
        let number = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let len = number(0) as usize;
        let Some(payload) = rest.get(HEADER_LEN..len) else {
            rest = &[];
            return Some(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message of the kernel is cut short",
            )));
        };
        let message = Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: number(8),
            port: number(12),
            payload,
        };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(message))
    })
}

/// Appends a message whose payload `write` appends. Returns where it begins.
pub(crate) fn append(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    write: impl FnOnce(&mut Vec<u8>),
) -> usize {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    write(bytes);
    let len = (bytes.len() - start) as u32;
    bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    start
}

/// Asks that the message that begins here be acknowledged.
pub(crate) fn ask_for_acknowledgement(bytes: &mut [u8], start: usize) {
    let flags = start + 6;
    let value = u16::from_ne_bytes([bytes[flags], bytes[flags + 1]]) | ACK;
    bytes[flags..flags + 2].copy_from_slice(&value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        append(&mut bytes, 20, 0, 7, |bytes| bytes.extend_from_slice(b"abcde"));
        let second = append(&mut bytes, 21, DUMP, 8, |_| ());
        ask_for_acknowledgement(&mut bytes, second);
        let all: Vec<_> = messages(&bytes).map(|message| message.expect("whole")).collect();
        assert_eq!((all[0].kind, all[0].sequence, all[0].payload), (20, 7, &b"abcde"[..]));
        assert_eq!((all[1].kind, all[1].flags), (21, REQUEST | DUMP | ACK));
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn what_is_cut_short_is_an_error() {
        let mut bytes = Vec::new();
        append(&mut bytes, 20, 0, 7, |bytes| bytes.extend_from_slice(b"abcdefgh"));
        assert!(messages(&bytes[..20]).next().is_some_and(|message| message.is_err()));
    }

    proptest! {
        #[test]
        fn nonsense_is_read_without_a_panic(bytes: Vec<u8>) {
            prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER_LEN + 1);
        }
    }
}
