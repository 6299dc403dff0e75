//! The lab's store: an etcd of one or three members on the underlay.
//!
//! Members keep their data in memory (their namespace's `/run`), which makes starts fast and leaves
//! nothing behind.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{Context, LabError, Result};
use crate::logs::{LogDir, LogFile};
use crate::namespace::{Namespace, View};
use crate::pid_namespace::PidNamespace;
use crate::plan::{Nic, Plan};
use crate::process::Process;
use crate::spec::EtcdSpec;
use crate::underlay::{self, Switch};

pub(crate) const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
const DATA: &str = "/run/etcd";
const SNAPSHOTS: &str = "/run/etcd-snapshots";

/// The store of a lab.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    flags: Vec<String>,
    binary: PathBuf,
}

#[derive(Debug)]
struct Member {
    name: String,
    nic: Nic,
    namespace: Namespace,
    log: LogFile,
    process: Mutex<Option<Process>>,
}

/// A copy of the store's data that it can be set back to.
#[derive(Clone, Debug)]
pub struct Snapshot(PathBuf);

impl Etcd {
    pub(crate) fn start(
        pid_namespace: &Arc<PidNamespace>,
        plan: &Plan,
        switch: &Switch,
        spec: &EtcdSpec,
        logs: &LogDir,
    ) -> Result<Self> {
        let binary = crate::programs::etcd(spec.binary.as_deref())?;
        let mut members = Vec::new();
        for index in 0..spec.members {
            let name = if index == 0 { "etcd".to_owned() } else { format!("etcd{}", index + 1) };
            members.push(Member {
                namespace: Namespace::new(pid_namespace, &name, View::Node)?,
                nic: plan.etcd(index),
                log: logs.log(&name),
                process: Mutex::default(),
                name,
            });
        }
        switch.plug(members.iter().map(|member| (&member.nic, &member.namespace)))?;
        for member in &members {
            let neighbours = plan.neighbours(&member.nic, spec.members);
            underlay::configure(&member.namespace, &member.nic, &neighbours)?;
        }
        let etcd = Self { members, flags: spec.flags.clone(), binary };
        for member in &etcd.members {
            etcd.start_member(member)?;
        }
        etcd.wait_healthy(Duration::from_secs(30))?;
        Ok(etcd)
    }

    /// The value for `--etcd-endpoints`.
    pub fn endpoints(&self) -> String {
        self.members.iter().map(|member| member.url(CLIENT_PORT)).collect::<Vec<_>>().join(",")
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The namespace of a member (0 is the first).
    pub fn namespace(&self, member: usize) -> Result<&Namespace> {
        Ok(&self.member(member)?.namespace)
    }

    /// The process number of a member, if it runs.
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members.get(member)?.process().as_ref().filter(|p| p.is_running()).map(Process::pid)
    }

    /// What the members have logged.
    pub fn log(&self) -> String {
        self.members.iter().map(|member| member.log.text()).collect()
    }

    /// Kills one member with SIGKILL.
    pub fn kill_member(&self, member: usize) -> Result<()> {
        *self.member(member)?.process() = None;
        Ok(())
    }

    /// Starts one member again on its data.
    pub fn restart_member(&self, member: usize) -> Result<()> {
        self.start_member(self.member(member)?)
    }

    /// Kills all members with SIGKILL.
    pub fn kill(&self) {
        for member in &self.members {
            *member.process() = None;
        }
    }

    /// Ends all members as an administrator would.
    pub fn stop(&self) -> Result<()> {
        for member in &self.members {
            let Some(process) = member.process().take() else { continue };
            process.signal(Signal::TERM)?;
            // Dropping it kills a member that does not end by itself.
            process.wait(Duration::from_secs(5))?;
        }
        Ok(())
    }

