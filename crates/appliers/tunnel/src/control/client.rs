//! The daemon's side: finds the process, starts it, replaces it, sends requests, and notices when it does not answer.

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
use flannel_entries::tunnel::TunnelDevice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen as listen_on,
    socket_with,
};
use rustix::process::Pid;

use super::processes;
use super::protocol::{Answer, Program, Request, TunnelStatus, VERSION, receive, send};
use super::service::{PROCESS_NAME, SUBCOMMAND};
use crate::counters::CounterSnapshot;

/// Time after which a process that does not answer is taken to hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for the question whether it is alive, which takes it next to no time.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which, while waiting for an answer, the process is checked for being stopped.
const STOPPED_CHECK_INTERVAL: Duration = Duration::from_millis(250);
const END_TIMEOUT: Duration = Duration::from_secs(2);
const BACKLOG: i32 = 16;
/// The running program, whatever has become of its file.
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

#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    device: String,
    /// Process id, as the process has told it.
    pid: Option<Pid>,
    /// The process, if it is a child: it must be waited for.
    child: Option<Child>,
    /// The config of the device that it serves. Without one it cannot be told of peers.
    pub(crate) config: Option<TunnelDevice>,
}

pub fn socket_path(directory: &Path, device: &str) -> PathBuf {
    directory.join(format!("{SOCKET_PREFIX}{device}{SOCKET_SUFFIX}"))
}

/// Sockets of tunnel processes in a directory, of any network, with the names of their devices.
pub fn sockets(directory: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    fs::read_dir(directory).into_iter().flatten().flatten().filter_map(|file| {
        let path = file.path();
        Some((socket_device(&path)?.to_owned(), path))
    })
}

/// Device whose process listens on a socket of this name.
fn socket_device(socket: &Path) -> Option<&str> {
    socket.file_name()?.to_str()?.strip_prefix(SOCKET_PREFIX)?.strip_suffix(SOCKET_SUFFIX)
}

const SOCKET_PREFIX: &str = "tunnel-";
const SOCKET_SUFFIX: &str = ".sock";

/// Kills the processes of a device in this network namespace, and returns when they have ended.
pub fn end_processes(device: &str) -> io::Result<()> {
    processes::end(&processes::of_device(device))
}

impl Client {
    /// Finds or starts the process. A new one takes over from one of another program, without a packet lost.
    pub fn find_or_start(directory: &Path, device: &str) -> Result<Self, TunnelError> {
        let socket = &socket_path(directory, device);
        match Self::find(socket) {
            Ok(Some((client, true))) => Ok(client),
            Ok(Some((old, false))) => match old.replace_process(socket) {
                Err(hung @ TunnelError::Hung { .. }) => {
                    tracing::warn!("{hung}");
                    Self::start(socket, device)
                }
                replaced => replaced,
            },
            Ok(None) => Self::start(socket, device),
            Err(error) => {
                tracing::warn!("{error}");
                Self::start(socket, device)
            }
        }
    }

    /// Finds the process that listens there, and whether it is of this very program.
    pub fn find(socket: &Path) -> Result<Option<(Self, bool)>, TunnelError> {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let stream = match connect_to(socket) {
            Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => return Ok(None),
            connected => connected?,
        };
        let device = socket_device(socket).unwrap_or_default();
        let mut client = Self::new(stream, device, None)?;
        let same = client.greet()?;
        Ok(Some((client, same)))
    }

