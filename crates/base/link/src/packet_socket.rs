//! Sockets for whole frames of one device.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Opens a socket for frames of this EtherType (`libc::ETH_P_…`) on one device, which does not block. `filter` is a
/// program of classic BPF; it stands before the first frame can arrive.
pub fn open_packet_socket(
    link_index: u32,
    ether_type: u16,
    filter: &[libc::sock_filter],
) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol nothing is received before it is bound.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    if !filter.is_empty() {
        attach_filter(&socket, filter)?;
    }
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ether_type.to_be();
    address.sll_ifindex = i32::try_from(link_index).map_err(io::Error::other)?;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address lives as long as the call, and its length is its own.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Waits until one of these sockets is readable. Returns false once the time has come.
pub(crate) fn wait_readable<'a>(
    sockets: impl IntoIterator<Item = &'a OwnedFd>,
    until: Instant,
) -> io::Result<bool> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
    let sockets = sockets.into_iter();
    let mut waiting: Vec<_> = sockets.map(|it| PollFd::new(it, PollFlags::IN)).collect();
    match poll(&mut waiting, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(!left.is_zero()),
        Err(error) => Err(error.into()),
    }
}

/// An instruction of classic BPF.
pub fn instruction(code: u32, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: if_true, jf: if_false, k: value }
}

fn attach_filter(socket: &OwnedFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel reads program and instructions, which live as long as the call, and writes to neither.
    let attached = unsafe {
        let (value, size) = ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
        let option = libc::SO_ATTACH_FILTER;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size)
    };
    if attached == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
