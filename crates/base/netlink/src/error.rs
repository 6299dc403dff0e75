//! What the kernel answers when it refuses a request.

use std::fmt;
use std::io;

use crate::Attributes;
use crate::message::HEADER_LEN;

/// An errno and the kernel's sentence with it, if any, such as "Nexthop has invalid gateway".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkError {
    pub errno: i32,
    pub text: Option<String>,
}

/// `NLMSGERR_ATTR_MSG`
const ATTR_TEXT: u16 = 1;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;

impl NetlinkError {
    pub fn new(errno: i32, text: &str) -> Self {
        Self { errno, text: Some(text.to_owned()) }
    }

    /// Reads the payload of an `NLMSG_ERROR`; `Ok` is an acknowledgement.
    pub(crate) fn parse(payload: &[u8], flags: u16) -> Result<(), Self> {
        let Some((code, rest)) = payload.split_first_chunk::<4>() else {
            return Err(Self::new(libc::EPROTO, "short error message from the kernel"));
        };
        Self::from_code(*code, flags, || attributes_after_request(rest, flags))
    }

    /// Reads the payload of the `NLMSG_DONE` that ends a dump; `Ok` means that the dump is complete.
    pub(crate) fn parse_end(payload: &[u8], flags: u16) -> Result<(), Self> {
        // Not every part of the kernel says how its dump went.
        let Some((code, rest)) = payload.split_first_chunk::<4>() else { return Ok(()) };
        Self::from_code(*code, flags, || Some(rest))
    }

    fn from_code<'a>(
        code: [u8; 4],
        flags: u16,
        attributes: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Result<(), Self> {
        let code = i32::from_ne_bytes(code);
        if code == 0 {
            return Ok(());
        }
        let attributes = if flags & NLM_F_ACK_TLVS != 0 { attributes() } else { None };
        let text = attributes.and_then(|bytes| Attributes(bytes).text(ATTR_TEXT));
        Err(Self { errno: code.saturating_neg(), text: text.map(str::to_owned) })
    }
}

/// In an `NLMSG_ERROR` the failed request follows the code, when capped by its header alone.
fn attributes_after_request(request: &[u8], flags: u16) -> Option<&[u8]> {
    let len = u32::from_ne_bytes(*request.first_chunk::<4>()?) as usize;
    let skip = if flags & NLM_F_CAPPED != 0 { HEADER_LEN } else { len.next_multiple_of(4) };
    request.get(skip..)
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = io::Error::from_raw_os_error(self.errno);
        match &self.text {
            Some(text) => write!(f, "{text} ({errno})"),
            None => fmt::Display::fmt(&errno, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_sentence_from_a_capped_error() {
        let mut payload = (-libc::ENETUNREACH).to_ne_bytes().to_vec();
        payload.extend([0; HEADER_LEN]);
        let sentence = b"Nexthop has invalid gateway\0";
        payload.extend((4 + sentence.len() as u16).to_ne_bytes());
        payload.extend(ATTR_TEXT.to_ne_bytes());
        payload.extend(sentence);
        let error = NetlinkError::parse(&payload, NLM_F_CAPPED | NLM_F_ACK_TLVS).unwrap_err();
        assert_eq!(error, NetlinkError::new(libc::ENETUNREACH, "Nexthop has invalid gateway"));
    }

    #[test]
    fn zero_is_an_acknowledgement_and_nonsense_is_an_error() {
        assert_eq!(NetlinkError::parse(&[0; 4], 0), Ok(()));
        assert!(NetlinkError::parse(&[], 0).is_err());
        assert!(NetlinkError::parse(&[255; 7], NLM_F_ACK_TLVS).is_err());
    }

    #[test]
    fn the_end_of_a_dump_tells_how_it_went() {
        assert_eq!(NetlinkError::parse_end(&[], 0), Ok(()));
        assert_eq!(NetlinkError::parse_end(&[0; 4], 0), Ok(()));
        let mut payload = (-libc::ENOENT).to_ne_bytes().to_vec();
        let sentence = b"ipv4: FIB table does not exist\0";
        payload.extend((4 + sentence.len() as u16).to_ne_bytes());
        payload.extend(ATTR_TEXT.to_ne_bytes());
        payload.extend(sentence);
        let error = NetlinkError::parse_end(&payload, NLM_F_ACK_TLVS).unwrap_err();
        assert_eq!(error, NetlinkError::new(libc::ENOENT, "ipv4: FIB table does not exist"));
    }
}
