//! Removing a link without waiting for what nobody needs to wait for: flanneld asks for the removal and
//! waits, while we hear from the kernel that the link is gone, and go on. Without flanneld we wait.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::caretaker::Caretaker;
use crate::netns::{Netns, NetnsError};
use crate::socket::{self, NetlinkSocket};

const RTM_DELLINK: u16 = 17;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const LINK_EVENTS: u32 = 1;
/// Far beyond what even a busy flanneld needs. Then we do it ourselves.
const PATIENCE: Duration = Duration::from_secs(2);

/// A removal that flanneld carries out.
struct Removal {
    caretaker: Caretaker,
    /// Who has it reads its answers, so from then on it is not for us.
    requests: NetlinkSocket,
    events: NetlinkSocket,
    index: u32,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RemovalError {
    #[error("failed to delete {name:?}: {error}")]
    Failed { name: String, error: io::Error },
    #[error("failed to delete {name:?}: {error}")]
    Netns { name: String, error: NetnsError },
}

/// Removes a link of a namespace, and returns when it is gone. That it was gone before is fine.
pub(crate) fn remove_link_of(netns: &Netns, name: &str) -> Result<(), RemovalError> {
    let failed = |error| RemovalError::Failed { name: name.to_owned(), error };
    let inside = |caretaker| {
        netns
            .inside(|| begin(name, caretaker))
            .map_err(|error| RemovalError::Netns { name: name.to_owned(), error })?
            .map_err(failed)
    };
    let Some(mut removal) = inside(Caretaker::find())? else { return Ok(()) };
    let handed = removal.caretaker.remove_link(removal.requests.as_fd(), removal.index).is_ok();
    if handed && removal.wait().map_err(failed)? {
        return Ok(());
    }
    inside(None).map(drop)
}

/// As a member of the namespace. `None`: it is gone.
fn begin(name: &str, caretaker: Option<Caretaker>) -> io::Result<Option<Removal>> {
    let mut requests = NetlinkSocket::open(None, 0)?;
    let index = match rustix::net::netdevice::name_to_index(&requests, name) {
        Err(rustix::io::Errno::NODEV) => return Ok(None),
        other => other?,
    };
    let Some(caretaker) = caretaker else {
        return remove_link(&mut requests, index).map(|()| None);
    };
    let events = NetlinkSocket::open(None, LINK_EVENTS)?;
    Ok(Some(Removal { caretaker, requests, events, index }))
}

impl Removal {
    /// Whether it is gone. If not, whoever was to remove it has given up.
    fn wait(&mut self) -> io::Result<bool> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut waiting = [
                PollFd::new(&self.events, PollFlags::IN),
                PollFd::from_borrowed_fd(self.caretaker.as_fd(), PollFlags::IN),
            ];
            match poll(&mut waiting, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [heard, answered] = waiting.map(|it| !it.revents().is_empty());
            if heard && self.hear_of_it()? {
                return Ok(true);
            }
            if answered {
                let mut errno = [0; 4];
                return match rustix::io::read(&self.caretaker, &mut errno) {
                    Ok(4) if errno == [0; 4] => Ok(true),
                    Ok(4) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
                    _ => Ok(false),
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
            // Events were lost. The answer will come in any case.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Waits until the kernel says that it is gone. That it was gone before is fine.
pub(crate) fn remove_link(requests: &mut NetlinkSocket, index: u32) -> io::Result<()> {
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
