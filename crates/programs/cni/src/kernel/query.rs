//! Questions to the kernel, whose answers are read by hand. The codec takes two thirds of a millisecond
//! over a bridge's many attributes, of which we need five; and all that it can read makes up a fifth
//! of a program that uses it.

use std::io;

use flannel_netlink::{NetlinkError, Writable};

use super::{Kernel, KernelError};

/// A question or a change as bytes.
pub(super) struct Raw<'a> {
    pub(super) kind: u16,
    pub(super) header: &'a [u8],
    pub(super) attributes: &'a [u8],
    pub(super) flags: u16,
}

impl<'a> Raw<'a> {
    pub(super) fn new(kind: u16, header: &'a [u8], attributes: &'a [u8]) -> Self {
        Self { kind, header, attributes, flags: 0 }
    }
}

impl Writable for Raw<'_> {
    fn kind(&self) -> u16 {
        self.kind
    }

    fn flags(&self) -> u16 {
        self.flags
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.header);
        bytes.extend_from_slice(self.attributes);
    }
}

impl Kernel {
    /// A question that has one answer.
    pub(super) fn ask<T>(
        &mut self,
        question: &Raw<'_>,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Result<T, NetlinkError>, KernelError> {
        Ok(self.connection.ask(question, |message| read(message.payload))?)
    }

    /// A single change. `what` it is for follows "could not".
    pub(super) fn change(
        &mut self,
        change: Raw<'_>,
        what: impl FnOnce() -> String,
    ) -> Result<(), KernelError> {
        let mut refused = None;
        self.connection.apply([change], |_, error| refused = Some(error))?;
        refused.map_or(Ok(()), |error| Err(KernelError::Refused { what: what(), error }))
    }

    /// Everything there is of a kind, as far as `read` wants it.
    pub(super) fn ask_all<T>(
        &mut self,
        kind: u16,
        header: &[u8],
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, KernelError> {
        let question = Raw::new(kind, header, &[]);
        self.connection
            .ask_all(&question, |message| read(message.payload))?
            .map_err(|error| io::Error::from_raw_os_error(error.errno).into())
    }
}

pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}
