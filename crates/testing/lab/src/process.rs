//! Commands inside a namespace: run to the end with their output, or started and kept.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{Context, LabError, Result};
use crate::namespace::{Namespace, on_new_thread};
use crate::wait::wait_until;

/// How long a command may take that is run to its end.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// How long a process may take to stand still.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What a command that ended has left.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl Namespace {
    /// Runs a command inside and returns what it printed; a failing status is an error.
    pub fn exec<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        self.exec_within(COMMAND_LIMIT, words)
    }

    /// As [`Self::exec`], for a command that may take longer (or must take less) than a minute.
    pub fn exec_within<S: AsRef<OsStr>>(&self, limit: Duration, words: &[S]) -> Result<String> {
        let output = self.run_command(&mut command(words)?, &line(words), None, limit)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(self.failed(&line(words), output.status, &output.stderr))
    }

    /// Runs a command inside and returns status and output whatever they are.
    pub fn output<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Output> {
        self.run_command(&mut command(words)?, &line(words), None, COMMAND_LIMIT)
    }

    /// Runs `ip` with these words inside.
    pub fn ip(&self, words: &str) -> Result<String> {
        let words: Vec<&str> = std::iter::once("ip").chain(words.split_whitespace()).collect();
        self.exec(&words)
    }

    /// Starts a command inside that goes on until the handle is dropped or the lab ends. Output goes
    /// where the command says (by default, to where ours goes).
    pub fn spawn(&self, mut command: Command) -> Result<Process> {
        let what = describe(&command);
        let child = self.start(&mut command, &what, true)?;
        Process::new(self, child, what)
    }

    /// Runs `ip`, `tc` or `bridge` once for many commands. Only the network is entered, so that the
    /// commands can name other namespaces by [`Namespace::paths`].
    pub(crate) fn batch(&self, tool: &str, lines: &[String]) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut command = Command::new(tool);
        command.args(["-batch", "-"]);
        let input = lines.join("\n") + "\n";
        let output = self.run_to_end(&mut command, tool, Some(&input), COMMAND_LIMIT, false)?;
        if output.status.success() {
            return Ok(());
        }
        // "Command failed -:7" names the line.
        let number =
            output.stderr.rsplit_once("-:").and_then(|(_, number)| number.trim().parse().ok());
        let failed = number.and_then(|number: usize| lines.get(number.checked_sub(1)?));
        let what = match (failed, lines) {
            (Some(line), _) | (None, [line]) => format!("{tool} {line}"),
            (None, _) => format!("{tool} -batch ({} lines)", lines.len()),
        };
        Err(self.failed(&what, output.status, &output.stderr))
    }

    pub(crate) fn failed(&self, command: &str, status: ExitStatus, stderr: &str) -> LabError {
        LabError::Command {
            place: self.label().to_owned(),
            command: command.to_owned(),
            status: status.to_string(),
            stderr: stderr.trim().to_owned(),
        }
    }

    pub(crate) fn run_command(
        &self,
        command: &mut Command,
        what: &str,
        input: Option<&str>,
        limit: Duration,
    ) -> Result<Output> {
        self.run_to_end(command, what, input, limit, true)
    }

    /// `inside`: a tool of our own enters the network only.
    fn run_to_end(
        &self,
        command: &mut Command,
        what: &str,
        input: Option<&str>,
        limit: Duration,
        inside: bool,
    ) -> Result<Output> {
        let memory = |name: &str| -> Result<File> {
            let fd = memfd_create(name, MemfdFlags::CLOEXEC)
                .context(|| format!("a buffer for `{what}`"))?;
            Ok(File::from(fd))
        };
        let share = |file: &File| file.try_clone().context(|| format!("a buffer for `{what}`"));
        // Files instead of pipes: no reader is needed, and a background process that keeps the
        // output open does not keep us.
        let mut stdout = memory("stdout")?;
        let mut stderr = memory("stderr")?;
        command.stdout(share(&stdout)?).stderr(share(&stderr)?);
        match input {
            Some(input) => {
                let mut stdin = memory("stdin")?;
                stdin
                    .write_all(input.as_bytes())
                    .and_then(|()| stdin.rewind())
                    .context(|| format!("input for `{what}`"))?;
                command.stdin(stdin);
            }
            None => {
                command.stdin(Stdio::null());
            }
        }
        let child = self.start(command, what, inside)?;
        let process = Process::new(self, child, what.to_owned())?;
        let Some(status) = process.wait(limit)? else {
            return Err(LabError::CommandTimeout {
                place: self.label().to_owned(),
                command: what.to_owned(),
                limit,
            });
        };
        let text = |file: &mut File| -> Result<String> {
            let mut bytes = Vec::new();
            file.rewind()
                .and_then(|()| file.read_to_end(&mut bytes))
                .context(|| format!("output of `{what}`"))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Output { status, stdout: text(&mut stdout)?, stderr: text(&mut stderr)? })
    }

    fn start(&self, command: &mut Command, what: &str, inside: bool) -> Result<Child> {
        on_new_thread(self.label(), || {
            if inside {
                self.enter()?;
                self.enter_pids()?;
            } else {
                self.enter_net()?;
            }
            crate::programs::with_admin_path(command);
            command.spawn().context(|| format!("{}: start `{what}`", self.label()))
        })
    }
}

