//! A child that stays behind to wait for what the kernel makes somebody wait for, though nobody needs
//! to: the plugin's answer does not depend on it.
//!
//! The child holds nothing of ours but what it waits with: a runtime that listens for the end of our
//! output hears it, and who waits for a lock of ours gets it. It ends by itself.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// What became of us.
pub(crate) enum Fork {
    Parent,
    /// There are too many processes; then we wait ourselves.
    Refused,
}

/// Forks; the child does `work`, for which it keeps these descriptors, and ends without running
/// anything else of this program.
pub(crate) fn leave_behind(keep: &[RawFd], work: impl FnOnce()) -> Fork {
    let mut kept: Vec<u32> = keep.iter().map(|fd| *fd as u32).collect();
    kept.sort_unstable();
    // SAFETY: this program has no other thread at this point that could have left a lock held in the
    // child's copy of its memory.
    match unsafe { libc::fork() } {
        0 => {
            close_all_but(&kept);
            work();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) }
        }
        -1 => Fork::Refused,
        _ => Fork::Parent,
    }
}

/// Closing a socket of nftables waits until all that was removed from it is forgotten everywhere, ten
/// milliseconds or more, and keeps every other user of nftables waiting meanwhile. Closed later, it
/// waits for nothing. So a child holds it for a while.
pub(crate) fn close_later(socket: BorrowedFd<'_>) {
    const LATER: Duration = Duration::from_millis(300);
    leave_behind(&[socket.as_raw_fd()], || std::thread::sleep(LATER));
}

fn close_all_but(kept: &[u32]) {
    let mut from = 0;
    for fd in kept.iter().copied().chain([u32::MAX]) {
        if fd > from {
            close_range(from, fd - 1);
        }
        from = fd.saturating_add(1);
    }
}

fn close_range(first: u32, last: u32) {
    // SAFETY: nothing in the child uses a descriptor that it was not told to keep.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if closed != 0 {
        // Kernels before 5.9. The descriptors of such a short life are few.
        for fd in first..=last.min(255) {
            // SAFETY: as above.
            unsafe { libc::close(fd as i32) };
        }
    }
}
