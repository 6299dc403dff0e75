//! The control plane's side: finds the process, starts it, takes it over, speaks to it, and notices when it does not
//! answer.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flannel_common::{replace_by, temporary_path};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen as listen_on,
    socket_with,
};
use rustix::process::Pid;

use super::processes;
use super::protocol::{Answer, Handed, Program, Request, TunnelStatus, VERSION, receive, send};
use super::service::{PROCESS_NAME, SUBCOMMAND};
use crate::counters::CounterSnapshot;
use crate::datapath::Config;

/// A process that does not answer for so long hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The same for the question whether it is alive, which takes it next to no time.
const ALIVE_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked, while an answer is waited for, whether the process is stopped.
const STOPPED_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long a process may take to end that has been told to.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Connections that wait to be let in.
const BACKLOG: i32 = 16;
/// The program that is running, whatever has become of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error("the tunnel process cannot be started: {0}")]
    Start(io::Error),
    #[error("the connection to the tunnel process is lost: {0}; it is started again")]
    Lost(#[from] io::Error),
    #[error(
        "the tunnel process of {device} does not answer: {cause}; it is killed and another one started"
    )]
    Hung { device: String, cause: String },
    #[error("{0}")]
    Refused(String),
}

/// A connection to the process of one device.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    device: String,
    /// As it has told.
    pid: Option<Pid>,
    /// Of the process, if it was started by this one: it is to be waited for.
    child: Option<Child>,
    /// What it is configured to, if it was found running.
    found: Option<Config>,
}

/// Where the process of a device listens.
pub fn socket_path(directory: &Path, device: &str) -> PathBuf {
    directory.join(format!("{SOCKET_PREFIX}{device}{SOCKET_SUFFIX}"))
}

/// The device whose process listens on a socket of this name.
pub fn socket_device(socket: &Path) -> Option<&str> {
    socket.file_name()?.to_str()?.strip_prefix(SOCKET_PREFIX)?.strip_suffix(SOCKET_SUFFIX)
}

const SOCKET_PREFIX: &str = "tunnel-";
const SOCKET_SUFFIX: &str = ".sock";

/// Kills the processes of a device in this network namespace, and returns when they have ended.
pub fn end_processes(device: &str) -> io::Result<()> {
    processes::end(&processes::of_device(device))
}

impl Client {
    /// Finds the process, and starts it if there is none. One of another program than this is replaced: its
    /// work goes over to a new one without a packet lost.
    pub fn find_or_start(directory: &Path, device: &str) -> Result<Self, TunnelError> {
        let socket = &socket_path(directory, device);
        match Self::find(socket) {
            Ok(Some((client, true))) => Ok(client),
            Ok(Some((old, false))) => match old.replace_process(socket) {
                Err(hung @ TunnelError::Hung { .. }) => {
                    tracing::warn!("{hung}");
                    Self::start_anew(socket, device)
                }
                replaced => replaced,
            },
            Ok(None) => Self::start_anew(socket, device),
            Err(error) => {
                tracing::warn!("{error}");
                Self::start_anew(socket, device)
            }
        }
    }

    /// The process that listens there, and whether it is of this very program.
    pub fn find(socket: &Path) -> Result<Option<(Self, bool)>, TunnelError> {
        let stream = match connect_to(socket) {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let device = socket_device(socket).unwrap_or_default();
        let mut client = Self::new(stream, device, None)?;
        let same = client.greet()?;
        Ok(Some((client, same)))
    }

    fn new(stream: UnixStream, device: &str, child: Option<Child>) -> io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        let pid = child.as_ref().map(Pid::from_child);
        Ok(Self { stream, device: device.to_owned(), pid, child, found: None })
    }

    fn greet(&mut self) -> Result<bool, TunnelError> {
        match self.ask(&Request::Hello { version: VERSION })? {
            Answer::Hello { version, program, config, pid } => {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                self.pid = self.pid.or(pid);
                self.found = config;
                Ok(version == VERSION && program.is_some() && program == Program::own())
            }
            other => Err(unexpected(&other)),
        }
    }

