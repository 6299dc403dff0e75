//! The process that carries the packets: its life, and its answers to the control plane.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::protocol::{Answer, Handed, Program, Request, TunnelStatus, VERSION, receive, send};
use crate::datapath::Datapath;
use crate::sys::device_place::LinkEvents;

/// What the process is called in lists of processes.
pub const PROCESS_NAME: &str = "flannel-tunnel";
/// The word by which the daemon's program is told to be this process instead.
pub const SUBCOMMAND: &str = "tunnel";

/// Between tries to open a device that has gone.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// Paths may have come to take longer packets: they are tried again.
const FORGET_PATH_MTUS: Duration = Duration::from_secs(600);

/// How long a hand-over may take. Packets wait meanwhile.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(15);

/// Serves until it is told to end. Its standard input is a connection to whoever has started it, and ends it as long as
/// it serves nothing: nobody else knows of it.
pub fn run() -> io::Result<()> {
    // Away from the terminal and the process group of the daemon: what ends those is not to end this.
    let _ = rustix::process::setsid();
    if let Ok(name) = std::ffi::CString::new(PROCESS_NAME) {
        let _ = rustix::thread::set_name(&name);
    }
    let starter = UnixStream::from(rustix::io::dup(rustix::stdio::stdin())?);
    let service = Arc::new(Service::new()?);
    service.attend(starter, |service| {
        if !service.lock().is_serving() {
            std::process::exit(0);
        }
    })?;
    service.serve()
}

struct Service {
    served: Mutex<Served>,
    /// Readable when the main thread has something to look at.
    wake: OwnedFd,
    /// What happens to devices. Without it a device that was moved away is missed when its config is told next.
    links: Option<LinkEvents>,
}

/// What a process has to serve.
#[derive(Default)]
struct Served {
    datapath: Option<Datapath>,
    /// The datapath is another process's, which is about to end.
    awaits_begin: bool,
    /// Where others than the starter connect.
    listener: Option<Arc<UnixListener>>,
}

impl Served {
    fn is_serving(&self) -> bool {
        self.datapath.is_some() && !self.awaits_begin
    }
}

/// What a connection is to do after its answer was sent.
enum Next {
    Go,
    End,
}