    /// Starts all members that do not run, on their data, and waits until they answer.
    pub fn restart(&self) -> Result<()> {
        for member in &self.members {
            if !member.process().as_ref().is_some_and(Process::is_running) {
                self.start_member(member)?;
            }
        }
        self.wait_healthy(Duration::from_secs(30))
    }

    /// Freezes all members: connections stay, answers do not come.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets frozen members go on.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Copies the data of all members as they are at this moment.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let name = format!("{}", fastrand::u64(..));
        let to = Path::new(SNAPSHOTS).join(name);
        self.pause()?;
        let copied = self.members.iter().try_for_each(|member| {
            member
                .namespace
                .run(|| copy_dir(Path::new(DATA), &to))?
                .context(|| format!("copy the data of {}", member.name))
        });
        self.resume()?;
        copied.map(|()| Snapshot(to))
    }

    /// Sets all members back to a copy, as a restore from a backup does: what was written since is
    /// gone and revisions start again from the copy's.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        self.kill();
        for member in &self.members {
            let restored = member.namespace.run(|| {
                fs::remove_dir_all(DATA)?;
                copy_dir(&snapshot.0, Path::new(DATA))
            })?;
            restored.context(|| format!("restore the data of {}", member.name))?;
        }
        self.restart()
    }

    /// Waits until a member accepts a write.
    pub fn wait_healthy(&self, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            let mut state = String::from("no member runs");
            for member in &self.members {
                match &*member.process() {
                    Some(process) => {
                        if let Some(status) = process.status() {
                            return Err(LabError::DaemonDied {
                                what: member.name.clone(),
                                status: status.to_string(),
                                log: member.log.tail(10),
                            });
                        }
                    }
                    None => continue,
                }
                let limit = Duration::from_secs(2);
                match member.namespace.http(CLIENT_PORT, "GET", "/health", "", limit)? {
                    Ok(answer) if answer.status == 200 && answer.body.contains("true") => {
                        return Ok(());
                    }
                    Ok(answer) => state = answer.body,
                    Err(error) => state = error.to_string(),
                }
            }
            if begin.elapsed() > limit {
                let logs = self.members.iter().map(|member| member.log.tail(5)).collect::<String>();
                return Err(LabError::Timeout {
                    what: "etcd to be healthy".into(),
                    waited: begin.elapsed(),
                    state,
                    logs: format!("\n{logs}"),
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn participants(&self) -> impl Iterator<Item = &Nic> {
        self.members.iter().map(|member| &member.nic)
    }

    fn start_member(&self, member: &Member) -> Result<()> {
        let cluster: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("{}={}", member.name, member.url(PEER_PORT)))
            .collect();
        let log = member.log.open()?;
        let errors = log.try_clone().context(|| "share a log".into())?;
        let mut command = Command::new(&self.binary);
        command
            .args(["--name", &member.name, "--data-dir", DATA])
            .args(["--listen-client-urls", &format!("http://[::]:{CLIENT_PORT}")])
            .args(["--advertise-client-urls", &member.url(CLIENT_PORT)])
            .args(["--listen-peer-urls", &format!("http://[::]:{PEER_PORT}")])
            .args(["--initial-advertise-peer-urls", &member.url(PEER_PORT)])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--initial-cluster-state", "new", "--log-level", "warn"])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        *member.process() = Some(member.namespace.spawn(command)?);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.members.iter().try_for_each(|member| {
            member.process().as_ref().map_or(Ok(()), |process| process.signal(signal))
        })
    }

    fn member(&self, index: usize) -> Result<&Member> {
        let count = self.members.len();
        let missing = || LabError::Spec(format!("no member {index}: etcd has {count}"));
        self.members.get(index).ok_or_else(missing)
    }
}

impl Member {
    fn url(&self, port: u16) -> String {
        let address = self.nic.addresses().into_iter().next().unwrap_or(Ipv4Addr::LOCALHOST.into());
        format!("http://{}", SocketAddr::new(address, port))
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    // etcd refuses a data directory that others can read.
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
