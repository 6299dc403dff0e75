//! Sockets as probing needs them: bound to an address of this node, and never fragmenting what they send.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use flannel_link::open_echo_socket;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use tokio::net::UdpSocket;

/// Opens a socket for asking: any port, and packets as large as they are told to be, whatever the kernel believes of the path.
pub(super) fn asking(from: SocketAddr) -> io::Result<UdpSocket> {
    let fd = open(from.ip())?;
    match from {
        SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(&fd, Ipv4PathMtuDiscovery::PROBE),
        SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&fd, Ipv6PathMtuDiscovery::PROBE),
    }?;
    bind(&fd, &from)?;
    into_tokio(fd)
}

/// Opens a socket for answering at an address, which may come later.
pub(super) fn answering(at: SocketAddr) -> io::Result<UdpSocket> {
    let fd = open(at.ip())?;
    if at.is_ipv6() {
        sockopt::set_ipv6_freebind(&fd, true)?;
        // A packet without a checksum is told from one that came to harm by what is in it.
        set(&fd, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, true)?;
    } else {
        sockopt::set_ip_freebind(&fd, true)?;
    }
    bind(&fd, &at)?;
    into_tokio(fd)
}

/// Opens a socket for pinging. It needs `CAP_NET_RAW`.
pub(super) fn pinging(from: SocketAddr) -> io::Result<UdpSocket> {
    let fd = open_echo_socket(from.is_ipv6(), SocketFlags::NONBLOCK)?;
    bind(&fd, &from)?;
    into_tokio(fd)
}

/// Whether what is sent from now on goes without a UDP checksum.
pub(super) fn leave_out_checksums(socket: &UdpSocket, leave_out: bool) -> io::Result<()> {
    let is_v6 = socket.local_addr()?.is_ipv6();
    let (level, option) = if is_v6 {
        (libc::IPPROTO_UDP, UDP_NO_CHECK6_TX)
    } else {
        (libc::SOL_SOCKET, libc::SO_NO_CHECK)
    };
    set(socket, level, option, leave_out)
}

const UDP_NO_CHECK6_TX: libc::c_int = 101;
const UDP_NO_CHECK6_RX: libc::c_int = 102;

fn open(of: IpAddr) -> io::Result<OwnedFd> {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// A raw socket is used like any other that sends and receives datagrams.
fn into_tokio(fd: OwnedFd) -> io::Result<UdpSocket> {
    UdpSocket::from_std(std::net::UdpSocket::from(fd))
}

fn set(fd: &impl AsFd, level: libc::c_int, option: libc::c_int, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    // SAFETY: the value is one integer of the length given, and lives until the call has returned.
    let result = unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
