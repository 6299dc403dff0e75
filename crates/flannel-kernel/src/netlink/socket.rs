//! One rtnetlink socket: the system calls and nothing else.

use std::io;
#[cfg(feature = "engine")]
use std::os::fd::{AsFd, BorrowedFd};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Larger than any message the kernel sends: it fills dumps by at most 32 KiB.
const RECEIVE_BUFFER: usize = 64 * 1024;

pub(crate) struct Socket {
    fd: OwnedFd,
    port: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// `receive_memory`: how much the kernel may queue for us before it drops messages.
    pub(crate) fn open(nonblocking: bool, receive_memory: i32) -> io::Result<Self> {
        let kind =
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
        // SAFETY: no pointers are passed; the returned descriptor is owned by nobody else.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let mut socket = Self { fd, port: 0, buffer: vec![0; RECEIVE_BUFFER] };
        socket.bind()?;
        socket.set(libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        socket.set(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        // The kernel then honours (and checks) the filters of a dump. Older ones lack it.
        let _ = socket.set(libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1);
        // The forced form goes past net.core.rmem_max but needs CAP_NET_ADMIN of the initial user
        // namespace; without it the plain one does what it can.
        if socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, receive_memory).is_err() {
            socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, receive_memory)?;
        }
        Ok(socket)
    }

    /// The kernel's name for this socket: what it writes into notifications of changes made by it.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }

    #[cfg(feature = "engine")]
    pub(crate) fn join(&self, group: u32) -> io::Result<()> {
        self.set(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group as i32)
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            // SAFETY: pointer and length describe `bytes`, which outlives the call.
            let sent =
                unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// The next datagram.
    pub(crate) fn receive(&mut self) -> io::Result<&[u8]> {
        loop {
            // SAFETY: pointer and length describe our own buffer, borrowed mutably for the call.
            let len = unsafe {
                let buffer = self.buffer.as_mut_ptr().cast();
                libc::recv(self.fd.as_raw_fd(), buffer, self.buffer.len(), 0)
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

    fn bind(&mut self) -> io::Result<()> {
        // SAFETY: an all-zero sockaddr_nl is valid; both calls get its true size.
        unsafe {
            let mut address: libc::sockaddr_nl = std::mem::zeroed();
            address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            let fd = self.fd.as_raw_fd();
            if libc::bind(fd, (&raw const address).cast(), len) != 0
                || libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) != 0
            {
                return Err(io::Error::last_os_error());
            }
            self.port = address.nl_pid;
        }
        Ok(())
    }

    fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        // SAFETY: pointer and length describe `value`, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(feature = "engine")]
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
