//! A raw netlink socket: the system calls, and cutting a datagram into its messages.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Larger than any datagram of the kernel: it fills dumps by at most 32 KiB.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// The kernel answers before `send` returns; so this is never reached.
const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const HEADER_LEN: usize = 16;

pub(crate) struct NetlinkSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// One message as it stands in the receive buffer.
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

impl NetlinkSocket {
    /// Without a protocol it is about links, addresses and routes. `groups`: the events to listen
    /// to, as a set of bits.
    pub(crate) fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        // Dumps are then filtered by the kernel. Older ones lack it, and give all.
        set(&fd, libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1);
        // What is refused need not be sent back whole.
        set(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1);
        Ok(Self { fd, buffer: vec![0; RECEIVE_BUFFER] })
    }

    /// One that somebody else has opened.
    pub(crate) fn of(fd: OwnedFd) -> io::Result<Self> {
        set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { fd, buffer: vec![0; RECEIVE_BUFFER] })
    }

    /// Lets the kernel take a message of this size, and queue so many answers, where both are more than
    /// usual. What the host does not allow comes out as the error of `send` or `receive`.
    pub(crate) fn make_room(&self, bytes: usize, answers: usize) {
        const USUAL_BYTES: usize = 64 * 1024;
        const USUAL_ANSWERS: usize = 100;
        /// What a short message costs in the queue.
        const ANSWER: usize = 1024;
        // Some is taken for the kernel's own bookkeeping.
        if bytes > USUAL_BYTES {
            self.resize(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes + 4096);
        }
        if answers > USUAL_ANSWERS {
            self.resize(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, answers * ANSWER);
        }
    }

    /// The forced form goes past the host's limits, which were not made for root.
    fn resize(&self, forced: libc::c_int, plain: libc::c_int, bytes: usize) {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        if !set(&self.fd, libc::SOL_SOCKET, forced, bytes) {
            set(&self.fd, libc::SOL_SOCKET, plain, bytes);
        }
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match rustix::net::send(&self.fd, bytes, SendFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next datagram.
    pub(crate) fn receive(&mut self) -> io::Result<&[u8]> {
        loop {
            match rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => return Ok(&self.buffer[..len]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn set(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> bool {
    // SAFETY: pointer and length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    result == 0
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Stops at the first that is torn.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let header: &[u8; HEADER_LEN] = rest.first_chunk()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let message = Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
            payload: rest.get(HEADER_LEN..len)?,
        };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

impl Message<'_> {
    /// The error number of an answer of that kind; 0 is an acknowledgement.
    pub(crate) fn error(&self) -> i32 {
        self.payload.first_chunk().map_or(libc::EBADMSG, |code| -i32::from_ne_bytes(*code))
    }
}