/// A running process of the lab. Dropping the handle kills the process.
#[derive(Debug)]
pub struct Process {
    child: Arc<Mutex<Child>>,
    fd: OwnedFd,
    pid: u32,
    what: String,
}

impl Process {
    fn new(namespace: &Namespace, child: Child, what: String) -> Result<Self> {
        let pid = child.id();
        let child = Arc::new(Mutex::new(child));
        namespace.pid_namespace().adopt(&child);
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let fd = number
            .ok_or(std::io::Error::from(std::io::ErrorKind::InvalidData))
            .and_then(|number| Ok(pidfd_open(number, PidfdFlags::empty())?))
            .context(|| format!("watch `{what}`"))?;
        Ok(Self { child, fd, pid, what })
    }

    /// Its number as the host sees it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, or nothing while it runs.
    pub fn status(&self) -> Option<ExitStatus> {
        self.lock().try_wait().ok().flatten()
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.status().is_none()
    }

    /// Sends a signal; to a process that has ended that is not an error. After SIGSTOP it does nothing more:
    /// its threads are stopped one by one, and are waited for.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).context(|| format!("signal `{}`", self.what)),
        }
        if signal == Signal::STOP {
            let what = format!("`{}` to stand still", self.what);
            wait_until(&what, STOP_LIMIT, || self.stands_still())?;
        }
        Ok(())
    }

    fn stands_still(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid()));
        threads.into_iter().flatten().flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // Stopped, or ended meanwhile.
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
            !state.starts_with(['R', 'S', 'D'])
        })
    }

    /// Waits until it ends, at most for `limit`; nothing if it still runs then.
    pub fn wait(&self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)];
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 60, tv_nsec: 0 });
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Ok(None),
                Ok(_) => {
                    let status =
                        self.lock().wait().context(|| format!("wait for `{}`", self.what))?;
                    return Ok(Some(status));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context(|| format!("wait for `{}`", self.what)),
            }
        }
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&self) {
        let mut child = self.lock();
        let _ = child.kill();
        let _ = child.wait();
    }

    fn lock(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn command<S: AsRef<OsStr>>(words: &[S]) -> Result<Command> {
    let [program, arguments @ ..] = words else {
        return Err(LabError::Spec("an empty command".into()));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

fn line<S: AsRef<OsStr>>(words: &[S]) -> String {
    words.iter().map(|word| word.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn describe(command: &Command) -> String {
    let words: Vec<&OsStr> =
        std::iter::once(command.get_program()).chain(command.get_args()).collect();
    line(&words)
}
