//! One netlink socket: the system calls and nothing else.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use flannel_common::simulation::{self, NetlinkSocket};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Larger than any datagram of the kernel's: it fills dumps by at most 32 KiB.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// The kernel answers before `send` returns. An answer that has not come by then will never come.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Protocol {
    /// Links, addresses, routes, neighbours.
    Route = libc::NETLINK_ROUTE,
    /// nftables, connection tracking.
    Netfilter = libc::NETLINK_NETFILTER,
    /// Families that are known by name: wireguard.
    Generic = libc::NETLINK_GENERIC,
    /// IPsec's policies and states.
    Xfrm = libc::NETLINK_XFRM,
}

pub struct Socket {
    /// In a simulation nothing ever arrives at it.
    fd: OwnedFd,
    /// Where messages go in a simulation.
    simulated: Option<Box<dyn NetlinkSocket>>,
    port: OnceLock<u32>,
    buffer: Vec<u8>,
    pub(crate) answer_timeout: Duration,
}

impl Socket {
    /// In the network namespace of the calling thread.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        if let Some(world) = simulation::world() {
            let simulated = Some(world.open_netlink(protocol as i32)?);
            let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
            return Ok(Self { simulated, ..Self::unbounded(fd, ANSWER_TIMEOUT) });
        }
        let fd = bound(protocol, 0)?;
        // Errors come with a sentence and without the request, where the kernel is new enough.
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            let _ = set(&fd, libc::SOL_NETLINK, option, 1);
        }
        Self::over(fd, ANSWER_TIMEOUT)
    }

    /// One that hears these groups (a set of bits) from its beginning.
    pub fn listen(protocol: Protocol, groups: u32) -> io::Result<Self> {
        Self::over(bound(protocol, groups)?, ANSWER_TIMEOUT)
    }

    /// One that somebody else has opened.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        Self::over(fd, ANSWER_TIMEOUT)
    }

    pub(crate) fn over(fd: OwnedFd, answer_timeout: Duration) -> io::Result<Self> {
        set_socket_timeout(&fd, Timeout::Recv, Some(answer_timeout))?;
        Ok(Self::unbounded(fd, answer_timeout))
    }

    fn unbounded(fd: OwnedFd, answer_timeout: Duration) -> Self {
        let buffer = vec![0; RECEIVE_BUFFER];
        Self { fd, simulated: None, port: OnceLock::new(), buffer, answer_timeout }
    }

    /// The kernel's name for this socket: what it writes into notifications of changes made by it.
    pub fn port(&self) -> u32 {
        if let Some(simulated) = &self.simulated {
            return simulated.port();
        }
        // Asked for once, and only by those who want to know. A bound socket always has one.
        let ask = || SocketAddrNetlink::try_from(rustix::net::getsockname(&self.fd)?);
        *self.port.get_or_init(|| ask().map_or(0, |address| address.pid()))
    }

    /// Dumps are then filtered by the kernel, as far as it knows how to. Older ones give everything.
    pub(crate) fn filter_dumps(&self) {
        let _ = set(&self.fd, libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1);
    }

    /// How much the kernel may queue for us before it drops messages.
    pub fn set_receive_memory(&self, bytes: i32) -> io::Result<()> {
        self.set_memory(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)
    }

    /// How much one `send` may hold.
    pub fn set_send_memory(&self, bytes: i32) -> io::Result<()> {
        self.set_memory(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)
    }

    /// The forced form goes past net.core.rmem_max but needs CAP_NET_ADMIN of the initial user namespace; without it the
    /// plain one does what it can.
    fn set_memory(&self, forced: i32, plain: i32, bytes: i32) -> io::Result<()> {
        if self.simulated.is_some() {
            return Ok(());
        }
        set(&self.fd, libc::SOL_SOCKET, forced, bytes)
            .or_else(|_| set(&self.fd, libc::SOL_SOCKET, plain, bytes))
    }

    /// Hears what is announced to this group from now on.
    pub fn join(&self, group: u32) -> io::Result<()> {
        if let Some(simulated) = &self.simulated {
            return simulated.join(group);
        }
        set(&self.fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group.cast_signed())
    }

    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        if let Some(simulated) = &self.simulated {
            return simulated.send(bytes);
        }
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, bytes, SendFlags::empty()))?;
        Ok(())
    }

    /// The next datagram of an answer.
    pub fn receive(&mut self) -> io::Result<&[u8]> {
        match self.receive_with(RecvFlags::empty()) {
            Ok(len) => Ok(&self.buffer[..len]),
            Err(Errno::AGAIN) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the kernel gave no answer within {:.1?}", self.answer_timeout),
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// A datagram that is there already; `WouldBlock` when there is none.
    pub fn receive_now(&mut self) -> io::Result<&[u8]> {
        let len = self.receive_with(RecvFlags::DONTWAIT)?;
        Ok(&self.buffer[..len])
    }

    fn receive_with(&mut self, flags: RecvFlags) -> Result<usize, Errno> {
        if let Some(simulated) = &self.simulated {
            let received = simulated.receive(&mut self.buffer);
            return received.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        let (len, _) =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.fd, &mut self.buffer[..], flags))?;
        Ok(len)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn bound(protocol: Protocol, groups: u32) -> io::Result<OwnedFd> {
    // That of routes is 0, which is the default.
    let protocol = NonZeroU32::new(protocol as u32).map(rustix::net::Protocol::from_raw);
    let fd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

fn set(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
