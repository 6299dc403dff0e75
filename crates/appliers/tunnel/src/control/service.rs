//! The process that carries the packets: its life, and its answers to the daemon.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_netlink::{Protocol, Socket};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::protocol::{Answer, Program, Request, VERSION, receive, send};
use crate::datapath::Datapath;

/// Name of the process in lists of processes.
pub const PROCESS_NAME: &str = "flannel-tunnel";
/// Argument by which the daemon's program is told to be this process instead.
pub const SUBCOMMAND: &str = "tunnel";

const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// Interval at which path MTUs are forgotten, because paths may have changed.
const FORGET_PATH_MTUS: Duration = Duration::from_secs(600);

/// Refusal of what takes a device.
const NO_DEVICE: &str = "it has no device yet";
/// Time limit of a hand-over. Packets wait meanwhile.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(15);

/// Serves until it is told to end. While it serves nothing it ends with its standard input, which is its starter's.
pub fn run() -> io::Result<()> {
    // Away from the terminal and the process group of the daemon: what ends those must not end this.
    let _ = rustix::process::setsid();
    if let Ok(name) = std::ffi::CString::new(PROCESS_NAME) {
        let _ = rustix::thread::set_name(&name);
    }
    let starter = UnixStream::from(rustix::io::dup(rustix::stdio::stdin())?);
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let service = Arc::new(Service { served: Mutex::default(), wake });
    service.attend(starter, true)?;
    service.serve()
}

struct Service {
    served: Mutex<ServedDatapath>,
    /// Readable when the main thread has something to look at.
    wake: OwnedFd,
}

#[derive(Default)]
struct ServedDatapath {
    datapath: Option<Datapath>,
    /// The datapath belongs to another process, which is about to end.
    awaits_begin: bool,
    /// Socket for others than the starter.
    listener: Option<Arc<UnixListener>>,
}

impl ServedDatapath {
    fn is_serving(&self) -> bool {
        self.datapath.is_some() && !self.awaits_begin
    }
}

