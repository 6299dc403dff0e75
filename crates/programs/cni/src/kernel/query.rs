//! Questions to the kernel, whose answers are read by hand. The codec takes two thirds of a millisecond
//! over a bridge's many attributes, of which we need five; and all that it can read makes up a fifth
//! of a program that uses it.

use std::io;

use flannel_netlink::{AttributeWriter, RawRequest};

use super::{Kernel, KernelError};

impl Kernel {
    /// A single change. `what` it is for follows "could not".
    pub(super) fn change(
        &mut self,
        change: RawRequest,
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
        let question = RawRequest::new(kind, header, AttributeWriter::default());
        self.connection
            .ask_all(&question, |message| read(message.payload))?
            .map_err(|error| io::Error::from_raw_os_error(error.errno).into())
    }
}

pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}
