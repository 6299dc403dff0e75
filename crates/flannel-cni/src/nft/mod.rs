//! nftables spoken natively: changes go to the kernel as one batch, all or nothing, in a tenth of
//! the time that starting `nft` takes. Only what port mappings and masquerading need.

mod batch;
mod expression;
mod frame;
mod list;

use std::io;
use std::os::fd::AsFd;

use rustix::net::netlink;

use crate::attributes::Attributes;
use crate::caretaker;
use crate::socket::{self, NetlinkSocket};
pub(crate) use batch::{Batch, Hook, Spot, fitted_comment, fitted_network};
pub(crate) use expression::{Expressions, Field, Verdict};
pub(crate) use frame::Frame;
pub(crate) use list::ListedRule;

const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const DELETE_RULE: u16 = 8;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Family {
    Inet = 1,
    Ipv4 = 2,
    Bridge = 7,
    Ipv6 = 10,
}

impl Family {
    pub(crate) fn of(ip: std::net::IpAddr) -> Self {
        if ip.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    #[error("could not {what}: {error}")]
    Refused { what: String, error: io::Error },
    #[error(
        "the table {table} changes faster than it can be read: somebody writes to it without a pause"
    )]
    Restless { table: String },
    #[error("could not talk to nftables: {0}")]
    Io(#[from] io::Error),
}

impl NftError {
    /// What was named is not there.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if error.raw_os_error() == Some(libc::ENOENT))
    }
}

impl From<NftError> for crate::protocol::Error {
    fn from(error: NftError) -> Self {
        Self::internal(error)
    }
}

pub(crate) struct Nft {
    socket: NetlinkSocket,
    sequence: u32,
    /// Something was removed, which the kernel takes its time to forget.
    removed: bool,
}

impl Drop for Nft {
    fn drop(&mut self) {
        if self.removed {
            caretaker::close_later(self.socket.as_fd());
        }
    }
}

impl Nft {
    pub(crate) fn open() -> Result<Self, NftError> {
        Ok(Self {
            socket: NetlinkSocket::open(Some(netlink::NETFILTER), 0)?,
            sequence: 1,
            removed: false,
        })
    }

    /// Carries out the whole batch or nothing of it.
    pub(crate) fn commit(&mut self, batch: Batch) -> Result<(), NftError> {
        let first = self.sequence;
        self.removed |= batch.removes();
        let Some((bytes, words)) = batch.finish(first) else { return Ok(()) };
        // The batch's own two messages stand around those of its content.
        let last = first + words.len() as u32;
        self.sequence = last + 2;
        self.socket.make_room(bytes.len(), words.len());
        self.socket.send(&bytes)?;
        let mut refused = None;
        loop {
            for message in socket::messages(self.socket.receive()?) {
                if message.kind != NLMSG_ERROR || !(first..=last).contains(&message.sequence) {
                    continue;
                }
                let errno = message.error();
                if errno != 0 && refused.is_none() {
                    let at = (message.sequence - first) as usize;
                    let what = words.get(at.wrapping_sub(1)).cloned();
                    let what = what.unwrap_or_else(|| "begin a change of the firewall".to_owned());
                    refused = Some(NftError::Refused {
                        what,
                        error: io::Error::from_raw_os_error(errno),
                    });
                }
                // The last one is always answered, unless we were sent away at the door.
                if message.sequence == last || message.sequence == first {
                    return refused.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// One question that has one answer. `None`: what was asked for is not there.
    fn get(
        &mut self,
        kind: u16,
        family: Family,
        attributes: &Attributes,
    ) -> Result<Option<Vec<u8>>, NftError> {
        let sequence = self.ask(kind, family, 0, attributes)?;
        loop {
            for message in socket::messages(self.socket.receive()?) {
                if message.sequence != sequence {
                    continue;
                }
                return match message.kind {
                    NLMSG_ERROR => match message.error() {
                        libc::ENOENT => Ok(None),
                        errno => Err(io::Error::from_raw_os_error(errno).into()),
                    },
                    _ => Ok(Some(message.payload.to_vec())),
                };
            }
        }
    }

    /// Everything there is of a kind. What a concurrent change has torn is asked for again.
    fn dump(
        &mut self,
        kind: u16,
        family: Family,
        attributes: &Attributes,
        mut take: impl FnMut(&[u8]),
    ) -> Result<bool, NftError> {
        let sequence = self.ask(kind, family, NLM_F_DUMP, attributes)?;
        let mut torn = false;
        loop {
            for message in socket::messages(self.socket.receive()?) {
                if message.sequence != sequence {
                    continue;
                }
                torn |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE => return Ok(!torn),
                    NLMSG_ERROR => match message.error() {
                        0 | libc::ENOENT => return Ok(true),
                        libc::EINTR | libc::EAGAIN => return Ok(false),
                        errno => return Err(io::Error::from_raw_os_error(errno).into()),
                    },
                    _ => take(message.payload),
                }
            }
        }
    }

    fn ask(
        &mut self,
        kind: u16,
        family: Family,
        flags: u16,
        attributes: &Attributes,
    ) -> Result<u32, NftError> {
        let sequence = self.sequence;
        self.sequence += 1;
        let mut bytes = Vec::new();
        batch::append(
            &mut bytes,
            kind,
            NLM_F_REQUEST | flags,
            sequence,
            family,
            attributes.as_bytes(),
        );
        self.socket.send(&bytes)?;
        Ok(sequence)
    }
}
