//! System calls for TUN devices and UDP sockets, many packets at a time.

pub(crate) mod device_place;
pub(crate) mod interrupt;
pub(crate) mod tun;
pub(crate) mod udp;

use std::io;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Whether nothing is there now, which is not a failure.
pub(crate) fn is_empty(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
