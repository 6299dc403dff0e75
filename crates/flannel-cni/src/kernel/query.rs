//! Questions that have one answer, read by hand: the codec takes two thirds of a millisecond over a
//! bridge's many attributes, of which we need five.

use std::io;

use super::{Kernel, KernelError};
use crate::attributes::Attributes;
use crate::socket::{self, HEADER_LEN};

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;

/// The answer, or the number of the error.
pub(super) type Answer = Result<Vec<u8>, i32>;

impl Kernel {
    pub(super) fn ask(
        &mut self,
        kind: u16,
        header: &[u8],
        attributes: &Attributes,
    ) -> Result<Answer, KernelError> {
        let len = HEADER_LEN + header.len() + attributes.as_bytes().len();
        let mut request = Vec::with_capacity(len);
        request.extend_from_slice(&(len as u32).to_ne_bytes());
        request.extend_from_slice(&kind.to_ne_bytes());
        request.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        // The sequence number and the port: there is never more than one question under way.
        request.extend_from_slice(&[0; 8]);
        request.extend_from_slice(header);
        request.extend_from_slice(attributes.as_bytes());
        self.queries.send(&request)?;
        match socket::messages(self.queries.receive()?).next() {
            Some(message) if message.kind == NLMSG_ERROR => Ok(Err(message.error())),
            Some(message) => Ok(Ok(message.payload.to_vec())),
            None => Err(torn()),
        }
    }
}

pub(super) fn torn() -> KernelError {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel makes no sense").into()
}

pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}
