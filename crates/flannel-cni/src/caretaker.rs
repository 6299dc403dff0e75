//! Waiting for the kernel on a plugin's behalf.
//!
//! The kernel takes a link out of sight within two milliseconds, and then makes whoever asked for it wait
//! ten times as long, until nobody can hold a reference to its memory any more. It does the same to
//! whoever closes a socket by which something was removed from nftables, and to all other users of
//! nftables meanwhile; closed a little later, the socket waits for nothing.
//!
//! Nobody needs to wait for that, and flanneld runs on every node: so a plugin hands it the socket, and
//! flanneld waits. A plugin that finds no flanneld waits itself. It never leaves a process behind to do
//! it: under a first process that reaps nobody, that would stay for ever.

mod server;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

pub use server::{ServeError, serve};

/// The name of the socket, beside flanneld's file about the node's subnet.
pub const SOCKET: &str = "cni.sock";
/// Where plugins look for it, unless the variable says otherwise.
const DEFAULT: &str = "/run/flannel/cni.sock";
const VARIABLE: &str = "FLANNEL_CNI_SOCKET";

/// What flanneld is to do with the socket that comes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    /// Remove the link with this index, and say what came of it.
    RemoveLink(u32),
    CloseLater,
}

impl Errand {
    const LEN: usize = 5;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let (kind, index) = match self {
            Self::RemoveLink(index) => (1, index),
            Self::CloseLater => (2, 0),
        };
        let [a, b, c, d] = index.to_ne_bytes();
        [kind, a, b, c, d]
    }

    fn of_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let [kind, a, b, c, d] = bytes;
        match kind {
            1 => Some(Self::RemoveLink(u32::from_ne_bytes([a, b, c, d]))),
            2 => Some(Self::CloseLater),
            _ => None,
        }
    }
}

/// A flanneld that waits for us.
pub(crate) struct Caretaker {
    connection: OwnedFd,
}

impl Caretaker {
    /// `None`: there is none.
    pub(crate) fn find() -> Option<Self> {
        let path = std::env::var_os(VARIABLE);
        let path = path.as_ref().map_or(Path::new(DEFAULT), Path::new);
        connect(path).ok().map(|connection| Self { connection })
    }

    /// The number of an error can be read from it (0: none) once the link is gone.
    pub(crate) fn remove_link(&self, requests: BorrowedFd<'_>, index: u32) -> io::Result<()> {
        self.hand_over(Errand::RemoveLink(index), requests)
    }

    fn hand_over(&self, errand: Errand, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sockets = [socket];
        control.push(SendAncillaryMessage::ScmRights(&sockets));
        let bytes = errand.to_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.connection, &[IoSlice::new(&bytes)], &mut control, flags)?;
        Ok(())
    }
}

impl AsFd for Caretaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// Without anybody to do it, it is closed now.
pub(crate) fn close_later(socket: BorrowedFd<'_>) {
    if let Some(caretaker) = Caretaker::find() {
        let _ = caretaker.hand_over(Errand::CloseLater, socket);
    }
}

/// Never waits: one that does not even answer the door is as good as none.
fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    // Sockets with root's rights go to root alone.
    match rustix::net::sockopt::socket_peercred(socket.as_fd())?.uid {
        rustix::process::Uid::ROOT => Ok(socket),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errand_is_understood_as_it_was_meant() {
        for errand in [Errand::RemoveLink(0x0102_0304), Errand::CloseLater] {
            assert_eq!(Errand::of_bytes(errand.to_bytes()), Some(errand));
        }
        assert_eq!(Errand::of_bytes([0; Errand::LEN]), None);
    }
}