    fn start_anew(socket: &Path, device: &str) -> Result<Self, TunnelError> {
        // One that hangs, or whose socket somebody has removed, would go on taking packets, and have the same key.
        for pid in processes::of_device(device) {
            tracing::warn!(
                "killing the tunnel process of {device} (pid {pid}): it does not answer"
            );
        }
        end_processes(device).map_err(TunnelError::Start)?;
        let listener = listen(socket).map_err(TunnelError::Start)?;
        let mut client = Self::spawn(device)?.greeted()?;
        let listens = send(&client.stream, &Request::Listen, &[listener.as_fd()]);
        let listens = listens.map_err(TunnelError::Lost).and_then(|()| client.done());
        client.or_end(listens)
    }

    /// Puts a process of this program in the place of one of another.
    ///
    /// Never do two of them use the keys of one session: the old one forgets those that it hands over, and the new
    /// one begins when the old one has ended. Should the new one not come about, the old one goes on, with new
    /// sessions if it had handed over its own, and is spoken to as it is.
    fn replace_process(self, socket: &Path) -> Result<Self, TunnelError> {
        // Before anything is asked of the old one: packets wait for as short a time as can be.
        let mut new = match Self::spawn(&self.device).and_then(Self::greeted) {
            Ok(new) => new,
            Err(error) => return Ok(self.goes_on(&error)),
        };
        let (handed, descriptors) = match self.take_all() {
            Ok(all) => all,
            Err(error) => {
                new.end().map_err(TunnelError::Start)?;
                return Err(error);
            }
        };
        let adopted = new.adopt(handed, &descriptors);
        new = match new.or_end(adopted) {
            Ok(new) => new,
            Err(error) => {
                // The end of the connection is how the old one learns of it.
                drop(self);
                let Some((old, _)) = Self::find(socket)? else { return Err(error) };
                return Ok(old.goes_on(&error));
            }
        };
        let ended = self.end_former(&new);
        let begun = ended.and_then(|()| new.command(&Request::Begin));
        let new = new.or_end(begun)?;
        tracing::info!(
            "the tunnel process was replaced by one of this version, with all its peers"
        );
        Ok(new)
    }

    /// What a process has, which serves nothing from now on.
    fn take_all(&self) -> Result<(Box<Handed>, Vec<OwnedFd>), TunnelError> {
        send(&self.stream, &Request::HandOver, &[]).map_err(|error| self.failed(error))?;
        self.await_answer(ANSWER_LIMIT)?;
        match receive(&self.stream)? {
            Some((Answer::Handed(handed), descriptors)) => Ok((handed, descriptors)),
            Some((answer, _)) => Err(unexpected(&answer)),
            None => Err(gone()),
        }
    }

    fn goes_on(self, error: &TunnelError) -> Self {
        tracing::error!(
            "{error}; the tunnel process of the former version goes on and is replaced at the next start"
        );
        self
    }

    fn greeted(mut self) -> Result<Self, TunnelError> {
        let greeted = self.greet().map(drop);
        self.or_end(greeted)
    }

    /// Gets a new process ready to serve what another has handed over.
    fn adopt(&mut self, handed: Box<Handed>, descriptors: &[OwnedFd]) -> Result<(), TunnelError> {
        self.found = Some(handed.config.clone());
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
        send(&self.stream, &Request::Adopt(handed), &descriptors)?;
        self.done()
    }

    /// Tells a process to end and returns when it has, by itself or not.
    fn end_former(self, successor: &Self) -> Result<(), TunnelError> {
        let told = send(&self.stream, &Request::End, &[]).is_ok();
        if told && self.await_answer(END_LIMIT).is_ok() && self.waits_for_end(END_LIMIT) {
            return Ok(());
        }
        let mut others = processes::of_device(&self.device);
        others.retain(|pid| Some(*pid) != successor.pid);
        processes::end(&others).map_err(TunnelError::Start)
    }

