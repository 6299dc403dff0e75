//! flanneld's side of deferred work: threads that wait for the kernel.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flannel_netlink::Connection;
use rustix::fs::{Mode, chmod};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use super::DeferredWork;
use crate::kernel::remove_link;
use crate::portmap::UdpFlows;

/// After that, closing a socket of nftables waits for nothing.
const CLOSE_DELAY: Duration = Duration::from_millis(300);
/// A plugin says what it wants as soon as it has connected.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Links that are waited for at once. Beyond that, plugins wait themselves.
const MAX_REMOVALS: usize = 256;
/// Walks through the table of flows that wait. Beyond that, plugins walk themselves.
const MAX_WAITING_WALKS: usize = 64;
/// A plugin that has handed over a walk has answered by then, and does not share its processor with it.
const WALK_DELAY: Duration = Duration::from_millis(10);
/// Pause before the next try when descriptors or memory run short.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(300);
const BACKLOG: i32 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("another flanneld serves {}", .0.display())]
    Taken(PathBuf),
    #[error("could not serve {}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Serves plugins at this path from now on, until the process ends.
pub fn serve(path: &Path) -> Result<(), ServeError> {
    let failed = |error: io::Error| ServeError::Io { path: path.to_owned(), error };
    if super::connect(path).is_ok() {
        return Err(ServeError::Taken(path.to_owned()));
    }
    let listener = listen(path).map_err(failed)?;
    let (close, closing) = std::sync::mpsc::channel::<(Instant, OwnedFd)>();
    spawn("cni-closer", move || {
        for (since, socket) in closing {
            thread::sleep(CLOSE_DELAY.saturating_sub(since.elapsed()));
            drop(socket);
        }
    })
    .map_err(failed)?;
    let (walk, walks) = std::sync::mpsc::sync_channel::<(OwnedFd, UdpFlows)>(MAX_WAITING_WALKS);
    spawn("cni-flows", move || {
        for (socket, flows) in walks {
            thread::sleep(WALK_DELAY);
            // It only helps; without it the flows end by themselves.
            let _ = Connection::adopt(socket).and_then(|mut it| flows.forget(&mut it));
        }
    })
    .map_err(failed)?;
    let under_way = Arc::new(AtomicUsize::new(0));
    let serve_one = move || match accept(&listener) {
        Ok((connection, DeferredWork::RemoveLink(index), requests)) => {
            remove(connection, requests, index, &under_way);
        }
        Ok((_, DeferredWork::CloseLater, socket)) => {
            let _ = close.send((Instant::now(), socket));
        }
        Ok((connection, DeferredWork::ForgetFlows(flows), socket)) => {
            if walk.try_send((socket, flows)).is_ok() {
                accept_work(&connection);
            }
        }
        Err(error) if is_shortage(&error) => thread::sleep(SHORTAGE_PAUSE),
        // Whatever is wrong with one does not keep others from being served.
        Err(_) => {}
    };
    spawn("cni-deferred", move || {
        loop {
            serve_one();
        }
    })
    .map_err(failed)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Whether the process or the host is short of descriptors or memory. Who has connected waits until that has passed, so
/// trying again at once would fail again.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| shortages.contains(&code))
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Before anybody can connect.
    chmod(path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The next piece of work, and the socket that it is about.
fn accept(listener: &OwnedFd) -> io::Result<(OwnedFd, DeferredWork, OwnedFd)> {
    let connection = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?;
    if socket_peercred(connection.as_fd())?.uid != rustix::process::Uid::ROOT {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    set_socket_timeout(&connection, Timeout::Recv, Some(REQUEST_TIMEOUT))?;
    let mut bytes = [0; DeferredWork::LONGEST + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        &connection,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let socket = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    let bytes = bytes.get(..received.bytes).unwrap_or_default();
    match (DeferredWork::of_bytes(bytes), socket) {
        (Some(work), Some(socket)) => Ok((connection, work, socket)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Says that the work will be done. A plugin that has gone away needs no answer.
fn accept_work(connection: &OwnedFd) {
    let _ = rustix::net::send(connection, &[1], SendFlags::NOSIGNAL);
}

/// In a thread of its own, as each waits alone. Where there are too many, the connection ends without an
/// answer, and the plugin sees to it.
fn remove(connection: OwnedFd, requests: OwnedFd, index: u32, under_way: &Arc<AtomicUsize>) {
    if under_way.fetch_add(1, Ordering::Relaxed) >= MAX_REMOVALS {
        under_way.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let counter = Arc::clone(under_way);
    let work = move || {
        accept_work(&connection);
        let removed = Connection::adopt(requests).and_then(|mut it| remove_link(&mut it, index));
        let errno = removed.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        let _ = rustix::net::send(&connection, &errno.to_ne_bytes(), SendFlags::NOSIGNAL);
        counter.fetch_sub(1, Ordering::Relaxed);
    };
    if spawn("cni-removal", work).is_err() {
        under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_waited_out_and_a_client_that_left_is_not() {
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
            assert!(is_shortage(&io::Error::from_raw_os_error(code)), "{code}");
        }
        for error in [io::Error::from_raw_os_error(libc::ECONNABORTED), io::Error::other("left")] {
            assert!(!is_shortage(&error), "{error}");
        }
    }
}
