//! Records, each read completely or not at all: a mark, a length, a checksum over length and payload, the payload.

use std::sync::LazyLock;

const MARK: [u8; 4] = *b"fLs\x01";
const HEADER_BYTES: usize = 12;
/// Most bytes of a payload, more than is ever written.
const MAX_PAYLOAD_BYTES: usize = 1 << 30;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Clean,
    /// The last record is incomplete: its write was interrupted, or it was damaged later, which the bytes do not tell.
    Torn,
    /// A damaged record is followed by good ones, which no interrupted write causes.
    Damaged,
}

pub(super) struct Records<'a> {
    pub(super) payloads: Vec<&'a [u8]>,
    /// End of the last good record before any damage.
    pub(super) end: usize,
    pub(super) ending: Ending,
}

pub(super) fn encode(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    let mut record = Vec::with_capacity(HEADER_BYTES + payload.len());
    record.extend_from_slice(&MARK);
    record.extend_from_slice(&length);
    record.extend_from_slice(&checksum(&length, payload).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

pub(super) fn decode(bytes: &[u8]) -> Records<'_> {
    let mut payloads = Vec::new();
    let mut end = 0;
    while let Some(payload) = bytes.get(end..).and_then(first) {
        end += HEADER_BYTES + payload.len();
        payloads.push(payload);
    }
    let rest = bytes.get(end..).unwrap_or_default();
    let ending = if rest.is_empty() {
        Ending::Clean
    } else if (1..rest.len()).any(|at| rest.get(at..).and_then(first).is_some()) {
        Ending::Damaged
    } else {
        Ending::Torn
    };
    Records { payloads, end, ending }
}

fn first(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(&MARK)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let count =
        usize::try_from(u32::from_le_bytes(*length)).ok().filter(|n| *n <= MAX_PAYLOAD_BYTES)?;
    let payload = rest.get(..count)?;
    (checksum(length, payload) == u32::from_le_bytes(*sum)).then_some(payload)
}

/// CRC-32C of both parts.
fn checksum(length: &[u8], payload: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| TABLE[usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8);
    !length.iter().chain(payload).fold(!0, step)
}

static TABLE: LazyLock<[u32; 256]> = LazyLock::new(|| {
    let shift = |sum: u32, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
    std::array::from_fn(|index| (0..8).fold(index as u32, shift))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(checksum(b"1234", b"56789"), 0xe306_9283);
    }

    #[test]
    fn a_file_cut_anywhere_yields_its_whole_frames() {
        let records = [&b"first"[..], b"", b"the third one"].map(encode);
        let bytes = records.concat();
        let ends: Vec<usize> = records
            .iter()
            .scan(0, |end, record| {
                *end += record.len();
                Some(*end)
            })
            .collect();
        for cut in 0..=bytes.len() {
            let read = decode(&bytes[..cut]);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(read.payloads.len(), whole, "cut at {cut}");
            let clean = cut == 0 || ends.contains(&cut);
            assert_eq!(read.ending == Ending::Clean, clean, "cut at {cut}");
            assert_ne!(read.ending, Ending::Damaged);
        }
    }

    #[test]
    fn any_changed_bit_is_noticed_and_one_in_the_middle_is_damage() {
        let bytes = [encode(b"first"), encode(b"second")].concat();
        let first = encode(b"first").len();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let read = decode(&changed);
                if at < first {
                    assert_eq!((read.payloads.len(), read.ending), (0, Ending::Damaged));
                } else {
                    assert_eq!((read.payloads.len(), read.ending), (1, Ending::Torn));
                }
            }
        }
    }
}
