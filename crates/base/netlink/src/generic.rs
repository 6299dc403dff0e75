//! Generic netlink: families of messages that the kernel knows by name, and numbers when they are loaded.

use std::io;

use crate::{AttributeWriter, Attributes, Connection, NetlinkError, RawRequest};

/// The one family whose number is fixed: it tells those of the others.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const HEADER_LEN: usize = 4;

pub fn request(family: u16, command: u8, version: u8, attributes: AttributeWriter) -> RawRequest {
    RawRequest::new(family, [command, version, 0, 0], attributes)
}

/// What the payload of a message of any family holds; nothing if it is cut short.
pub fn attributes(payload: &[u8]) -> Attributes<'_> {
    Attributes(payload.get(HEADER_LEN..).unwrap_or_default())
}

impl Connection {
    /// The number of a family, whose module the kernel loads. `ENOENT`: there is none.
    pub fn generic_family(&mut self, name: &str) -> io::Result<Result<u16, NetlinkError>> {
        let name = AttributeWriter::default().text(FAMILY_NAME, name);
        let question = request(CONTROL, GET_FAMILY, 1, name);
        let id = self.ask(&question, |message| attributes(message.payload).ne16(FAMILY_ID))?;
        Ok(id.and_then(|id| {
            id.ok_or_else(|| NetlinkError::new(libc::EPROTO, "a family without a number"))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Protocol, Writable as _, messages};

    #[test]
    fn a_request_is_what_the_kernel_documents() {
        let attributes_of = AttributeWriter::default().text(FAMILY_NAME, "nat");
        let request = request(16, 3, 1, attributes_of);
        let mut bytes = Vec::new();
        crate::message::append(&mut bytes, request.kind(), 0, 1, |b| request.write(b));
        let head: &[u8] = &[28, 0, 0, 0, 16, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0];
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, [head, &[8, 0, 2, 0], b"nat\0"].concat());
        }
        let message = messages(&bytes).next().expect("one").expect("whole");
        assert_eq!(attributes(message.payload).text(FAMILY_NAME), Some("nat"));
    }

    #[test]
    fn a_family_is_known_by_name_and_one_that_is_not_there_is_an_answer_too() {
        let mut connection = Connection::open(Protocol::Generic).expect("a socket");
        assert_eq!(connection.generic_family("nlctrl").expect("an answer"), Ok(CONTROL));
        let none = connection.generic_family("no-such").expect("an answer").expect_err("none");
        assert_eq!(none.errno, libc::ENOENT);
    }
}
