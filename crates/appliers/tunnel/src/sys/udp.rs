//! A UDP socket that sends and receives many datagrams with one system call.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_freebind,
    set_ip_mtu_discover, set_ipv6_freebind, set_ipv6_mtu_discover, set_ipv6_v6only,
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_reuseport,
    set_socket_send_buffer_size, set_socket_send_buffer_size_force,
};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, connect, sendto, socket_with,
};
use socket2::{SockAddr, SockAddrStorage};

use super::check;
use crate::outbound::Message;
use crate::table::Table;

const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// Buffer for bursts that arrive while the thread is busy.
const BUFFER: usize = 8 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UdpFeatures {
    /// The kernel cuts messages into datagrams.
    pub(crate) gso: bool,
    /// The kernel joins datagrams of one sender.
    pub(crate) gro: bool,
}

#[derive(Debug)]
pub(crate) struct UdpSocket {
    fd: OwnedFd,
    pub(crate) v6: bool,
}

impl UdpSocket {
    /// Binds a socket. Features that are missing are left out. With `shared`, several sockets take turns by sender.
    pub(crate) fn bind(
        address: SocketAddr,
        shared: bool,
        wanted: UdpFeatures,
    ) -> io::Result<(Self, UdpFeatures)> {
        let socket = Self { fd: open(address.is_ipv6())?, v6: address.is_ipv6() };
        let fd = &socket.fd;
        // The address may come later, or go and come back.
        let _ = if socket.v6 {
            set_ipv6_v6only(fd, true)?;
            set_ipv6_freebind(fd, true)
        } else {
            set_ip_freebind(fd, true)
        };
        if shared {
            set_socket_reuseport(fd, true)?;
        }
        // Without privileges, as much as the system gives everybody.
        set_socket_recv_buffer_size_force(fd, BUFFER)
            .or_else(|_| set_socket_recv_buffer_size(fd, BUFFER))?;
        set_socket_send_buffer_size_force(fd, BUFFER)
            .or_else(|_| set_socket_send_buffer_size(fd, BUFFER))?;
        socket.set_fragmenting(false)?;
        let features = UdpFeatures {
            gso: wanted.gso && socket.set_udp(UDP_SEGMENT, 0).is_ok(),
            gro: wanted.gro && socket.set_udp(UDP_GRO, 1).is_ok(),
        };
        rustix::net::bind(fd, &address)?;
        Ok((socket, features))
    }