impl Service {
    fn serve(self: Arc<Self>) -> io::Result<()> {
        // Optional: without it a device that was moved away is missed only when its config is sent again.
        let links = Socket::listen(Protocol::Route, libc::RTMGRP_LINK as u32);
        let links = links.inspect_err(|error| tracing::debug!("devices are not watched: {error}"));
        let mut links = links.ok();
        let mut forget = Instant::now() + FORGET_PATH_MTUS;
        loop {
            let now = Instant::now();
            if now >= forget {
                if let Some(datapath) = &self.served.lock().datapath {
                    datapath.forget_path_mtus();
                }
                forget = now + FORGET_PATH_MTUS;
            }
            let left = forget.saturating_duration_since(now);
            let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let (alarm, listener) = {
                let served = self.served.lock();
                let serving = served.datapath.as_ref().filter(|_| served.is_serving());
                let listener = served.listener.clone().filter(|_| !served.awaits_begin);
                (serving.map(Datapath::alarm), listener)
            };
            let mut wait = vec![PollFd::new(&self.wake, PollFlags::IN)];
            let listening = watch(&mut wait, listener.as_ref().map(|it| it.as_fd()));
            let alarmed = watch(&mut wait, alarm.as_ref().map(|it| it.as_fd()));
            let changed = watch(&mut wait, links.as_ref().map(|it| it.as_fd()));
            match poll(&mut wait, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready = |at: Option<usize>| {
                at.and_then(|at| wait.get(at)).is_some_and(|fd| !fd.revents().is_empty())
            };
            let (connection, broken, changed) = (ready(listening), ready(alarmed), ready(changed));
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            // While a hand-over is under way nothing is done here, and nobody is accepted.
            drop(self.served.lock());
            if changed && let Some(links) = &mut links {
                // What has changed is not read: an overflow of the queue means the same.
                let is_lost = |error: io::Error| error.raw_os_error() == Some(libc::ENOBUFS);
                while links.receive_now().map_or_else(is_lost, |_| true) {}
                let served = self.served.lock();
                let serving = served.datapath.as_ref().filter(|_| served.is_serving());
                serving.into_iter().for_each(Datapath::look_for_device);
            }
            if broken {
                self.reopen();
            }
            if connection && let Some(Ok((stream, _))) = listener.map(|it| it.accept()) {
                self.attend(stream, false)?;
            }
        }
    }

    /// Answers a connection in a thread of its own. When the starter's ends, so does a process that serves nothing.
    fn attend(self: &Arc<Self>, stream: UnixStream, is_starter: bool) -> io::Result<()> {
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tunnel-control".to_owned());
        let spawned = thread.spawn(move || {
            this.converse(&stream);
            if is_starter && !this.served.lock().is_serving() {
                std::process::exit(0);
            }
        });
        spawned.map(drop)
    }

    /// Opens the device again: somebody has removed it, moved it away, or turned it into something else.
    fn reopen(&self) {
        let mut served = self.served.lock();
        let Some(datapath) = &mut served.datapath else { return };
        match datapath.reopen() {
            Ok(()) => {
                let device = &datapath.config().device;
                tracing::warn!("the TUN device {device} was removed or moved away: made again")
            }
            Err(error) => {
                tracing::error!("{error}; trying again");
                std::thread::sleep(REOPEN_PAUSE);
            }
        }
    }

    fn converse(&self, stream: &UnixStream) {
        loop {
            let (request, descriptors) = match receive::<Request>(stream) {
                Ok(Some(received)) => received,
                Ok(None) => return,
                Err(error) => {
                    let _ = send(stream, &Answer::Failed(error.to_string()), &[]);
                    return;
                }
            };
            if matches!(request, Request::HandOver) {
                if self.hand_over(stream).is_err() {
                    return;
                }
                continue;
            }
            let ends = matches!(request, Request::End | Request::Remove);
            let answer = self.answer(request, descriptors);
            let answer = answer.unwrap_or_else(|error| Answer::Failed(error.to_string()));
            let sent = send(stream, &answer, &[]);
            // The main thread may have another alarm to wait for.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
            if ends {
                std::process::exit(0);
            }
            if sent.is_err() {
                return;
            }
        }
    }

    /// Carries out a request. The error says why it is refused.
    fn answer(
        &self,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Box<dyn std::error::Error>> {
        let mut served = self.served.lock();
        let ServedDatapath { datapath, awaits_begin, listener } = &mut *served;
        let mut descriptors = descriptors.into_iter();
        match (request, datapath) {
            (Request::Hello { .. }, datapath) => {
                let config = datapath.as_ref().map(|datapath| datapath.config().clone());
                let (pid, program) = (std::process::id(), Program::own());
                return Ok(Answer::Hello { version: VERSION, pid, program, config });
            }
            (Request::Listen, _) => {
                let given = descriptors.next().ok_or("no socket to listen on came with this")?;
                *listener = Some(listening(given)?);
            }
            (Request::Begin, Some(datapath)) if *awaits_begin => {
                datapath.serve()?;
                *awaits_begin = false;
            }
            (Request::Begin, _) => return Err("nothing was handed over to it".into()),
            (Request::Configure(_), Some(_)) if *awaits_begin => {
                return Err("it has not begun to serve what was handed over to it".into());
            }
            (Request::Configure(config), Some(datapath)) => {
                let done = datapath.configure(config);
                datapath.look_for_device();
                done?;
            }
            (Request::Configure(config), none) => {
                let new = none.insert(Datapath::start(config)?);
                tracing::info!("{}: {}", new.config().device, new.in_use());
            }
            (Request::Adopt(_), Some(_)) => return Err("it has a device already".into()),
            (Request::Adopt(handed), none) => {
                let given = listening(descriptors.next().ok_or("descriptors are missing")?)?;
                *none = Some(Datapath::adopt(*handed, descriptors)?);
                (*listener, *awaits_begin) = (Some(given), true);
            }
            (Request::Status, datapath) => {
                let status = datapath.as_ref().map(Datapath::status).unwrap_or_default();
                return Ok(Answer::Status(Box::new(status)));
            }
            (Request::Totals, datapath) => {
                let totals = datapath.as_ref().map(Datapath::totals).unwrap_or_default();
                return Ok(Answer::Totals(totals));
            }
            (Request::Remove, datapath) => datapath.iter_mut().for_each(Datapath::remove_device),
            (Request::End, datapath) => *datapath = None,
            (Request::Replace(peers), Some(datapath)) => datapath.replace(peers),
            (Request::Update { put, gone }, Some(datapath)) => datapath.update(&put, &gone),
            (Request::ReplaceWireguard(peers), Some(datapath)) => {
                datapath.replace_wireguard(&peers);
            }
            (Request::UpdateWireguard { put, gone }, Some(datapath)) => {
                let gone: Vec<_> = gone.into_iter().map(|key| key.0).collect();
                datapath.update_wireguard(&put, &gone);
            }
            (Request::HandOver, _) | (_, None) => return Err(NO_DEVICE.into()),
        }
        Ok(Answer::Done)
    }

    /// Hands over. Packets wait in the queues of the device and of the sockets until the other process serves them, or,
    /// should that fail, this one again. Sessions that were handed over are never used here again: two processes that
    /// count by themselves would use numbers twice. The error is that of a client that does not end what it has begun.
    fn hand_over(&self, stream: &UnixStream) -> io::Result<()> {
        let refuse = |why: &str| send(stream, &Answer::Failed(why.to_owned()), &[]);
        let mut guard = self.served.lock();
        let ServedDatapath { datapath, awaits_begin: false, listener: Some(listener) } =
            &mut *guard
        else {
            return refuse("it has not begun to serve");
        };
        let Some(datapath) = datapath else { return refuse(NO_DEVICE) };
        let handed = datapath.hand_over();
        let listener = std::iter::once(listener.as_fd());
        let descriptors: Vec<BorrowedFd<'_>> = listener.chain(datapath.descriptors()).collect();
        let sent = send(stream, &Answer::Handed(Box::new(handed)), &descriptors);
        let bounded = stream.set_read_timeout(Some(HAND_OVER_LIMIT));
        if sent.is_ok()
            && bounded.is_ok()
            && matches!(receive::<Request>(stream), Ok(Some((Request::End, _))))
        {
            let _ = send(stream, &Answer::Done, &[]);
            std::process::exit(0);
        }
        tracing::warn!("no other process has taken over: continuing, with new sessions");
        if let Err(error) = datapath.serve() {
            tracing::error!("cannot go on: {error}");
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

/// Adds a descriptor to wait for, if there is one. Returns its position in the list.
fn watch<'fd>(list: &mut Vec<PollFd<'fd>>, fd: Option<BorrowedFd<'fd>>) -> Option<usize> {
    list.push(PollFd::from_borrowed_fd(fd?, PollFlags::IN));
    Some(list.len() - 1)
}

/// A socket that others connect to. During a hand-over it is shared with the other process.
fn listening(descriptor: OwnedFd) -> io::Result<Arc<UnixListener>> {
    let listener = UnixListener::from(descriptor);
    listener.set_nonblocking(true)?;
    Ok(Arc::new(listener))
}