impl Service {
    fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let links = LinkEvents::open();
        let links = links.inspect_err(|error| tracing::debug!("devices are not watched: {error}"));
        Ok(Self { served: Mutex::default(), wake, links: links.ok() })
    }

    fn serve(self: Arc<Self>) -> io::Result<()> {
        let mut forget = Instant::now() + FORGET_PATH_MTUS;
        loop {
            let now = Instant::now();
            if now >= forget {
                if let Some(datapath) = &self.lock().datapath {
                    datapath.forget_path_mtus();
                }
                forget = now + FORGET_PATH_MTUS;
            }
            let left = forget.saturating_duration_since(now);
            let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let (alarm, listener) = {
                let served = self.lock();
                let serving = served.datapath.as_ref().filter(|_| served.is_serving());
                let listener = served.listener.clone().filter(|_| !served.awaits_begin);
                (serving.map(Datapath::alarm), listener)
            };
            let mut wait = vec![PollFd::new(&self.wake, PollFlags::IN)];
            let listening = watch(&mut wait, listener.as_ref().map(|it| it.as_fd()));
            let alarmed = watch(&mut wait, alarm.as_ref().map(|it| it.as_fd()));
            let changed = watch(&mut wait, self.links.as_ref().map(|it| it.as_fd()));
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
            // While a hand-over is under way nothing is done here, and nobody let in.
            drop(self.lock());
            if changed && let Some(links) = &self.links {
                links.drain();
                self.look_for_device();
            }
            if broken {
                self.reopen();
            }
            if connection && let Some(Ok((stream, _))) = listener.map(|it| it.accept()) {
                self.attend(stream, |_| {})?;
            }
        }
    }

    /// Answers a connection in a thread of its own; `at_its_end` is done when there is nothing more to answer.
    fn attend(
        self: &Arc<Self>,
        stream: UnixStream,
        at_its_end: impl FnOnce(&Self) + Send + 'static,
    ) -> io::Result<()> {
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tunnel-control".to_owned());
        thread.spawn(move || {
            this.converse(&stream);
            at_its_end(&this);
        })?;
        Ok(())
    }

    /// Somebody may have moved the device to another network namespace, of which its queues do not tell.
    fn look_for_device(&self) {
        let served = self.lock();
        if let Some(datapath) = served.datapath.as_ref().filter(|_| served.is_serving())
            && datapath.has_lost_device()
        {
            datapath.raise_alarm();
        }
    }

    /// Somebody has removed the device, moved it away, or turned it into something else.
    fn reopen(&self) {
        let mut served = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn converse(&self, stream: &UnixStream) {
        loop {
            match receive::<Request>(stream) {
                // Whoever has begun a hand-over and does not end it is not spoken to again.
                Ok(Some((Request::HandOver, _))) if self.hand_over(stream).is_break() => return,
                Ok(Some((Request::HandOver, _))) => {}
                Ok(Some((request, descriptors))) => {
                    let (answer, next) = self.answer(request, descriptors);
                    let sent = send(stream, &answer, &[]);
                    // The main thread may have another alarm to wait for.
                    let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
                    if matches!(next, Next::End) {
                        std::process::exit(0);
                    }
                    if sent.is_err() {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    let _ = send(stream, &Answer::Failed(error.to_string()), &[]);
                    return;
                }
            }
        }
    }

    fn answer(&self, request: Request, descriptors: Vec<OwnedFd>) -> (Answer, Next) {
        let mut served = self.lock();
        let Served { datapath, awaits_begin, listener } = &mut *served;
        let done = match (request, datapath) {
            (Request::Hello { .. }, datapath) => {
                let config = datapath.as_ref().map(|datapath| datapath.config().clone());
                let (pid, program) = (std::process::id(), Program::own());
                return (Answer::Hello { version: VERSION, pid, program, config }, Next::Go);
            }
            (Request::Listen, _) => match descriptors.into_iter().next().map(listening) {
                Some(Ok(given)) => {
                    *listener = Some(given);
                    Ok(())
                }
                Some(Err(error)) => Err(error.into()),
                None => return refused("no socket to listen on came with this"),
            },
            (Request::Begin, Some(datapath)) if *awaits_begin => {
                datapath.begin().map(|()| *awaits_begin = false)
            }
            (Request::Begin, _) => return refused("nothing was handed over to it"),
            (Request::Configure(_), Some(_)) if *awaits_begin => {
                return refused("it has not begun to serve what was handed over to it");
            }
            (Request::Configure(config), Some(datapath)) => {
                let done = datapath.configure(config);
                if datapath.has_lost_device() {
                    datapath.raise_alarm();
                }
                done
            }
            (Request::Configure(config), none) => Datapath::start(config).map(|new| {
                tracing::info!("{}: {}", new.config().device, new.in_use());
                *none = Some(new);
            }),
            (Request::Adopt(_), Some(_)) => return refused("it has a device already"),
            (Request::Adopt(handed), none) => {
                let mut descriptors = descriptors;
                if descriptors.is_empty() {
                    return refused("descriptors are missing");
                }
                let given = listening(descriptors.remove(0));
                given.map_err(Into::into).and_then(|given| {
                    *none = Some(Datapath::adopt(*handed, descriptors)?);
                    (*listener, *awaits_begin) = (Some(given), true);
                    Ok(())
                })
            }
            (Request::Status, datapath) => {
                return (Answer::Status(Box::new(status(datapath.as_ref()))), Next::Go);
            }
            (Request::Totals, datapath) => {
                let totals = datapath.as_ref().map(Datapath::totals).unwrap_or_default();
                return (Answer::Totals(totals), Next::Go);
            }
            (Request::Remove, datapath) => {
                if let Some(datapath) = datapath {
                    datapath.remove_device();
                }
                return (Answer::Done, Next::End);
            }
            (Request::End, datapath) => {
                *datapath = None;
                return (Answer::Done, Next::End);
            }
            (Request::Replace(peers), Some(datapath)) => {
                datapath.replace(peers);
                Ok(())
            }
            (Request::Update { put, gone }, Some(datapath)) => {
                datapath.update(&put, &gone);
                Ok(())
            }
            (Request::ReplaceWireguard(peers), Some(datapath)) => {
                datapath.replace_wireguard(&peers);
                Ok(())
            }
            (Request::UpdateWireguard { put, gone }, Some(datapath)) => {
                let gone: Vec<_> = gone.into_iter().map(|key| key.0).collect();
                datapath.update_wireguard(&put, &gone);
                Ok(())
            }
            (
                Request::Replace(_)
                | Request::Update { .. }
                | Request::ReplaceWireguard(_)
                | Request::UpdateWireguard { .. }
                | Request::HandOver,
                _,
            ) => {
                return refused("it has no device yet");
            }
        };
        match done {
            Ok(()) => (Answer::Done, Next::Go),
            Err(error) => (Answer::Failed(error.to_string()), Next::Go),
        }
    }

    /// Packets wait in the queues of the device and of the sockets until the other process serves them, or,
    /// should it not come to that, this one again. Sessions that were handed over are not used here again, whether
    /// they came to be used there or not: two who count by themselves would use numbers twice.
    fn hand_over(&self, stream: &UnixStream) -> ControlFlow<()> {
        let mut guard = self.lock();
        let Served { datapath, awaits_begin: false, listener: Some(listener) } = &mut *guard else {
            return answer_refused(stream, "it has not begun to serve");
        };
        let Some(datapath) = datapath else {
            return answer_refused(stream, "it has no device yet");
        };
        datapath.halt();
        let handed = Handed {
            config: datapath.config().clone(),
            in_use: datapath.in_use(),
            peers: datapath.peers(),
            counters: datapath.counters(),
            departed: datapath.departed(),
            wireguard: datapath.take_wireguard_sessions(),
        };
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
        if let Err(error) = datapath.resume() {
            tracing::error!("cannot go on: {error}");
        }
        ControlFlow::Break(())
    }
}

/// Waits for one more, if there is one. Returns where it is in the list.
fn watch<'fd>(list: &mut Vec<PollFd<'fd>>, fd: Option<BorrowedFd<'fd>>) -> Option<usize> {
    list.push(PollFd::from_borrowed_fd(fd?, PollFlags::IN));
    Some(list.len() - 1)
}

/// A socket that others connect to. It is shared with the process before or after this one, while one hands over to
/// the other.
fn listening(descriptor: OwnedFd) -> io::Result<Arc<UnixListener>> {
    let listener = UnixListener::from(descriptor);
    listener.set_nonblocking(true)?;
    Ok(Arc::new(listener))
}

fn refused(why: &str) -> (Answer, Next) {
    (Answer::Failed(why.to_owned()), Next::Go)
}

fn answer_refused(stream: &UnixStream, why: &str) -> ControlFlow<()> {
    match send(stream, &refused(why).0, &[]) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

fn status(datapath: Option<&Datapath>) -> TunnelStatus {
    TunnelStatus {
        config: datapath.map(|datapath| datapath.config().clone()),
        in_use: datapath.map(Datapath::in_use),
        problem: datapath.and_then(Datapath::problem),
        peers: datapath.map(Datapath::peers).unwrap_or_default(),
        counters: datapath.map(Datapath::counters).unwrap_or_default(),
        wireguard: datapath.map(Datapath::wireguard_peers).unwrap_or_default(),
    }
}
