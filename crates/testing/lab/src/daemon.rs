//! The flanneld of one node: started, stopped, killed, replaced by another program.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{Context, LabError, Result};
use crate::logs::LogFile;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::spec::DaemonSpec;
use crate::subnet_env::SUBNET_ENV;

/// How long a daemon may take to end after SIGTERM before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The daemon of a node.
#[derive(Debug)]
pub struct Daemon {
    namespace: Namespace,
    log: LogFile,
    healthz_port: u16,
    ready_limit: Duration,
    respawn: bool,
    realtime: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    binary: Option<PathBuf>,
    flags: Vec<String>,
    env: BTreeMap<String, String>,
    process: Option<Process>,
    /// Which `subnet.env` was there before the daemon started.
    former_env: Option<(u64, i64, i64)>,
}

impl Daemon {
    pub(crate) fn new(namespace: &Namespace, log: LogFile, spec: &DaemonSpec) -> Self {
        let DaemonSpec { binary, flags, env, healthz_port, ready_limit, respawn, realtime, .. } =
            spec.clone();
        let state = Mutex::new(State { binary, flags, env, ..State::default() });
        let namespace = namespace.clone();
        Self { namespace, log, healthz_port, ready_limit, respawn, realtime, state }
    }

    /// Starts it if it does not run, and does not wait.
    pub fn start(&self) -> Result<()> {
        let former_env = self.env_identity()?;
        let mut state = self.state();
        if state.process.as_ref().is_some_and(Process::is_running) {
            return Ok(());
        }
        let binary = crate::programs::flanneld(state.binary.as_deref())?;
        let log = self.log.open()?;
        let errors = log.try_clone().context(|| "share a log".into())?;
        let mut command = Command::new(binary);
        command.args(&state.flags).envs(&state.env).stdin(Stdio::null()).stdout(log).stderr(errors);
        if self.realtime {
            crate::realtime::apply(&mut command);
        }
        state.process = Some(self.namespace.spawn(command)?);
        state.former_env = former_env;
        Ok(())
    }

    /// Waits until it is ready: it has written `subnet.env` and says so on `/readyz`.
    pub fn wait_ready(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let state = match self.look() {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(state)) => state,
                Err(LabError::DaemonDied { status, .. }) if self.respawn => {
                    self.start()?;
                    format!("it ended ({status}) and was started again")
                }
                Err(error) => return Err(error),
            };
            if begin.elapsed() > self.ready_limit {
                return Err(LabError::Timeout {
                    what: format!("flanneld on {} to be ready", self.namespace.label()),
                    waited: begin.elapsed(),
                    state,
                    logs: format!("\n{}", self.log.tail(10)),
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it is ready now.
    pub fn is_ready(&self) -> bool {
        matches!(self.look(), Ok(Ok(())))
    }

    /// Its process number, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.state().process.as_ref().filter(|process| process.is_running()).map(Process::pid)
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// Ends it as a crash would (SIGKILL).
    pub fn kill9(&self) {
        self.state().process = None;
    }

    /// Ends it as an administrator would (SIGTERM), and waits for it.
    pub fn stop(&self) -> Result<()> {
        let Some(process) = self.state().process.take() else { return Ok(()) };
        // A frozen process cannot handle the signal.
        process.signal(Signal::TERM)?;
        process.signal(Signal::CONT)?;
        if process.wait(STOP_LIMIT)?.is_none() {
            return Err(LabError::Timeout {
                what: format!("flanneld on {} to end after SIGTERM", self.namespace.label()),
                waited: STOP_LIMIT,
                state: "it still ran and was killed".into(),
                logs: format!("\n{}", self.log.tail(10)),
            });
        }
        Ok(())
    }

    /// Stops it (if it runs), starts it and waits until it is ready.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.start()?;
        self.wait_ready()
    }

    /// The program for its next start; `None`: our own.
    pub fn set_binary(&self, binary: Option<&Path>) {
        self.state().binary = binary.map(Path::to_owned);
    }

    /// Lets another program run on the node from now on.
    pub fn restart_with(&self, binary: &Path) -> Result<()> {
        let binary = crate::programs::executable(binary)?;
        self.stop()?;
        self.state().binary = Some(binary);
        self.restart()
    }

    /// Freezes it (SIGSTOP).
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after a freeze (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Sends it any signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match &self.state().process {
            Some(process) => process.signal(signal),
            None => Err(LabError::Spec(format!(
                "no flanneld runs on {}: start it with `restart`",
                self.namespace.label()
            ))),
        }
    }

    /// The program that runs, or will at the next start.
    pub fn binary(&self) -> Option<PathBuf> {
        self.state().binary.clone()
    }

    /// The flags it gets at its next start.
    pub fn flags(&self) -> Vec<String> {
        self.state().flags.clone()
    }

    /// Sets the flags for its next start.
    pub fn set_flags(&self, flags: Vec<String>) {
        self.state().flags = flags;
    }

    /// Adds a flag for its next start.
    pub fn add_flag(&self, flag: impl Into<String>) {
        self.state().flags.push(flag.into());
    }

    /// Sets a variable in its environment for its next start.
    pub fn set_env(&self, name: impl Into<String>, value: impl Into<String>) {
        self.state().env.insert(name.into(), value.into());
    }

    /// All it has logged, over all its runs.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// The end of its log, for messages.
    pub fn log_tail(&self, lines: usize) -> String {
        self.log.tail(lines)
    }

    /// Ready, or what is still missing; an error if it can never become ready.
    fn look(&self) -> Result<Result<(), String>> {
        let former_env = {
            let state = self.state();
            let Some(process) = &state.process else {
                return Ok(Err("flanneld does not run".into()));
            };
            if let Some(status) = process.status() {
                return Err(LabError::DaemonDied {
                    what: format!("flanneld on {}", self.namespace.label()),
                    status: status.to_string(),
                    log: self.log.tail(10),
                });
            }
            state.former_env
        };
        let env = self.env_identity()?;
        if env.is_none() {
            return Ok(Err(format!("no {SUBNET_ENV}")));
        }
        if self.healthz_port == 0 {
            let fresh = env != former_env;
            return Ok(if fresh { Ok(()) } else { Err(format!("{SUBNET_ENV} of an earlier run")) });
        }
        let limit = Duration::from_secs(1);
        let answer = self.namespace.http(self.healthz_port, "GET", "/readyz", "", limit)?;
        Ok(match answer {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(format!("/readyz: {} {}", answer.status, answer.body.trim())),
            Err(error) => Err(format!("/readyz: {error}")),
        })
    }

    fn env_identity(&self) -> Result<Option<(u64, i64, i64)>> {
        self.namespace.run(|| {
            let meta = std::fs::metadata(SUBNET_ENV).ok()?;
            Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
