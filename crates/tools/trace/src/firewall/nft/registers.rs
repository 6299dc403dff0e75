//! Registers of the kernel's rule machine, where not every bit of a packet is known.

use flannel_nft::{Comparison, KeyRange};

use super::super::path::Match;

/// Bytes of the four large registers, which the sixteen small ones share.
const REGISTER_BYTES: usize = 64;

/// A byte of which some bits may not be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartialByte {
    /// 0 where a bit is not known.
    value: u8,
    known: u8,
}

impl PartialByte {
    pub(super) const UNKNOWN: Self = Self { value: 0, known: 0 };
    const ZERO: Self = Self { value: 0, known: 0xff };

    pub(super) fn masked(value: u8, known: u8) -> Self {
        Self { value: value & known, known }
    }
}

pub(super) fn known(bytes: &[u8]) -> Vec<PartialByte> {
    bytes.iter().map(|byte| PartialByte::masked(*byte, 0xff)).collect()
}

pub(super) fn unknown(len: usize) -> Vec<PartialByte> {
    vec![PartialByte::UNKNOWN; len]
}

/// The bytes, if all of them are known.
pub(super) fn value(bytes: &[PartialByte]) -> Option<Vec<u8>> {
    bytes.iter().map(|byte| (byte.known == 0xff).then_some(byte.value)).collect()
}

pub(super) struct Registers([PartialByte; REGISTER_BYTES]);

impl Default for Registers {
    fn default() -> Self {
        Self([PartialByte::UNKNOWN; REGISTER_BYTES])
    }
}

impl Registers {
    /// Fills a register; the kernel fills the rest of its last four bytes with zeros.
    pub(super) fn load(&mut self, register: u32, bytes: &[PartialByte]) {
        let zeros = bytes.len().next_multiple_of(4) - bytes.len();
        let bytes = bytes.iter().copied().chain(std::iter::repeat_n(PartialByte::ZERO, zeros));
        let place = offset(register).and_then(|offset| self.0.get_mut(offset..));
        place.into_iter().flatten().zip(bytes).for_each(|(to, from)| *to = from);
    }

    pub(super) fn read(&self, register: u32, len: usize) -> Vec<PartialByte> {
        let place = offset(register).and_then(|offset| self.0.get(offset..offset + len));
        place.map_or_else(|| unknown(len), <[_]>::to_vec)
    }

    /// Something has changed them that is not known here.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    pub(super) fn mask(&mut self, register: u32, mask: &[u8], xor: &[u8]) {
        let mut bytes = self.read(register, mask.len());
        for ((byte, mask), xor) in bytes.iter_mut().zip(mask).zip(xor) {
            *byte = PartialByte::masked((byte.value & mask) ^ xor, byte.known | !mask);
        }
        self.load(register, &bytes);
    }

    /// Turns the bytes of each number of `size` bytes around, where the machine's order is not that of packets.
    pub(super) fn reorder(&mut self, from: u32, to: u32, len: u32, size: u32) {
        let mut bytes = self.read(from, len as usize);
        if cfg!(target_endian = "little") {
            bytes.chunks_mut(size.max(1) as usize).for_each(<[_]>::reverse);
        }
        self.load(to, &bytes);
    }

    pub(super) fn compare(&self, register: u32, how: Comparison, value: &[u8]) -> Match {
        let bytes = self.read(register, value.len());
        let (lowest, highest) = bounds(&bytes);
        let below = |yes: bool, no: bool| match (yes, no) {
            (true, _) => Match::Yes,
            (_, true) => Match::No,
            _ => Match::Maybe,
        };
        match how {
            Comparison::Equal => equals(&bytes, value),
            Comparison::NotEqual => equals(&bytes, value).not(),
            Comparison::Less => below(*highest < *value, *lowest >= *value),
            Comparison::LessOrEqual => below(*highest <= *value, *lowest > *value),
            Comparison::Greater => below(*lowest > *value, *highest <= *value),
            Comparison::GreaterOrEqual => below(*lowest >= *value, *highest < *value),
        }
    }

    pub(super) fn is_between(&self, register: u32, first: &[u8], last: &[u8]) -> Match {
        between(&self.read(register, first.len()), first, last)
    }

    /// Whether an element of a set is for the key in a register.
    pub(super) fn is_in(&self, register: u32, range: &KeyRange) -> Match {
        range.parts.iter().fold(Match::Yes, |found, part| {
            let bytes = self.read(register, part.offset + part.first.len());
            found.and(between(&bytes[part.offset..], &part.first, &part.last))
        })
    }
}

fn offset(register: u32) -> Option<usize> {
    match register as usize {
        large @ 1..=4 => Some((large - 1) * 16),
        small @ 8..=23 => Some((small - 8) * 4),
        _ => None,
    }
}

fn bounds(bytes: &[PartialByte]) -> (Vec<u8>, Vec<u8>) {
    bytes.iter().map(|byte| (byte.value, byte.value | !byte.known)).unzip()
}

fn equals(bytes: &[PartialByte], value: &[u8]) -> Match {
    let pairs = || bytes.iter().zip(value);
    if pairs().any(|(byte, value)| (byte.value ^ value) & byte.known != 0) {
        Match::No
    } else if bytes.iter().all(|byte| byte.known == 0xff) {
        Match::Yes
    } else {
        Match::Maybe
    }
}

fn between(bytes: &[PartialByte], first: &[u8], last: &[u8]) -> Match {
    if first == last {
        return equals(bytes, first);
    }
    let (lowest, highest) = bounds(bytes);
    if *highest < *first || *lowest > *last {
        Match::No
    } else if *lowest >= *first && *highest <= *last {
        Match::Yes
    } else {
        Match::Maybe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_on_unknown_bits_may_match_and_the_rest_is_decided() {
        let mut registers = Registers::default();
        registers.load(1, &[known(&[10, 1]), unknown(1), known(&[7])].concat());
        let equal = |value: &[u8]| registers.compare(1, Comparison::Equal, value);
        assert_eq!(equal(&[10, 1]), Match::Yes);
        assert_eq!(equal(&[10, 1, 4, 7]), Match::Maybe);
        assert_eq!(equal(&[10, 1, 4, 8]), Match::No);
        let above = |value: &[u8]| registers.compare(1, Comparison::Greater, value);
        assert_eq!(above(&[10, 0, 255, 255]), Match::Yes);
        assert_eq!(above(&[10, 1, 9, 0]), Match::Maybe);
        assert_eq!(above(&[10, 1, 255, 7]), Match::No);
        assert_eq!(registers.is_between(1, &[10, 0, 0, 0], &[10, 255, 0, 0]), Match::Yes);
        registers.mask(1, &[255, 255, 0, 255], &[0, 0, 3, 0]);
        assert_eq!(registers.compare(1, Comparison::Equal, &[10, 1, 3, 7]), Match::Yes);
        assert_eq!(registers.compare(2, Comparison::NotEqual, &[0]), Match::Maybe);
    }

    #[test]
    fn parts_of_a_key_stand_one_behind_another_in_registers_of_four_bytes() {
        let mut registers = Registers::default();
        registers.load(1, &known(&[192, 0, 2, 1]));
        registers.load(9, &known(&53u16.to_be_bytes()));
        assert_eq!(value(&registers.read(8, 8)), Some(vec![192, 0, 2, 1, 0, 53, 0, 0]));
    }
}
