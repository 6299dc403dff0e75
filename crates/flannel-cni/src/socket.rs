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
const PATIENCE: Duration = Duration::from_secs(10);
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
        set_strict(&fd);
        Ok(Self { fd, buffer: vec![0; RECEIVE_BUFFER] })
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

fn set_strict(fd: &OwnedFd) {
    let on: libc::c_int = 1;
    // SAFETY: pointer and length describe `on`, which outlives the call.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_GET_STRICT_CHK,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
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
