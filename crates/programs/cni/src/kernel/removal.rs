//! Removing a link without waiting for what nobody needs to wait for: flanneld asks for the removal and
//! waits, while we hear from the kernel that the link is gone, and go on. Without flanneld we wait.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use flannel_netlink::{Connection, Protocol, Request, Socket, messages};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::deferred_kernel_work::WorkTaker;
use crate::netns::Netns;
use crate::protocol::{ErrorContext as _, Result};

const LINK_EVENTS: u32 = 1;
/// For a flanneld that has said that it removes the link: the kernel removes one at a time, of all that wait.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

struct Removal {
    taker: WorkTaker,
    /// Whoever owns it reads its answers, so we must not use it from then on.
    requests: Connection,
    events: Socket,
    index: u32,
}

/// Removes a link of a namespace, and returns when it is gone. That it was gone before is fine.
pub(crate) fn remove_link_of(netns: &Netns, name: &str) -> Result<()> {
    remove(netns, name).or_cni(format_args!("failed to delete {name:?}"))
}

fn remove(netns: &Netns, name: &str) -> io::Result<()> {
    let inside = |taker| netns.inside(|| begin(name, taker)).map_err(io::Error::other)?;
    let Some(mut removal) = inside(WorkTaker::find())? else { return Ok(()) };
    let handed = removal.taker.remove_link(removal.requests.as_fd(), removal.index);
    if handed && removal.wait()? {
        return Ok(());
    }
    inside(None).map(drop)
}

/// As a member of the namespace. `None`: it is gone.
fn begin(name: &str, taker: Option<WorkTaker>) -> io::Result<Option<Removal>> {
    let mut requests = Connection::open(Protocol::Route)?;
    let index = match rustix::net::netdevice::name_to_index(&requests, name) {
        Err(rustix::io::Errno::NODEV) => return Ok(None),
        other => other?,
    };
    let Some(taker) = taker else {
        return remove_link(&mut requests, index).map(|()| None);
    };
    let events = Socket::listen(Protocol::Route, LINK_EVENTS)?;
    Ok(Some(Removal { taker, requests, events, index }))
}

impl Removal {
    /// Whether it is gone. If not, whoever was to remove it has given up.
    fn wait(&mut self) -> io::Result<bool> {
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut waiting = [
                PollFd::new(&self.events, PollFlags::IN),
                PollFd::new(&self.taker.connection, PollFlags::IN),
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
                return match rustix::io::read(&self.taker.connection, &mut errno) {
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
            Ok(datagram) => Ok(messages(datagram).flatten().any(|message| {
                message.kind == libc::RTM_DELLINK && message.payload.get(4..8) == Some(&index[..])
            })),
            // Events were lost. The answer will come in any case.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Waits until the kernel says that it is gone. That it was gone before is fine.
pub(crate) fn remove_link(requests: &mut Connection, index: u32) -> io::Result<()> {
    let mut refused = None;
    requests.apply([Request::delete_link(index)], |_, error| refused = Some(error.errno))?;
    match refused {
        None | Some(libc::ENODEV) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
    }
}
