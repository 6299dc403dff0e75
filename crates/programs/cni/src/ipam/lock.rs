//! The lock of a network's reservations: an advisory lock on a file, which both implementations
//! take, and which the kernel sets free when its holder dies.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Holders need it for less than a millisecond; one that was stopped in the middle has it for ever.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

pub struct Lock {
    _file: OwnedFd,
}

impl Lock {
    /// `None`: somebody else holds it all the time.
    pub(super) fn take(file: OwnedFd, timeout: Duration) -> Result<Option<Self>, Errno> {
        let locked = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => wait(file, timeout).transpose()?,
            other => other.map(|()| Some(file))?,
        };
        Ok(locked.map(|file| Self { _file: file }))
    }
}

/// In a thread, because the kernel's own waiting line is fair and has no clock. It ends with us.
fn wait(file: OwnedFd, timeout: Duration) -> Option<Result<OwnedFd, Errno>> {
    if timeout.is_zero() {
        return None;
    }
    let (done, waiting) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let locked = loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        let _ = done.send(locked.map(|()| file));
    });
    waiting.recv_timeout(timeout).ok()
}
