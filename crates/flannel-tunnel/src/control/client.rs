//! The control plane's side: finds the process, starts it, takes it over, speaks to it.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flannel_common::{replace_by, temporary_path};

use super::protocol::{Answer, Program, Request, TunnelStatus, VERSION, receive, send};
use super::service::{PROCESS_NAME, SUBCOMMAND};
use crate::counters::CounterSnapshot;
use crate::datapath::Config;

/// A process that does not answer for so long hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The program that is running, whatever has become of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error("the tunnel process cannot be started: {0}")]
    Start(io::Error),
    #[error("the tunnel process does not answer: {0}; it is started anew")]
    Lost(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
}

/// A connection to the process of one device.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// Of the process, if it was started by this one: it is to be waited for.
    child: Option<Child>,
    /// What it is configured to, if it was found running.
    found: Option<Config>,
}

/// Where the process of a device listens.
pub fn socket_path(directory: &Path, device: &str) -> PathBuf {
    directory.join(format!("tunnel-{device}.sock"))
}

impl Client {
    /// Finds the process, and starts it if there is none. One of another program than this is replaced: its
    /// work goes over to a new one without a packet lost.
    pub fn find_or_start(directory: &Path, device: &str) -> Result<Self, TunnelError> {
        let socket = &socket_path(directory, device);
        match Self::find(socket) {
            Ok(Some((client, true))) => Ok(client),
            Ok(Some((old, false))) => old.replace_process(socket, device),
            Ok(None) | Err(_) => Self::start_anew(socket, device),
        }
    }

    /// The process that listens there, and whether it is of this very program.
    pub fn find(socket: &Path) -> Result<Option<(Self, bool)>, TunnelError> {
        let stream = match UnixStream::connect(socket) {
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
        let mut client = Self::new(stream, None)?;
        let same = client.greet()?;
        Ok(Some((client, same)))
    }

    fn new(stream: UnixStream, child: Option<Child>) -> io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self { stream, child, found: None })
    }

    fn greet(&mut self) -> Result<bool, TunnelError> {
        match self.ask(&Request::Hello { version: VERSION })? {
            Answer::Hello { version, program, config, .. } => {
                self.found = config;
                Ok(version == VERSION && program.is_some() && program == Program::own())
            }
            other => Err(unexpected(&other)),
        }
    }

    fn start_anew(socket: &Path, device: &str) -> Result<Self, TunnelError> {
        // One that hangs, or whose socket somebody has removed, would go on taking packets.
        end_strays(device);
        let listener = listen(socket).map_err(TunnelError::Start)?;
        let child = spawn(listener.into(), device).map_err(TunnelError::Start)?;
        let stream = UnixStream::connect(socket)?;
        let mut client = Self::new(stream, Some(child))?;
        client.greet()?;
        Ok(client)
    }

    fn replace_process(self, socket: &Path, device: &str) -> Result<Self, TunnelError> {
        send(&self.stream, &Request::HandOver, &[])?;
        let (handed, mut descriptors) = match receive(&self.stream)? {
            Some((Answer::Handed(handed), descriptors)) if !descriptors.is_empty() => {
                (handed, descriptors)
            }
            Some((answer, _)) => return Err(unexpected(&answer)),
            None => return Err(gone()),
        };
        // Until it is told how this ends, the old one accepts no connections.
        let child = spawn(descriptors.remove(0), device).map_err(TunnelError::Start)?;
        let mut new = Self::new(UnixStream::connect(socket)?, Some(child))?;
        new.greet()?;
        new.found = Some(handed.config.clone());
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
        send(&new.stream, &Request::Adopt(handed), &descriptors)?;
        new.done()?;
        send(&self.stream, &Request::End, &[])?;
        let _ = receive::<Answer>(&self.stream);
        tracing::info!(
            "the tunnel process was replaced by one of this version, with all its peers"
        );
        Ok(new)
    }

    /// What it was configured to when it was found.
    pub fn found(&self) -> Option<&Config> {
        self.found.as_ref()
    }

    pub(crate) fn command(&mut self, request: &Request) -> Result<(), TunnelError> {
        send(&self.stream, request, &[])?;
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

    /// Ends the process and removes its device.
    pub fn remove(mut self) -> Result<(), TunnelError> {
        self.command(&Request::Remove)
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, TunnelError> {
        send(&self.stream, request, &[])?;
        Ok(receive(&self.stream)?.ok_or_else(gone)?.0)
    }

    fn done(&mut self) -> Result<(), TunnelError> {
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

    /// Waits for a process that has ended, so that nothing is left of it.
    pub(crate) fn reap(mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }

    /// Nothing is said unasked, so whatever there is to read is the end.
    pub(crate) fn has_ended(&self) -> bool {
        let mut wait = [rustix::event::PollFd::new(&self.stream, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut wait, Some(&now)).is_ok_and(|ready| ready > 0)
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

/// Only for root, from the first moment.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = socket.parent() {
        fs::create_dir_all(directory)?;
    }
    // Under another name first, so that nobody finds it before it is closed to others.
    let unready = temporary_path(socket, &std::process::id().to_string());
    let mut listener = None;
    replace_by(socket, &unready, |unready| {
        listener = Some(UnixListener::bind(unready)?);
        fs::set_permissions(unready, fs::Permissions::from_mode(0o600))
    })?;
    listener.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn spawn(listener: OwnedFd, device: &str) -> io::Result<Child> {
    Command::new(OWN_PROGRAM)
        .arg0(PROCESS_NAME)
        .args([SUBCOMMAND, device])
        .stdin(Stdio::from(listener))
        .stdout(Stdio::null())
        .current_dir("/")
        .spawn()
}

/// Ends processes of this device in this network namespace.
fn end_strays(device: &str) {
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let Some(here) = namespace(Path::new("/proc/self")) else { return };
    let command = format!("{PROCESS_NAME}\0{SUBCOMMAND}\0{device}\0");
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.path();
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { continue };
        if fs::read(process.join("cmdline")).is_ok_and(|found| found == command.as_bytes())
            && namespace(&process).as_ref() == Some(&here)
        {
            tracing::warn!(
                "ending the tunnel process of {device}, which does not answer (pid {pid:?})"
            );
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