    /// Whether the connection ends in time. It does when no thread of the process can use it any more, nor anything
    /// else that it had open.
    fn waits_for_end(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            if !self.is_readable(end.saturating_duration_since(Instant::now())) {
                return false;
            }
            if !matches!(receive::<Answer>(&self.stream), Ok(Some(_))) {
                return true;
            }
        }
    }

    /// A process of this program, which ends when the connection does as long as it serves nothing.
    fn spawn(device: &str) -> Result<Self, TunnelError> {
        let spawned = || {
            let (ours, theirs) = UnixStream::pair()?;
            let child = Command::new(OWN_PROGRAM)
                .arg0(PROCESS_NAME)
                .args([SUBCOMMAND, device])
                .stdin(Stdio::from(OwnedFd::from(theirs)))
                .stdout(Stdio::null())
                .current_dir("/")
                .spawn()?;
            Self::new(ours, device, Some(child))
        };
        spawned().map_err(TunnelError::Start)
    }

    /// This process, if all went well, and nothing that is left of it otherwise.
    fn or_end(self, done: Result<(), TunnelError>) -> Result<Self, TunnelError> {
        match done {
            Ok(()) => Ok(self),
            Err(error) => {
                self.end().map_err(TunnelError::Start)?;
                Err(error)
            }
        }
    }

    /// Kills the process, and returns when it has ended.
    pub(crate) fn end(self) -> io::Result<()> {
        let is_this = |pid: &Pid| self.pid.is_none_or(|known| known == *pid);
        let found = processes::of_device(&self.device).into_iter().filter(is_this);
        processes::end(&found.collect::<Vec<_>>())?;
        self.reap()
    }

    /// Sees to it that nothing is left of a process of ours that has ended.
    pub(crate) fn reap(mut self) -> io::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // One that has closed its connection and lives on is of no use, and would be waited for in vain.
        child.kill()?;
        processes::end(&[Pid::from_child(&child)])?;
        child.wait().map(drop)
    }

    /// What it was configured to when it was found.
    pub fn found(&self) -> Option<&Config> {
        self.found.as_ref()
    }

    pub(crate) fn command(&mut self, request: &Request) -> Result<(), TunnelError> {
        send(&self.stream, request, &[]).map_err(|error| self.failed(error))?;
        self.done()
    }

    pub fn status(&mut self) -> Result<TunnelStatus, TunnelError> {
        match self.ask(&Request::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// What has passed in all.
    pub fn totals(&mut self) -> Result<CounterSnapshot, TunnelError> {
        match self.ask(&Request::Totals)? {
            Answer::Totals(totals) => Ok(totals),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether it answers at all.
    pub(crate) fn check_alive(&mut self) -> Result<(), TunnelError> {
        send(&self.stream, &Request::Totals, &[]).map_err(|error| self.failed(error))?;
        self.await_answer(ALIVE_LIMIT)?;
        match receive(&self.stream)?.ok_or_else(gone)?.0 {
            Answer::Totals(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the process and removes its device.
    pub fn remove(mut self) -> Result<(), TunnelError> {
        self.command(&Request::Remove)?;
        self.reap().map_err(TunnelError::from)
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, TunnelError> {
        send(&self.stream, request, &[]).map_err(|error| self.failed(error))?;
        self.await_answer(ANSWER_LIMIT)?;
        Ok(receive(&self.stream)?.ok_or_else(gone)?.0)
    }

    /// Waits until there is an answer. A process that is stopped is not waited for. Rounds are counted and not time, so
    /// that a machine that was asleep, or is too busy to run this, does not take a process for one that hangs.
    fn await_answer(&self, limit: Duration) -> Result<(), TunnelError> {
        let rounds = limit.as_millis() / STOPPED_CHECK_INTERVAL.as_millis();
        for _ in 0..rounds {
            if self.is_readable(STOPPED_CHECK_INTERVAL) {
                return Ok(());
            }
            if self.why_stopped().is_some() {
                break;
            }
        }
        Err(self.hung(limit))
    }

    /// The process, and why it is stopped, if it is.
    fn why_stopped(&self) -> Option<(Pid, &'static str)> {
        let known = self.pid.map(|pid| vec![pid]);
        let processes = known.unwrap_or_else(|| processes::of_device(&self.device));
        processes.into_iter().find_map(|pid| Some((pid, processes::why_stopped(pid)?)))
    }

    fn hung(&self, limit: Duration) -> TunnelError {
        let cause = match self.why_stopped() {
            Some((pid, why)) => format!("{why}, pid {pid}"),
            None => format!("nothing came within {} s", limit.as_secs()),
        };
        TunnelError::Hung { device: self.device.clone(), cause }
    }

    /// What became of a request that could not be sent.
    fn failed(&self, error: io::Error) -> TunnelError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => self.hung(ANSWER_LIMIT),
            _ => error.into(),
        }
    }

    fn done(&mut self) -> Result<(), TunnelError> {
        self.await_answer(ANSWER_LIMIT)?;
        match receive(&self.stream)?.ok_or_else(gone)?.0 {
            Answer::Done => Ok(()),
            Answer::Failed(reason) => Err(TunnelError::Refused(reason)),
            other => Err(unexpected(&other)),
        }
    }

    /// Readable when the process has ended.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Nothing is said unasked, so whatever there is to read is the end.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_readable(Duration::ZERO)
    }

    fn is_readable(&self, wait: Duration) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.stream, rustix::event::PollFlags::IN)];
        let wait = rustix::event::Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: wait.subsec_nanos().into(),
        };
        rustix::event::poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The process goes on; if it has ended already, nothing is to be left of it.
        if let Some(child) = &mut self.child {
            let _ = child.try_wait();
        }
    }
}

