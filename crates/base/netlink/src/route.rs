//! Links, addresses, routes and neighbours, by the codec made for them.

use std::io;

use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_route::RouteNetlinkMessage;

use crate::connection::Writable;
use crate::{Connection, Message, NetlinkError};

pub struct Request {
    pub message: RouteNetlinkMessage,
    pub flags: u16,
}

impl Writable for RouteNetlinkMessage {
    fn kind(&self) -> u16 {
        self.message_type()
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + self.buffer_len(), 0);
        self.emit(&mut bytes[start..]);
    }
}

impl Writable for Request {
    fn kind(&self) -> u16 {
        self.message.message_type()
    }

    fn flags(&self) -> u16 {
        self.flags
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        self.message.write(bytes);
    }
}

/// `None` for what the codec does not understand: a kernel newer than it may send that.
pub fn decode(message: Message<'_>) -> Option<RouteNetlinkMessage> {
    RouteNetlinkMessage::parse_with_param(message.payload, message.kind).ok()
}

impl Connection {
    pub fn get(
        &mut self,
        question: &RouteNetlinkMessage,
    ) -> io::Result<Result<RouteNetlinkMessage, NetlinkError>> {
        let answer = self.ask(question, decode)?;
        Ok(answer.and_then(|message| {
            message.ok_or_else(|| NetlinkError::new(libc::EBADMSG, "an answer of an unknown kind"))
        }))
    }

    /// All objects of a kind, as far as `read` wants them.
    pub fn dump<T>(
        &mut self,
        question: &RouteNetlinkMessage,
        mut read: impl FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        self.ask_all(question, |message| read(decode(message)?))?
            .map_err(|error| io::Error::from_raw_os_error(error.errno))
    }
}
