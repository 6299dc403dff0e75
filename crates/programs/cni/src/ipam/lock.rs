//! The lock of a network's reservations: an advisory lock on a file, which both implementations
//! take, and which the kernel sets free when its holder dies.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Holders need it for less than a millisecond; one that was stopped in the middle has it for ever.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

pub struct Lock {
    _file: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("somebody has held the lock in {} for {} s", path.display(), LOCK_TIMEOUT.as_secs())]
    Held { path: PathBuf },
    #[error("could not lock the reservations in {}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

impl Lock {
    pub(super) fn take(file: OwnedFd, path: &Path, timeout: Duration) -> Result<Self, LockError> {
        let file = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(Errno::WOULDBLOCK) => {
                wait(file, timeout).ok_or_else(|| LockError::Held { path: path.to_owned() })?
            }
            Err(error) => Err(error),
        };
        let file =
            file.map_err(|error| LockError::Io { path: path.to_owned(), error: error.into() })?;
        Ok(Self { _file: file })
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
