//! The process that carries the packets: its life, and its answers to the control plane.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::protocol::{Answer, Handed, Program, Request, TunnelStatus, VERSION, receive, send};
use crate::datapath::Datapath;

/// What the process is called in lists of processes.
pub const PROCESS_NAME: &str = "flannel-tunnel";
/// The word by which the daemon's program is told to be this process instead.
pub const SUBCOMMAND: &str = "tunnel";

/// Between tries to open a device that has gone.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// Paths may have come to take longer packets: they are tried again.
const FORGET_PATH_MTUS: Duration = Duration::from_secs(600);

/// Serves until it is told to end. The listening socket is its standard input.
pub fn run() -> io::Result<()> {
    // Away from the terminal and the process group of the daemon: what ends those is not to end this.
    let _ = rustix::process::setsid();
    if let Ok(name) = std::ffi::CString::new(PROCESS_NAME) {
        let _ = rustix::thread::set_name(&name);
    }
    let listener = UnixListener::from(rustix::io::dup(rustix::stdio::stdin())?);
    Arc::new(Service::new(listener)?).serve()
}

struct Service {
    listener: UnixListener,
    datapath: Mutex<Option<Datapath>>,
    /// Readable when the main thread has something to look at.
    wake: OwnedFd,
}

/// What a connection is to do after its answer was sent.
enum Next {
    Go,
    End,
}

impl Service {
    fn new(listener: UnixListener) -> io::Result<Self> {
        // Shared with the process before or after this one, while one hands over to the other.
        listener.set_nonblocking(true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { listener, datapath: Mutex::default(), wake })
    }

    fn serve(self: Arc<Self>) -> io::Result<()> {
        let mut forget = Instant::now() + FORGET_PATH_MTUS;
        loop {
            let now = Instant::now();
            if now >= forget {
                if let Some(datapath) = &*self.lock() {
                    datapath.forget_path_mtus();
                }
                forget = now + FORGET_PATH_MTUS;
            }
            let left = forget.saturating_duration_since(now);
            let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let alarm = self.lock().as_ref().map(Datapath::alarm);
            let mut wait = vec![
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.wake, PollFlags::IN),
            ];
            wait.extend(alarm.as_ref().map(|alarm| PollFd::new(alarm, PollFlags::IN)));
            match poll(&mut wait, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready = |at: usize| wait.get(at).is_some_and(|fd| !fd.revents().is_empty());
            let (connection, broken) = (ready(0), ready(2));
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            // While a hand-over is under way nothing is done here, and nobody let in.
            drop(self.lock());
            if broken {
                self.reopen();
            }
            if connection && let Ok((stream, _)) = self.listener.accept() {
                let this = Arc::clone(&self);
                let name = "tunnel-control".to_owned();
                std::thread::Builder::new().name(name).spawn(move || this.converse(&stream))?;
            }
        }
    }

    /// Somebody has removed the device, or turned it into something else.
    fn reopen(&self) {
        let mut datapath = self.lock();
        let Some(datapath) = &mut *datapath else { return };
        match datapath.reopen() {
            Ok(()) => {
                tracing::warn!("the TUN device {} was removed: made anew", datapath.config().device)
            }
            Err(error) => {
                tracing::error!("{error}; trying again");
                std::thread::sleep(REOPEN_PAUSE);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Datapath>> {
        self.datapath.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn converse(&self, stream: &UnixStream) {
        loop {
            match receive::<Request>(stream) {
                Ok(Some((Request::HandOver, _))) => self.hand_over(stream),
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
        let mut datapath = self.lock();
        let done = match (request, &mut *datapath) {
            (Request::Hello { .. }, datapath) => {
                let config = datapath.as_ref().map(|datapath| datapath.config().clone());
                let (pid, program) = (std::process::id(), Program::own());
                return (Answer::Hello { version: VERSION, pid, program, config }, Next::Go);
            }
            (Request::Configure(config), Some(datapath)) => datapath.configure(config),
            (Request::Configure(config), none) => Datapath::start(config).map(|new| {
                tracing::info!("{}: {}", new.config().device, new.in_use());
                *none = Some(new);
            }),
            (Request::Adopt(handed), none) => {
                Datapath::adopt(*handed, descriptors).map(|new| *none = Some(new))
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
                return (Answer::Failed("it has no device yet".to_owned()), Next::Go);
            }
        };
        match done {
            Ok(()) => (Answer::Done, Next::Go),
            Err(error) => (Answer::Failed(error.to_string()), Next::Go),
        }
    }

    /// Packets wait in the queues of the device and of the sockets until the other process serves them, or,
    /// should it not come to that, this one again.
    fn hand_over(&self, stream: &UnixStream) {
        let mut guard = self.lock();
        let Some(datapath) = &mut *guard else {
            let _ = send(stream, &Answer::Failed("it has no device yet".to_owned()), &[]);
            return;
        };
        datapath.halt();
        let handed = Handed {
            config: datapath.config().clone(),
            in_use: datapath.in_use(),
            peers: datapath.peers(),
            counters: datapath.counters(),
            departed: datapath.departed(),
            wireguard: datapath.wireguard_sessions(),
        };
        let listener = std::iter::once(self.listener.as_fd());
        let descriptors: Vec<BorrowedFd<'_>> = listener.chain(datapath.descriptors()).collect();
        let sent = send(stream, &Answer::Handed(Box::new(handed)), &descriptors);
        if sent.is_ok() && matches!(receive::<Request>(stream), Ok(Some((Request::End, _)))) {
            let _ = send(stream, &Answer::Done, &[]);
            std::process::exit(0);
        }
        tracing::warn!("no other process has taken over: continuing");
        if let Err(error) = datapath.resume() {
            tracing::error!("cannot go on: {error}");
        }
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
