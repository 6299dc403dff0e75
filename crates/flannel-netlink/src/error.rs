//! What the kernel answers when it refuses a request.

use std::fmt;
use std::io;

use crate::Attributes;
use crate::message::HEADER_LEN;

/// An errno and, where the kernel gives one, the sentence that goes with it ("Nexthop has invalid
/// gateway" instead of a bare ENETUNREACH).
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
        let Some(code) = payload.first_chunk::<4>() else {
            return Err(Self::new(libc::EPROTO, "short error message from the kernel"));
        };
        let code = i32::from_ne_bytes(*code);
        if code == 0 {
            return Ok(());
        }
        let text = (flags & NLM_F_ACK_TLVS != 0).then(|| ext_ack_text(payload, flags)).flatten();
        Err(Self { errno: -code, text })
    }
}

fn ext_ack_text(payload: &[u8], flags: u16) -> Option<String> {
    // The failed request follows the code: its header alone when capped, whole otherwise.
    let request = payload.get(4..)?;
    let len = u32::from_ne_bytes(*request.first_chunk::<4>()?) as usize;
    let skip = if flags & NLM_F_CAPPED != 0 { HEADER_LEN } else { len.next_multiple_of(4) };
    Attributes(request.get(skip..)?).text(ATTR_TEXT).map(str::to_owned)
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
}
