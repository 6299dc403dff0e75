//! The internet checksum (RFC 1071): over whole ranges, and corrected for one changed word (RFC 1624).

/// A sum of 16-bit words that is folded at the end. Only the last of its ranges may have an odd length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        Self(self.0 + wide_sum(bytes))
    }

    pub(crate) fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be()))
    }

    /// Sum of the addresses, the protocol and the length that TCP, UDP and ICMPv6 cover besides their own bytes.
    pub(crate) fn pseudo_header(addresses: &[u8], protocol: u8, length: usize) -> Self {
        // No packet here is longer than 16 bits can tell.
        Self::default().bytes(addresses).word(u16::from(protocol)).word(length as u16)
    }

    /// The folded sum, not complemented: what a partial checksum holds.
    pub(crate) fn folded(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (sum as u16).to_ne_bytes()
    }

    /// The checksum as in a header.
    pub(crate) fn checksum(self) -> [u8; 2] {
        let [a, b] = self.folded();
        [!a, !b]
    }

    /// The checksum as in a UDP header, where zero means that there is none.
    pub(crate) fn udp_checksum(self) -> [u8; 2] {
        match self.checksum() {
            [0, 0] => [0xff, 0xff],
            sum => sum,
        }
    }

    /// Whether the summed bytes, their checksum included, are undamaged.
    pub(crate) fn is_valid(self) -> bool {
        self.folded() == [0xff, 0xff]
    }
}

/// Sums words of four bytes in lanes of eight, which compilers turn into vector instructions.
fn wide_sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= 256 && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has been asked whether it knows these instructions.
        return unsafe { wide_sum_avx2(bytes) };
    }
    lanes_sum(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn wide_sum_avx2(bytes: &[u8]) -> u64 {
    lanes_sum(bytes)
}

#[inline(always)]
fn lanes_sum(bytes: &[u8]) -> u64 {
    const LANES: usize = 16;
    let mut lanes = [0_u64; LANES];
    let (chunks, rest) = bytes.as_chunks::<{ LANES * 4 }>();
    for chunk in chunks {
        let (words, _) = chunk.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut sum: u64 = lanes.iter().sum();
    let (words, rest) = rest.as_chunks::<4>();
    sum += words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(last))
}

/// Checksum of a header in which one word was changed.
pub(crate) fn corrected(checksum: [u8; 2], before: [u8; 2], after: [u8; 2]) -> [u8; 2] {
    // RFC 1624, equation 3: HC' = ~(~HC + ~m + m')
    let not = |word: [u8; 2]| u64::from(!u16::from_ne_bytes(word));
    Sum(not(checksum) + not(before) + u64::from(u16::from_ne_bytes(after))).checksum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Word by word, as in the text of RFC 1071.
    fn naive(bytes: &[u8]) -> [u8; 2] {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    proptest! {
        #[test]
        fn a_checksum_is_that_of_the_naive_reference(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(Sum::default().bytes(&bytes).checksum(), naive(&bytes));
        }

        #[test]
        fn a_corrected_checksum_is_that_of_the_changed_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), 2..80),
            at in any::<prop::sample::Index>(),
            word in any::<[u8; 2]>(),
        ) {
            let at = at.index(bytes.len() / 2) * 2;
            let before = naive(&bytes);
            let old = [bytes[at], bytes[at + 1]];
            bytes[at..at + 2].copy_from_slice(&word);
            let after = corrected(before, old, word);
            // 0 and -0 are the same number, and both are valid.
            let mut whole = bytes.clone();
            if whole.len() % 2 == 1 { whole.push(0); }
            whole.extend_from_slice(&after);
            prop_assert!(Sum::default().bytes(&whole).is_valid() || after == naive(&bytes));
        }
    }
}
