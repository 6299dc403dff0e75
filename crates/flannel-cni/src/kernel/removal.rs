//! Removing a link without waiting for what nobody needs to wait for.
//!
//! The kernel takes a link out of sight within two milliseconds. Then it makes the caller wait, for
//! ten times as long, until nobody can hold a reference to its memory any more. So a child asks for
//! the removal and waits, while we hear from the kernel that the link is gone, and go on.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::afterlife::{Fork, leave_behind};
use crate::socket::{self, NetlinkSocket};

const RTM_DELLINK: u16 = 17;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const LINK_EVENTS: u32 = 1;
/// Far beyond what even a busy host needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything that is needed to remove a link of the namespace in which this was prepared.
pub(crate) struct Removal {
    requests: NetlinkSocket,
    events: NetlinkSocket,
    index: u32,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RemovalError {
    #[error("could not remove link {index}: {error}")]
    Failed { index: u32, error: io::Error },
    #[error("link {index} was not gone after {} s", PATIENCE.as_secs())]
    Slow { index: u32 },
}

impl Removal {
    pub(crate) fn prepare(index: u32) -> Result<Self, RemovalError> {
        let failed = |error| RemovalError::Failed { index, error };
        Ok(Self {
            requests: NetlinkSocket::open(None, 0).map_err(failed)?,
            events: NetlinkSocket::open(None, LINK_EVENTS).map_err(failed)?,
            index,
        })
    }

    /// Returns when the link is gone. That it was gone before is fine.
    pub(crate) fn carry_out(mut self) -> Result<(), RemovalError> {
        let index = self.index;
        let failed = |error: io::Error| RemovalError::Failed { index, error };
        let (told, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let (requests, index) = (&mut self.requests, self.index);
        let keep = [requests.as_fd().as_raw_fd(), tell.as_raw_fd()];
        let ask_and_tell = || {
            let errno =
                ask(requests, index).err().and_then(|error| error.raw_os_error()).unwrap_or(0);
            let _ = rustix::io::write(&tell, &errno.to_ne_bytes());
        };
        match leave_behind(&keep, ask_and_tell) {
            Fork::Refused => ask(&mut self.requests, index).map_err(failed),
            Fork::Parent => {
                drop(tell);
                self.wait(&told)
            }
        }
    }

    fn wait(&mut self, told: &OwnedFd) -> Result<(), RemovalError> {
        let index = self.index;
        let failed = |error: io::Error| RemovalError::Failed { index, error };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RemovalError::Slow { index });
            }
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut waiting = [
                PollFd::new(&self.events, PollFlags::IN),
                PollFd::from_borrowed_fd(told.as_fd(), PollFlags::IN),
            ];
            match poll(&mut waiting, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            let [heard, answered] = waiting.map(|it| !it.revents().is_empty());
            if heard && self.hear_of_it().map_err(failed)? {
                return Ok(());
            }
            if answered {
                let mut errno = [0; 4];
                return match rustix::io::read(told, &mut errno) {
                    Ok(4) if errno == [0; 4] => Ok(()),
                    Ok(4) => Err(failed(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))),
                    // It was killed. Whether it got that far, the next try will tell.
                    _ => ask(&mut self.requests, index).map_err(failed),
                };
            }
        }
    }

    fn hear_of_it(&mut self) -> io::Result<bool> {
        let index = self.index.to_ne_bytes();
        match self.events.receive() {
            Ok(datagram) => Ok(socket::messages(datagram).any(|message| {
                message.kind == RTM_DELLINK && message.payload.get(4..8) == Some(&index[..])
            })),
            // Events were lost. The child's answer will come in any case.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn ask(requests: &mut NetlinkSocket, index: u32) -> io::Result<()> {
    let mut message = [0; 32];
    message[0..4].copy_from_slice(&32u32.to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_DELLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message[8..12].copy_from_slice(&1u32.to_ne_bytes());
    message[20..24].copy_from_slice(&index.to_ne_bytes());
    requests.send(&message)?;
    for message in socket::messages(requests.receive()?) {
        if message.kind == NLMSG_ERROR {
            return match message.error() {
                0 | libc::ENODEV => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
        }
    }
    Ok(())
}