    fn set_udp(&self, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let len = mem::size_of_val(&value) as libc::socklen_t;
        let value = (&raw const value).cast();
        // SAFETY: the kernel reads one int.
        check(unsafe { libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_UDP, option, value, len) })
            .map(|_| ())
    }

    /// Sets whether datagrams that are longer than the path's MTU are fragmented, or refused: then the kernel tells
    /// us, and we tell the sender of the inner packet.
    pub(crate) fn set_fragmenting(&self, on: bool) -> io::Result<()> {
        Ok(match (self.v6, on) {
            (false, true) => set_ip_mtu_discover(&self.fd, Ipv4PathMtuDiscovery::DONT),
            (false, false) => set_ip_mtu_discover(&self.fd, Ipv4PathMtuDiscovery::DO),
            (true, true) => set_ipv6_mtu_discover(&self.fd, Ipv6PathMtuDiscovery::DONT),
            (true, false) => set_ipv6_mtu_discover(&self.fd, Ipv6PathMtuDiscovery::DO),
        }?)
    }

    /// Sends one datagram that is not worth waiting for.
    pub(crate) fn send_to(&self, to: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        sendto(&self.fd, datagram, SendFlags::DONTWAIT, &to)?;
        Ok(())
    }

    pub(crate) fn from_fd(fd: OwnedFd, v6: bool) -> Self {
        Self { fd, v6 }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open(v6: bool) -> rustix::io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// MTU of the path to an address, as far as the kernel knows.
pub(crate) fn path_mtu(to: SocketAddr) -> io::Result<u32> {
    let socket = open(to.is_ipv6())?;
    connect(&socket, &to)?;
    Ok(if to.is_ipv4() { ip_mtu(&socket) } else { ipv6_mtu(&socket) }?)
}

/// Memory that each call uses again. Pointers in here are set before each call and mean nothing afterwards.
#[derive(Default)]
pub(crate) struct Sender {
    pieces: Vec<libc::iovec>,
    names: Vec<SockAddr>,
    controls: Vec<SegmentControl>,
    calls: Vec<libc::mmsghdr>,
}

// SAFETY: no pointer in it is followed outside of the call that set it.
unsafe impl Send for Sender {}

/// Control message with the size of datagrams.
#[repr(C)]
struct SegmentControl {
    header: libc::cmsghdr,
    size: u16,
    /// Control messages are aligned to a word.
    padding: [u8; 6],
}

impl SegmentControl {
    fn new(size: usize) -> Self {
        // SAFETY: a header of all zeroes is a valid value.
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        header.cmsg_level = libc::SOL_UDP;
        header.cmsg_type = UDP_SEGMENT;
        header.cmsg_len = (mem::size_of::<libc::cmsghdr>() + mem::size_of::<u16>()) as _;
        Self { header, size: size as u16, padding: [0; 6] }
    }
}

impl Sender {
    /// Sends messages, all to one family. Returns how many were sent before the first that failed, with the reason.
    pub(crate) fn send(
        &mut self,
        socket: &UdpSocket,
        table: &Table,
        messages: &[Message],
        read: &[u8],
        made: &[u8],
    ) -> io::Result<usize> {
        self.pieces.clear();
        self.names.clear();
        self.controls.clear();
        self.calls.clear();
        for message in messages {
            self.pieces.extend(message.pieces.iter().map(|piece| {
                let range = piece.of(read, made);
                libc::iovec { iov_base: range.as_ptr().cast_mut().cast(), iov_len: range.len() }
            }));
            self.names.push(message.state(table).endpoint().into());
            self.controls.push(SegmentControl::new(message.segment));
        }
        let mut pieces = self.pieces.as_mut_ptr();
        for (at, message) in messages.iter().enumerate() {
            // SAFETY: a header of all zeroes is a valid value.
            let mut call: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut call.msg_hdr;
            // Addresses are only read.
            header.msg_name = self.names[at].as_ptr().cast_mut().cast();
            header.msg_namelen = self.names[at].len();
            header.msg_iov = pieces;
            header.msg_iovlen = message.pieces.len() as _;
            if message.packets > 1 {
                header.msg_control = (&raw mut self.controls[at]).cast();
                header.msg_controllen = mem::size_of::<SegmentControl>() as _;
            }
            self.calls.push(call);
            // SAFETY: as many pieces as the messages have were pushed above.
            pieces = unsafe { pieces.add(message.pieces.len()) };
        }
        let count = self.calls.len() as libc::c_uint;
        // SAFETY: what the calls point to is held, unmoved, by `self` and the caller until this returns.
        let sent = unsafe {
            let calls = self.calls.as_mut_ptr();
            libc::sendmmsg(socket.fd.as_raw_fd(), calls, count, libc::MSG_DONTWAIT as _)
        };
        check(sent).map(|sent| sent as usize)
    }
}

pub(crate) const MAX_RECEIVED: usize = 64;
const CONTROL: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ReceiveControl([u8; CONTROL]);

/// One message, in the buffer it was received into.
pub(crate) struct Received {
    pub(crate) from: SocketAddr,
    pub(crate) len: usize,
    /// Length of each datagram that was joined; 0 for a single one.
    pub(crate) segment: usize,
    pub(crate) truncated: bool,
}

/// Memory for receiving; see [`Sender`].
pub(crate) struct Receiver {
    pieces: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<ReceiveControl>,
    calls: Vec<libc::mmsghdr>,
}

// SAFETY: no pointer in it is followed outside of the call that set it.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(crate) fn new(slots: usize) -> Self {
        // SAFETY: these structures are valid when all zeroes.
        let (name, call) = unsafe { (mem::zeroed(), mem::zeroed()) };
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let slots = slots.min(MAX_RECEIVED);
        Self {
            pieces: vec![empty; slots],
            names: vec![name; slots],
            controls: vec![ReceiveControl([0; CONTROL]); slots],
            calls: vec![call; slots],
        }
    }

    /// Waits for a message, and receives all others that are there by then, into slots of `slot` bytes each.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        buffer: &mut [u8],
        slot: usize,
    ) -> io::Result<usize> {
        let slots = self.calls.len().min(buffer.len() / slot);
        for (at, part) in buffer.chunks_exact_mut(slot).take(slots).enumerate() {
            self.pieces[at] =
                libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
            let header = &mut self.calls[at].msg_hdr;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as _;
            header.msg_iov = &raw mut self.pieces[at];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[at]).cast();
            header.msg_controllen = CONTROL as _;
            header.msg_flags = 0;
        }
        let flags = libc::MSG_WAITFORONE;
        // SAFETY: what the calls point to is held, unmoved, by `self` and the caller until this returns.
        let received = unsafe {
            let calls = self.calls.as_mut_ptr();
            let none = std::ptr::null_mut();
            libc::recvmmsg(socket.fd.as_raw_fd(), calls, slots as _, flags as _, none)
        };
        check(received).map(|received| received as usize)
    }

    /// Message in a slot after [`Self::receive`]; `None` for a sender without an address.
    pub(crate) fn received(&self, slot: usize) -> Option<Received> {
        let call = &self.calls[slot];
        let mut name = SockAddrStorage::zeroed();
        // SAFETY: the kernel wrote the kind of address whose family is in it.
        let from = unsafe {
            *name.view_as() = self.names[slot];
            SockAddr::new(name, call.msg_hdr.msg_namelen)
        };
        Some(Received {
            from: from.as_socket()?,
            len: call.msg_len as usize,
            segment: segment_of(&call.msg_hdr),
            truncated: call.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        })
    }
}

fn segment_of(header: &libc::msghdr) -> usize {
    // SAFETY: the kernel has filled in the control buffer that the header points to, which is alive.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            if (*control).cmsg_level == libc::SOL_UDP && (*control).cmsg_type == UDP_GRO {
                let size = libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(size).unwrap_or(0);
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    0
}
