//! One netfilter socket: the system calls and nothing else.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Larger than any datagram of the kernel's.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// An answer that takes longer will not come.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    /// In the network namespace of the calling thread.
    pub(super) fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed; the returned descriptor is owned by nobody else.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_NETFILTER);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // Without a port of its own it would be told nothing that is announced to all.
        bind(&fd)?;
        let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as _, tv_usec: 0 };
        set(&fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience)?;
        Ok(Self { fd, buffer: vec![0; RECEIVE_BUFFER] })
    }

    /// Hears what is announced to `group`, of which the kernel may queue `memory` bytes.
    pub(super) fn join(&self, group: i32, memory: i32) -> io::Result<()> {
        // The forced form goes past net.core.rmem_max but needs CAP_NET_ADMIN of the initial user
        // namespace; without it the plain one does what it can.
        if set(&self.fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &memory).is_err() {
            set(&self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &memory)?;
        }
        set(&self.fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &group)
    }

    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, bytes))?;
        Ok(())
    }

    /// The next datagram.
    pub(super) fn receive(&mut self, wait: bool) -> io::Result<&[u8]> {
        let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
        loop {
            // SAFETY: pointer and length describe our own buffer, borrowed mutably for the call.
            let len = unsafe {
                let buffer = self.buffer.as_mut_ptr().cast();
                libc::recv(self.fd.as_raw_fd(), buffer, self.buffer.len(), flags)
            };
            if len >= 0 {
                return Ok(&self.buffer[..len as usize]);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn bind(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_nl is valid, and the call gets its true size.
    let result = unsafe {
        let mut address: libc::sockaddr_nl = std::mem::zeroed();
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set<T>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call.
    let result = unsafe {
        let length = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
