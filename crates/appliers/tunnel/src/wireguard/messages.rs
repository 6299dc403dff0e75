//! The four messages of WireGuard, as they are on the wire.

pub(super) const INITIATION: u8 = 1;
pub(super) const RESPONSE: u8 = 2;
pub(super) const COOKIE: u8 = 3;
pub(super) const DATA: u8 = 4;

pub(super) const INITIATION_LEN: usize = 148;
pub(super) const RESPONSE_LEN: usize = 92;
pub(super) const COOKIE_LEN: usize = 64;
/// Length of the header before the ciphertext.
pub(super) const DATA_HEADER: usize = 16;
/// Length of header and tag.
pub(crate) const DATA_OVERHEAD: usize = 32;
/// Length of packets is rounded up to a multiple of this, so that it tells less.
pub(super) const PADDING: usize = 16;

/// Ranges of handshake messages that are Noise's.
pub(super) const NOISE_INITIATION: std::ops::Range<usize> = 8..116;
pub(super) const NOISE_RESPONSE: std::ops::Range<usize> = 12..60;

pub(super) fn kind(message: &[u8]) -> Option<u8> {
    let [kind, 0, 0, 0] = *message.first_chunk()? else { return None };
    let fits = match kind {
        INITIATION => message.len() == INITIATION_LEN,
        RESPONSE => message.len() == RESPONSE_LEN,
        COOKIE => message.len() == COOKIE_LEN,
        DATA => message.len() >= DATA_OVERHEAD,
        _ => false,
    };
    fits.then_some(kind)
}

pub(super) fn word(message: &[u8], at: usize) -> u32 {
    let bytes = message.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn counter(message: &[u8]) -> u64 {
    let bytes = message.get(8..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

pub(super) fn data_header(receiver: u32, counter: u64) -> [u8; DATA_HEADER] {
    let mut header = [0; DATA_HEADER];
    header[0] = DATA;
    header[4..8].copy_from_slice(&receiver.to_le_bytes());
    header[8..].copy_from_slice(&counter.to_le_bytes());
    header
}

/// Length of a padded packet, but not beyond what the device carries.
pub(super) fn padded(len: usize, mtu: usize) -> usize {
    len.next_multiple_of(PADDING).min(mtu.max(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_makes_no_packet_longer_than_the_device_carries() {
        assert_eq!(padded(0, 1420), 0);
        assert_eq!(padded(1, 1420), 16);
        assert_eq!(padded(1410, 1420), 1420);
        assert_eq!(padded(1440, 1440), 1440);
        assert_eq!(padded(1441, 1440), 1441);
    }

    #[test]
    fn what_has_not_the_length_of_its_kind_is_no_message() {
        assert_eq!(kind(&[]), None);
        assert_eq!(kind(&[4, 0, 0, 0]), None);
        let mut message = vec![0; INITIATION_LEN];
        message[0] = INITIATION;
        assert_eq!(kind(&message), Some(INITIATION));
        message[1] = 1;
        assert_eq!(kind(&message), None);
    }
}
