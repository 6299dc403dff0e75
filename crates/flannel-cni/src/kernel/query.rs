//! Questions to the kernel, whose answers are read by hand. The codec takes two thirds of a millisecond
//! over a bridge's many attributes, of which we need five; and all that it can read makes up a fifth
//! of a program that uses it.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::{Kernel, KernelError};
use crate::attributes::Attributes;
use crate::socket::{self, HEADER_LEN};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// With the pauses between them, ten seconds.
const DUMP_TRIES: u32 = 100;
const TORN_PAUSE: Duration = Duration::from_millis(2);

/// The answer, or the number of the error.
pub(super) type Answer = Result<Vec<u8>, i32>;

impl Kernel {
    /// A question that has one answer.
    pub(super) fn ask(
        &mut self,
        kind: u16,
        header: &[u8],
        attributes: &Attributes,
    ) -> Result<Answer, KernelError> {
        self.queries.send(&request(kind, 0, header, attributes))?;
        match socket::messages(self.queries.receive()?).next() {
            Some(message) if message.kind == NLMSG_ERROR => Ok(Err(message.error())),
            Some(message) => Ok(Ok(message.payload.to_vec())),
            None => Err(torn()),
        }
    }

    /// A change whose message is given as it stands, as it was read, say.
    pub(super) fn tell(
        &mut self,
        kind: u16,
        message: &[u8],
    ) -> Result<Result<(), i32>, KernelError> {
        self.queries.send(&request(kind, NLM_F_ACK, message, &Attributes::default()))?;
        match socket::messages(self.queries.receive()?).next() {
            Some(message) if message.kind == NLMSG_ERROR => {
                Ok(if message.error() == 0 { Ok(()) } else { Err(message.error()) })
            }
            _ => Err(torn()),
        }
    }

    /// Everything there is of a kind, as far as `read` wants it. What a concurrent change has torn is
    /// asked for again.
    pub(super) fn ask_all<T>(
        &mut self,
        kind: u16,
        header: &[u8],
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, KernelError> {
        let mut items = Vec::new();
        for tries in 0..DUMP_TRIES {
            items.clear();
            if self.dump(kind, header, |payload| items.extend(read(payload)))? {
                return Ok(items);
            }
            std::thread::sleep(TORN_PAUSE * tries);
        }
        Err(io::Error::other("it changes faster than it can be read").into())
    }

    /// Returns whether it was whole.
    fn dump(
        &mut self,
        kind: u16,
        header: &[u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<bool, KernelError> {
        self.queries.send(&request(kind, NLM_F_DUMP, header, &Attributes::default()))?;
        let mut whole = true;
        loop {
            for message in socket::messages(self.queries.receive()?) {
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => return Ok(whole),
                    NLMSG_ERROR => return Err(io::Error::from_raw_os_error(message.error()).into()),
                    _ => take(message.payload),
                }
            }
        }
    }
}

/// Without a sequence number: there is never more than one question under way.
pub(super) fn request(kind: u16, flags: u16, header: &[u8], attributes: &Attributes) -> Vec<u8> {
    let len = HEADER_LEN + header.len() + attributes.as_bytes().len();
    let mut request = Vec::with_capacity(len);
    request.extend_from_slice(&(len as u32).to_ne_bytes());
    request.extend_from_slice(&kind.to_ne_bytes());
    request.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(header);
    request.extend_from_slice(attributes.as_bytes());
    request
}

pub(super) fn torn() -> KernelError {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel makes no sense").into()
}

pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// An address of either family, by its length.
pub(super) fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        16 => bytes.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _ => None,
    }
}