    fn new(stream: UnixStream, device: &str, child: Option<Child>) -> io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let pid = child.as_ref().map(Pid::from_child);
        Ok(Self { stream, device: device.to_owned(), pid, child, config: None })
    }

    fn greet(&mut self) -> Result<bool, TunnelError> {
        let hello = self.ask(&Request::Hello { version: VERSION })?;
        let Answer::Hello { version, program, config, pid } = hello else {
            return Err(unexpected());
        };
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        self.pid = self.pid.or(pid);
        self.config = config;
        Ok(version == VERSION && program.is_some() && program == Program::own())
    }

    fn start(socket: &Path, device: &str) -> Result<Self, TunnelError> {
        // One that hangs, or whose socket somebody has removed, would go on taking packets, and have the same key.
        for pid in processes::of_device(device) {
            tracing::warn!(
                "killing the tunnel process of {device} (pid {pid}): it does not answer"
            );
        }
        end_processes(device).map_err(TunnelError::Start)?;
        let listener = listen(socket).map_err(TunnelError::Start)?;
        let client = Self::spawn(device)?.greeted()?;
        let listens = client.command_with(&Request::Listen, &[listener.as_fd()]);
        client.or_end(listens)
    }

    /// Replaces a process of another program by one of this program.
    ///
    /// Two processes never use the keys of one session: the old one forgets those that it hands over, and the new one
    /// begins when the old one has ended. Should the new one fail, the old one goes on, with new sessions if it had
    /// handed over its own, and is used as it is.
    fn replace_process(self, socket: &Path) -> Result<Self, TunnelError> {
        // Before anything is asked of the old one: packets wait for as short a time as possible.
        let mut new = match Self::spawn(&self.device).and_then(Self::greeted) {
            Ok(new) => new,
            Err(error) => return Ok(self.goes_on(&error)),
        };
        let (handed, descriptors) = match self.exchange(&Request::HandOver, &[], ANSWER_TIMEOUT) {
            Ok((Answer::Handed(handed), descriptors)) => (handed, descriptors),
            other => return new.or_end(Err(other.err().unwrap_or_else(unexpected))),
        };
        new.config = Some(handed.config.clone());
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
        let adopted = new.command_with(&Request::Adopt(handed), &descriptors);
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

    /// Tells a process to end and returns when it has, by itself or killed.
    fn end_former(self, successor: &Self) -> Result<(), TunnelError> {
        let told = send(&self.stream, &Request::End, &[]).is_ok();
        if told && self.await_answer(END_TIMEOUT).is_ok() && self.waits_for_end(END_TIMEOUT) {
            return Ok(());
        }
        let mut others = processes::of_device(&self.device);
        others.retain(|pid| Some(*pid) != successor.pid);
        processes::end(&others).map_err(TunnelError::Start)
    }

    /// Whether the connection ends in time: when no thread of the process can use anything any more that it had open.
    fn waits_for_end(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.is_readable(end.saturating_duration_since(Instant::now())) {
            if !matches!(receive::<Answer>(&self.stream), Ok(Some(_))) {
                return true;
            }
        }
        false
    }

    /// Starts a process of this program, which ends when the connection does as long as it serves nothing.
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

    /// Returns this process if all went well, and ends it otherwise.
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

    pub(crate) fn reap(mut self) -> io::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // One that has closed its connection and lives on is useless, and would be waited for in vain.
        child.kill()?;
        processes::end(&[Pid::from_child(&child)])?;
        child.wait().map(drop)
    }

    pub(crate) fn configure(&mut self, config: TunnelDevice) -> Result<(), TunnelError> {
        self.command(&Request::Configure(config.clone()))?;
        self.config = Some(config);
        Ok(())
    }

    pub(crate) fn command(&self, request: &Request) -> Result<(), TunnelError> {
        self.command_with(request, &[])
    }

    fn command_with(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), TunnelError> {
        let (answer, _) = self.exchange(request, descriptors, ANSWER_TIMEOUT)?;
        if matches!(answer, Answer::Done) { Ok(()) } else { Err(unexpected()) }
    }

    pub fn status(&self) -> Result<TunnelStatus, TunnelError> {
        let Answer::Status(status) = self.ask(&Request::Status)? else { return Err(unexpected()) };
        Ok(*status)
    }

    pub fn totals(&self) -> Result<CounterSnapshot, TunnelError> {
        let Answer::Totals(totals) = self.ask(&Request::Totals)? else { return Err(unexpected()) };
        Ok(totals)
    }

    pub(crate) fn check_alive(&self) -> Result<(), TunnelError> {
        self.exchange(&Request::Totals, &[], ALIVE_TIMEOUT).map(drop)
    }

    pub fn remove(self) -> Result<(), TunnelError> {
        self.command(&Request::Remove)?;
        self.reap().map_err(TunnelError::from)
    }

    fn ask(&self, request: &Request) -> Result<Answer, TunnelError> {
        Ok(self.exchange(request, &[], ANSWER_TIMEOUT)?.0)
    }

    /// Sends a request and returns its answer, unless that is a refusal.
    fn exchange(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>), TunnelError> {
        send(&self.stream, request, descriptors).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => self.hung(ANSWER_TIMEOUT),
            _ => error.into(),
        })?;
        self.await_answer(limit)?;
        match receive(&self.stream)? {
            Some((Answer::Failed(reason), _)) => Err(TunnelError::Refused(reason)),
            Some(answer) => Ok(answer),
            None => Err(TunnelError::Lost(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Waits for an answer. A process that is stopped is not waited for. Rounds are counted instead of time, so that
    /// on a machine that was asleep, or is too busy to run this, no process is taken to hang.
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

    /// Readable when the process has ended.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether the process has ended: it sends nothing unasked, so anything to read is the end.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_readable(Duration::ZERO)
    }

    fn is_readable(&self, wait: Duration) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let wait = Timespec::try_from(wait).ok();
        poll(&mut fds, wait.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The process goes on; if it has ended already, it is reaped.
        if let Some(child) = &mut self.child {
            let _ = child.try_wait();
        }
    }
}

fn unexpected() -> TunnelError {
    TunnelError::Lost(io::Error::other("it answers something else"))
}

/// Connects, but not for ever, to a process that may accept nobody.
fn connect_to(socket: &Path) -> io::Result<UnixStream> {
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(ANSWER_TIMEOUT))?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(stream.into())
}

/// Listens on a socket for root only, from the first moment.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = socket.parent() {
        fs::create_dir_all(directory)?;
    }
    // Under another name first, so that others find either the former socket or this one.
    let unready = temporary_path(socket, &std::process::id().to_string());
    let mut listener = None;
    replace_by(socket, &unready, |unready| {
        listener = Some(bind_for_owner(unready)?);
        Ok(())
    })?;
    listener.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Binds a socket that nobody but its owner may connect to. The mode of a socket becomes that of its file when it is
/// bound: there is no moment with another one, whatever the umask is.
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