fn unexpected(answer: &Answer) -> TunnelError {
    match answer {
        Answer::Failed(reason) => TunnelError::Refused(reason.clone()),
        _ => TunnelError::Lost(io::Error::other("it answers something else")),
    }
}

fn gone() -> TunnelError {
    TunnelError::Lost(io::ErrorKind::UnexpectedEof.into())
}

/// Does not wait for ever for a process that lets nobody in.
fn connect_to(socket: &Path) -> io::Result<UnixStream> {
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(ANSWER_LIMIT))?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(stream.into())
}

/// Only for root, from the first moment.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = socket.parent() {
        fs::create_dir_all(directory)?;
    }
    // Under another name first, so that what others find is either the former or this one.
    let unready = temporary_path(socket, &std::process::id().to_string());
    let mut listener = None;
    replace_by(socket, &unready, |unready| {
        listener = Some(bind_for_owner(unready)?);
        Ok(())
    })?;
    listener.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A socket that nobody but its owner may connect to. The mode of a socket becomes that of its file when it is bound:
/// there is no moment with another one, whatever the umask is.
fn bind_for_owner(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let socket = File::from(socket);
    socket.set_permissions(Permissions::from_mode(0o600))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen_on(&socket, BACKLOG)?;
    Ok(OwnedFd::from(socket).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_closed_to_others_before_anything_else_is_done_to_it() {
        let path = std::env::temp_dir().join(format!("tunnel-mode-{}.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = bind_for_owner(&path).expect("a socket");
        let mode = fs::metadata(&path).expect("its file").permissions().mode();
        drop(listener);
        fs::remove_file(&path).expect("it is there");
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_socket_is_named_after_its_device() {
        let path = socket_path(Path::new("/run/flannel"), "flannel-wg");
        assert_eq!(path, Path::new("/run/flannel/tunnel-flannel-wg.sock"));
        assert_eq!(socket_device(&path), Some("flannel-wg"));
        assert_eq!(socket_device(Path::new("/run/flannel/flanneld.sock")), None);
    }
}
