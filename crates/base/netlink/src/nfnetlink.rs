//! Netfilter over netlink: messages with a header of their own, and all-or-nothing transactions.

use std::io;

use crate::message;
use crate::{AttributeWriter, Attributes, Connection, Message, NetlinkError, RawRequest};

/// The parts of netfilter: which one a message is about.
pub const CONNTRACK: u16 = 1;
pub const NFTABLES: u16 = 10;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const BATCH_GENERATION: u16 = 1;
const HEADER_LEN: usize = 4;

/// A question or a change. `family`: which of the families it is about (`NFPROTO_*`).
pub fn request(subsystem: u16, kind: u16, family: u8, attributes: AttributeWriter) -> RawRequest {
    RawRequest::new(subsystem << 8 | kind, [family, 0, 0, 0], attributes)
}

#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    pub kind: u16,
    pub family: u8,
    pub attributes: Attributes<'a>,
}

/// `None`: it is about another part of netfilter, or cut short.
pub fn read<'a>(message: Message<'a>, subsystem: u16) -> Option<Object<'a>> {
    let (header, attributes) = message.payload.split_at_checked(HEADER_LEN)?;
    (message.kind >> 8 == subsystem).then_some(Object {
        kind: message.kind & 0xff,
        family: header[0],
        attributes: Attributes(attributes),
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The position of the change that was refused; `None`: the transaction as such.
    pub at: Option<usize>,
    pub error: NetlinkError,
}

/// The beginning or the end of a transaction, addressed to one part of netfilter.
fn bracket(kind: u16, subsystem: u16, attributes: AttributeWriter) -> RawRequest {
    let [high, low] = subsystem.to_be_bytes();
    RawRequest::new(kind, [0, 0, high, low], attributes)
}

impl Connection {
    /// Carries out all changes or none of them; with a generation, only if it is still the current one (else `ERESTART`).
    pub fn commit(
        &mut self,
        subsystem: u16,
        generation: Option<u32>,
        changes: &[RawRequest],
    ) -> io::Result<Result<(), Refused>> {
        let mut bytes = Vec::new();
        let none = AttributeWriter::default();
        let current = generation.map(|number| none.clone().be32(BATCH_GENERATION, number));
        let begin = bracket(BATCH_BEGIN, subsystem, current.unwrap_or_default());
        self.append(&mut bytes, &begin, 0);
        let first = self.sequence;
        let mut last = None;
        for change in changes {
            last = Some(self.append(&mut bytes, change, 0));
        }
        let Some(last) = last else { return Ok(Ok(())) };
        self.append(&mut bytes, &bracket(BATCH_END, subsystem, none), 0);
        // Errors come unasked. This answer comes after them, whatever became of the transaction.
        message::ask_for_acknowledgement(&mut bytes, last);
        self.make_room(bytes.len(), changes.len())?;
        self.socket.send(&bytes)?;
        self.collect_refusal(first, changes.len())
    }

    fn collect_refusal(&mut self, begin: u32, count: usize) -> io::Result<Result<(), Refused>> {
        let mut result = Ok(());
        loop {
            for message in crate::messages(self.socket.receive()?) {
                let message = message?;
                let at = message.sequence.wrapping_sub(begin) as usize;
                if message.kind != message::ERROR || at > count {
                    continue;
                }
                if let Err(error) = NetlinkError::parse(message.payload, message.flags)
                    && result.is_ok()
                {
                    result = Err(Refused { at: at.checked_sub(1), error });
                }
                // Refused at its beginning, a transaction is not looked at any further.
                if at == count || at == 0 {
                    return Ok(result);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Writable as _, messages};

    #[test]
    fn a_request_is_what_the_kernel_documents() {
        let attributes = AttributeWriter::default().text(1, "nat");
        let request = RawRequest { flags: 4, ..request(NFTABLES, 4, 2, attributes) };
        let mut bytes = Vec::new();
        message::append(&mut bytes, request.kind(), request.flags(), 1, |b| request.write(b));
        let head: &[u8] = &[28, 0, 0, 0, 4, 10, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, [head, &[8, 0, 1, 0], b"nat\0"].concat());
        }
        let message = messages(&bytes).next().expect("one").expect("whole");
        let object = read(message, NFTABLES).expect("of nftables");
        assert_eq!((object.kind, object.family, object.attributes.text(1)), (4, 2, Some("nat")));
        assert!(read(message, 1).is_none());
    }
}
