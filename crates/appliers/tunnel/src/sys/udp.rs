//! A UDP socket that sends and receives many datagrams with one system call.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::{check, check_len};
use crate::outbound::{Message, Piece};
use crate::table::Table;

const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// Buffer for bursts that arrive while the thread is busy.
const BUFFER: libc::c_int = 8 << 20;

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
    v6: bool,
}

impl UdpSocket {
    /// Binds a socket. Features that are missing are left out. With `shared`, several sockets take turns by sender.
    pub(crate) fn bind(
        address: SocketAddr,
        shared: bool,
        wanted: UdpFeatures,
    ) -> io::Result<(Self, UdpFeatures)> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is touched, and the descriptor is new.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind, 0))?) };
        let socket = Self { fd, v6: address.is_ipv6() };
        if socket.v6 {
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        // The address may come later, or go and come back.
        let _ = if socket.v6 {
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 1)
        } else {
            socket.set(libc::IPPROTO_IP, libc::IP_FREEBIND, 1)
        };
        if shared {
            socket.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        for (force, plain) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            if socket.set(libc::SOL_SOCKET, force, BUFFER).is_err() {
                // Without privileges, as much as the system gives everybody.
                socket.set(libc::SOL_SOCKET, plain, BUFFER)?;
            }
        }
        socket.set_fragmenting(false)?;
        let features = UdpFeatures {
            gso: wanted.gso && socket.set(libc::SOL_UDP, UDP_SEGMENT, 0).is_ok(),
            gro: wanted.gro && socket.set(libc::SOL_UDP, UDP_GRO, 1).is_ok(),
        };
        let (name, len) = to_sockaddr(address);
        // SAFETY: the kernel reads `len` bytes of an address of at least that size.
        check(unsafe { libc::bind(socket.fd.as_raw_fd(), (&raw const name).cast(), len) })?;
        Ok((socket, features))
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let len = mem::size_of_val(&value) as libc::socklen_t;
        let value = (&raw const value).cast();
        // SAFETY: the kernel reads one int.
        check(unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, value, len) })
            .map(|_| ())
    }

    /// Sets whether datagrams that are longer than the path's MTU are fragmented, or refused: then the kernel tells
    /// us, and we tell the sender of the inner packet.
    pub(crate) fn set_fragmenting(&self, on: bool) -> io::Result<()> {
        let (level, option, value) = match (self.v6, on) {
            (false, true) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
            (false, false) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
            (true, true) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT),
            (true, false) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        };
        self.set(level, option, value)
    }

    /// Sends one datagram that is not worth waiting for.
    pub(crate) fn send_to(&self, to: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        let (name, len) = to_sockaddr(to);
        // SAFETY: the kernel reads the datagram and `len` bytes of an address of at least that size.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                datagram.as_ptr().cast(),
                datagram.len(),
                libc::MSG_DONTWAIT,
                (&raw const name).cast(),
                len,
            )
        };
        check_len(sent).map(|_| ())
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.v6
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

/// MTU of the path to an address, as far as the kernel knows.
pub(crate) fn path_mtu(to: SocketAddr) -> io::Result<u32> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no memory is touched, and the descriptor is new.
    let fd = unsafe {
        OwnedFd::from_raw_fd(check(libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?)
    };
    let (name, len) = to_sockaddr(to);
    // SAFETY: the kernel reads `len` bytes of an address of at least that size.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const name).cast(), len) })?;
    let (level, option) = if to.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_MTU)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    };
    let mut mtu: libc::c_int = 0;
    let mut len = mem::size_of_val(&mtu) as libc::socklen_t;
    // SAFETY: the kernel writes one int.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut len)
    })?;
    u32::try_from(mtu).map_err(io::Error::other)
}

/// Memory for one call that is used again by the next. Pointers in here are set before each call and mean nothing
/// afterwards.
#[derive(Default)]
pub(crate) struct Sender {
    pieces: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
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
    /// Sends messages in order, and returns how many were sent before the first that failed, with the reason. All
    /// must go to one family.
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
            push_pieces(&mut self.pieces, &message.pieces, read, made);
            self.names.push(to_sockaddr(message.state(table).endpoint()).0);
            self.controls.push(SegmentControl::new(message.segment));
        }
        let mut pieces = self.pieces.as_mut_ptr();
        for (at, message) in messages.iter().enumerate() {
            // SAFETY: a header of all zeroes is a valid value.
            let mut call: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut call.msg_hdr;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = name_len(socket.v6);
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
        // SAFETY: what the calls point to is held by `self` and the caller until this returns, and is not
        // moved.
        let sent = unsafe {
            libc::sendmmsg(
                socket.fd.as_raw_fd(),
                self.calls.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
            )
        };
        check(sent).map(|sent| sent as usize)
    }

    /// Sends one datagram by itself.
    pub(crate) fn send_one(
        &mut self,
        socket: &UdpSocket,
        to: SocketAddr,
        datagram: &[Piece],
        read: &[u8],
        made: &[u8],
    ) -> io::Result<()> {
        self.pieces.clear();
        push_pieces(&mut self.pieces, datagram, read, made);
        let (mut name, len) = to_sockaddr(to);
        // SAFETY: a header of all zeroes is a valid value.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = len;
        header.msg_iov = self.pieces.as_mut_ptr();
        header.msg_iovlen = self.pieces.len() as _;
        // SAFETY: what the header points to lives until this returns.
        let sent =
            unsafe { libc::sendmsg(socket.fd.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT) };
        check_len(sent).map(|_| ())
    }
}

fn push_pieces(to: &mut Vec<libc::iovec>, pieces: &[Piece], read: &[u8], made: &[u8]) {
    to.extend(pieces.iter().map(|piece| {
        let range = piece.of(read, made);
        libc::iovec { iov_base: range.as_ptr().cast_mut().cast(), iov_len: range.len() }
    }));
}

/// Number of messages that one call receives.
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
        // SAFETY: what the calls point to is held by `self` and the caller until this returns, and is not
        // moved.
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
        Some(Received {
            from: from_sockaddr(&self.names[slot])?,
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

fn name_len(v6: bool) -> libc::socklen_t {
    if v6 {
        mem::size_of::<libc::sockaddr_in6>() as _
    } else {
        mem::size_of::<libc::sockaddr_in>() as _
    }
}

fn to_sockaddr(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: a socket address of all zeroes is a valid value, and any kind of address fits into it.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage is at least as large and as aligned as this kind of address.
            let name = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
            name.sin_family = libc::AF_INET as _;
            name.sin_port = v4.port().to_be();
            name.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let name = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
            name.sin6_family = libc::AF_INET6 as _;
            name.sin6_port = v6.port().to_be();
            name.sin6_addr.s6_addr = v6.ip().octets();
            name.sin6_scope_id = v6.scope_id();
        }
    }
    (storage, name_len(address.is_ipv6()))
}

fn from_sockaddr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what the kernel wrote.
            let name = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(name.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, name.sin6_scope_id).into())
        }
        _ => None,
    }
}
