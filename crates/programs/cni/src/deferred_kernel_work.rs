//! Work of the kernel that a plugin does not wait for: flanneld does.
//!
//! The kernel takes a link out of sight within two milliseconds, and then makes whoever asked for it wait
//! ten times as long, until nobody can hold a reference to its memory any more. It does the same to
//! whoever closes a socket by which something was removed from nftables, and to all other users of
//! nftables meanwhile; closed a little later, the socket waits for nothing.
//!
//! Nobody needs to wait for that, and flanneld runs on every node: so a plugin hands it the socket, and
//! flanneld waits. The same goes for a walk through the kernel's whole table of flows. A plugin that finds no
//! flanneld, or one that does not answer, does it itself. It never leaves a process behind to do
//! it: under a first process that reaps nobody, that would stay for ever.

mod server;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

pub use server::{ServeError, serve};

use crate::portmap::UdpFlows;

/// The name of the socket, beside flanneld's file about the node's subnet.
pub const SOCKET: &str = "cni.sock";
/// Where plugins look for it, unless the variable says otherwise.
const DEFAULT_PATH: &str = "/run/flannel/cni.sock";
const PATH_VARIABLE: &str = "FLANNEL_CNI_SOCKET";

/// How long a plugin waits until a flanneld says that it takes the work: as long as it would take to do it itself. A
/// flanneld that hangs costs a plugin no more than that.
const HELP_TIMEOUT: Duration = Duration::from_millis(25);

/// What flanneld is to do with the socket that comes along.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DeferredWork {
    /// Say that it will be done, remove the link with this index, and say what came of it.
    RemoveLink(u32),
    CloseLater,
    /// Say that it will be done, and forget these flows.
    ForgetFlows(UdpFlows),
}

impl DeferredWork {
    const LONGEST: usize = 1 + UdpFlows::LONGEST;

    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::RemoveLink(index) => [&[4][..], &index.to_ne_bytes()].concat(),
            Self::CloseLater => vec![2, 0, 0, 0, 0],
            Self::ForgetFlows(flows) => [&[3][..], &flows.to_bytes()].concat(),
        }
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (4, link) => Some(Self::RemoveLink(u32::from_ne_bytes(link.try_into().ok()?))),
            (2, _) => Some(Self::CloseLater),
            (3, flows) => UdpFlows::of_bytes(flows).map(Self::ForgetFlows),
            _ => None,
        }
    }
}

pub(crate) struct WorkTaker {
    pub(crate) connection: OwnedFd,
}

impl WorkTaker {
    /// `None`: no flanneld runs here.
    pub(crate) fn find() -> Option<Self> {
        let path = std::env::var_os(PATH_VARIABLE);
        let path = path.as_ref().map_or(Path::new(DEFAULT_PATH), Path::new);
        connect(path).ok().map(|connection| Self { connection })
    }

    /// Whether flanneld removes a link. If it does, nobody else may use the socket any more, and the number of an
    /// error can be read from the connection (0: none) once the link is gone.
    pub(crate) fn remove_link(&self, requests: BorrowedFd<'_>, index: u32) -> bool {
        self.hand_over(&DeferredWork::RemoveLink(index), requests).is_ok() && self.accepts()
    }

    /// Whether an answer comes in time. One that has too much to do closes the connection instead.
    fn accepts(&self) -> bool {
        let timeout = Timespec { tv_sec: 0, tv_nsec: HELP_TIMEOUT.subsec_nanos().into() };
        let mut waiting = [PollFd::new(&self.connection, PollFlags::IN)];
        let answered = poll(&mut waiting, Some(&timeout)).is_ok_and(|ready| ready > 0);
        answered && rustix::io::read(&self.connection, &mut [0; 1]) == Ok(1)
    }

    fn hand_over(&self, work: &DeferredWork, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sockets = [socket];
        control.push(SendAncillaryMessage::ScmRights(&sockets));
        let bytes = work.to_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.connection, &[IoSlice::new(&bytes)], &mut control, flags)?;
        Ok(())
    }
}

/// Has flanneld close a socket later. Without a flanneld it is closed now.
pub(crate) fn close_later(socket: BorrowedFd<'_>) {
    if let Some(taker) = WorkTaker::find() {
        let _ = taker.hand_over(&DeferredWork::CloseLater, socket);
    }
}

/// Whether flanneld forgets these flows. If it does, nobody else may use the socket any more.
pub(crate) fn forget_flows(socket: BorrowedFd<'_>, flows: &UdpFlows) -> bool {
    let Some(taker) = WorkTaker::find() else { return false };
    let work = DeferredWork::ForgetFlows(flows.clone());
    taker.hand_over(&work, socket).is_ok() && taker.accepts()
}

/// Never waits: a flanneld that does not accept at once is as good as none.
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
    fn deferred_work_is_read_as_it_was_written() {
        let flows = UdpFlows { ipv4: true, ipv6: false, ports: vec![53, 65_535] };
        for work in [
            DeferredWork::RemoveLink(0x0102_0304),
            DeferredWork::CloseLater,
            DeferredWork::ForgetFlows(flows),
        ] {
            let bytes = work.to_bytes();
            assert!(bytes.len() <= DeferredWork::LONGEST);
            assert_eq!(DeferredWork::of_bytes(&bytes), Some(work));
        }
        for nonsense in
            [&[][..], &[0; 5], &[1, 2], &[3], &[3, 3, 1], &[3; DeferredWork::LONGEST + 2]]
        {
            assert_eq!(DeferredWork::of_bytes(nonsense), None, "{nonsense:?}");
        }
    }
}
