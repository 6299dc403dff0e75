//! A network namespace (with the mount namespace that belongs to it) that no name pins.
//!
//! It lives as long as somebody holds its file descriptors, which is this process and what runs in
//! it, so nothing stays behind however the process ends.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::system::sethostname;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::{Context, Result};
use crate::mounts;
use crate::pid_namespace::PidNamespace;
use crate::wait::wait_until;

/// How long processes may take to be gone after they were killed.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// A handle on a namespace; clones are the same namespace.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    label: String,
    /// Replaced when the machine restarts.
    net: Mutex<Arc<OwnedFd>>,
    /// Mounts and host name, where these are its own.
    own: Option<Own>,
    pid_namespace: Arc<PidNamespace>,
}

#[derive(Debug)]
struct Own {
    mounts: OwnedFd,
    host: OwnedFd,
}

/// Which file system a namespace sees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View<'a> {
    /// The host's: nothing that looks at files runs there.
    Host,
    /// A node's own `/run`, `/sys`, `/var/lib/cni` and `/etc/cni`.
    Node,
    /// The files of a node, but its own `/sys`.
    PodOf(&'a Namespace),
}

impl Namespace {
    pub(crate) fn new(
        pid_namespace: &Arc<PidNamespace>,
        label: &str,
        view: View<'_>,
    ) -> Result<Self> {
        let (net, own) = on_new_thread(label, || {
            // SAFETY: the thread is new and ends here; nothing else relies on its network.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::FS) }
                .context(|| "make a network namespace".into())?;
            let net = File::open("/proc/thread-self/ns/net")
                .context(|| "open a network namespace".into())?;
            if matches!(view, View::Host) {
                return Ok((net, None));
            }
            // The lab's /proc does not show this thread, the host's does.
            let task = File::open("/proc/thread-self/ns").context(|| "open own links".into())?;
            let template = match view {
                View::PodOf(Self(node)) => node.own.as_ref().map(|own| own.mounts.as_fd()),
                View::Host | View::Node => None,
            };
            move_into_link_name_space(
                template.unwrap_or(pid_namespace.base_mounts()),
                Some(LinkNameSpaceType::Mount),
            )
            .context(|| "enter the lab's mount namespace".into())?;
            // SAFETY: as above; mounts and host name of this thread become its own copy.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWUTS) }
                .context(|| "make a mount namespace".into())?;
            sethostname(label.as_bytes()).context(|| format!("set the host name {label}"))?;
            match view {
                View::PodOf(_) => {
                    mounts::unmount_namespaces();
                    mounts::own_sys()?;
                }
                View::Host | View::Node => mounts::prepare_node(label)?,
            }
            let link = |name: &str| {
                openat(&task, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                    .context(|| format!("open the {name} namespace of {label}"))
            };
            Ok((net, Some(Own { mounts: link("mnt")?, host: link("uts")? })))
        })?;
        let label = label.to_owned();
        let pid_namespace = Arc::clone(pid_namespace);
        let inner = Inner { label, net: Mutex::new(Arc::new(net.into())), own, pid_namespace };
        Ok(Self(Arc::new(inner)))
    }

    /// What people call it: `node1`, `pod2`, `etcd`, `switch`.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// Runs a closure on a thread inside the namespace and returns what it returns. Sockets opened
    /// there stay in the namespace wherever they are used. Threads that the closure starts are
    /// inside too.
    ///
    /// `/proc` shows the lab's processes there, so `/proc/self` does not exist for the closure.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        on_new_thread(self.label(), || {
            self.enter()?;
            Ok(work())
        })
    }

    /// Sets a kernel parameter of the namespace, e.g. `net/ipv4/ip_forward`.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.sysctls(&[(name, value)])
    }

    pub(crate) fn sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        on_new_thread(self.label(), || {
            self.enter_net()?;
            for (name, value) in settings {
                fs::write(format!("/proc/sys/{name}"), value)
                    .context(|| format!("{}: set {name} to {value}", self.0.label))?;
            }
            Ok(())
        })
    }

    /// Shows this namespace to programs of a node, by its label.
    pub(crate) fn show_on(&self, node: &Self) -> Result<()> {
        let net = self.net();
        node.run(|| mounts::show_namespace(net.as_fd(), self.label()))?
    }

    /// Undoes [`Self::show_on`].
    pub(crate) fn hide_on(&self, node: &Self) {
        let _ = node.run(|| mounts::hide_namespace(self.label()));
    }

    /// Where other processes find the namespace, as long as this process lives.
    pub fn paths(&self) -> NamespacePaths {
        let pid = std::process::id();
        let path = |fd: i32| PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
        NamespacePaths {
            net: path(self.net().as_raw_fd()),
            mounts: self.0.own.as_ref().map(|own| path(own.mounts.as_raw_fd())),
            host: self.0.own.as_ref().map(|own| path(own.host.as_raw_fd())),
            pids: path(self.0.pid_namespace.fd().as_raw_fd()),
        }
    }

    pub(crate) fn pid_namespace(&self) -> &PidNamespace {
        &self.0.pid_namespace
    }

    /// Moves the calling thread inside; it must be a thread of our own that ends soon.
    pub(crate) fn enter(&self) -> Result<()> {
        self.enter_net()?;
        let Some(own) = &self.0.own else { return Ok(()) };
        // SAFETY: the thread is our own and has no use for a shared working directory.
        unsafe { unshare_unsafe(UnshareFlags::FS) }
            .context(|| "stop sharing the working directory".into())?;
        move_into_link_name_space(
            own.host.as_fd(),
            Some(LinkNameSpaceType::HostNameAndNISDomainName),
        )
        .context(|| format!("take the host name of {}", self.0.label))?;
        move_into_link_name_space(own.mounts.as_fd(), Some(LinkNameSpaceType::Mount))
            .context(|| format!("enter the mounts of {}", self.0.label))
    }

    /// As [`Self::enter`], but the thread goes on seeing the host's files.
    pub(crate) fn enter_net(&self) -> Result<()> {
        move_into_link_name_space(self.net().as_fd(), Some(LinkNameSpaceType::Network))
            .context(|| format!("enter the network of {}", self.0.label))
    }

    /// Restarts the machine: it has another network namespace, in which nothing is, and an empty
    /// `/run`. All of its processes must have ended.
    pub(crate) fn renew(&self) -> Result<()> {
        let net = on_new_thread(self.label(), || {
            // The own /proc does not show this thread, the host's does.
            let task = File::open("/proc/thread-self/ns").context(|| "open own links".into())?;
            self.enter()?;
            // SAFETY: the thread is new and ends here; nothing else relies on its network.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .context(|| "make a network namespace".into())?;
            mounts::renew_node()?;
            openat(&task, "net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .context(|| format!("open the network namespace of {}", self.label()))
        })?;
        *self.0.net.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(net);
        Ok(())
    }

    /// Kills every process that sees this namespace's files, or is in a control group of this name, and
    /// waits until none is left.
    pub(crate) fn kill_all(&self, cgroup: &str) -> Result<()> {
        let mounts = self.0.own.as_ref().map(|own| rustix::fs::fstat(&own.mounts));
        let mounts = mounts.transpose().context(|| "look at a mount namespace".into())?;
        let ours = |process: &Path| {
            let same = fs::metadata(process.join("ns/mnt"))
                .is_ok_and(|found| mounts.is_some_and(|own| own.st_ino == found.ino()));
            let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            same || groups.lines().any(|line| line.contains(cgroup))
        };
        let what = format!("all processes of {} to end", self.label());
        wait_until(&what, KILL_LIMIT, || {
            let entries = fs::read_dir("/proc").map_err(|error| error.to_string())?;
            let running: Vec<i32> = entries
                .flatten()
                .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
                .filter(|(_, path)| ours(path))
                .map(|(pid, _)| pid)
                .collect();
            for pid in running.iter().filter_map(|&pid| Pid::from_raw(pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
            if running.is_empty() { Ok(()) } else { Err(format!("{} live", running.len())) }
        })
    }

    fn net(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0.net.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes children of the calling thread members of the lab's PID namespace. The thread itself
    /// cannot start threads any more.
    pub(crate) fn enter_pids(&self) -> Result<()> {
        move_into_link_name_space(self.0.pid_namespace.fd(), Some(LinkNameSpaceType::ProcessID))
            .context(|| "enter the lab's PID namespace".into())
    }
}

/// Links to the parts of a namespace that another process can open and enter.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct NamespacePaths {
    /// The network namespace.
    pub net: PathBuf,
    /// The mount namespace, if it has its own.
    pub mounts: Option<PathBuf>,
    /// The namespace of the host name, if it has its own.
    pub host: Option<PathBuf>,
    /// The PID namespace of the whole lab.
    pub pids: PathBuf,
}

impl NamespacePaths {
    /// Moves the calling process inside; children it starts from now on are there entirely and end
    /// with the lab. Must be called while the process has a single thread.
    pub fn enter(&self) -> Result<()> {
        let open = |path: &PathBuf| {
            File::open(path).context(|| format!("open {}: is the lab still up?", path.display()))
        };
        let net = open(&self.net)?;
        let mounts = self.mounts.as_ref().map(open).transpose()?;
        let host = self.host.as_ref().map(open).transpose()?;
        let pids = open(&self.pids)?;
        let enter = |file: &File, kind| {
            move_into_link_name_space(file.as_fd(), Some(kind))
                .context(|| "enter a namespace of the lab".into())
        };
        enter(&pids, LinkNameSpaceType::ProcessID)?;
        enter(&net, LinkNameSpaceType::Network)?;
        if let Some(host) = &host {
            enter(host, LinkNameSpaceType::HostNameAndNISDomainName)?;
        }
        if let Some(mounts) = &mounts {
            enter(mounts, LinkNameSpaceType::Mount)?;
        }
        Ok(())
    }
}

/// Runs something on a thread of its own, because namespaces are entered by threads and there is no
/// way back out of some of them.
pub(crate) fn on_new_thread<R: Send>(
    name: &str,
    work: impl FnOnce() -> Result<R> + Send,
) -> Result<R> {
    std::thread::scope(|scope| {
        let handle = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)
            .context(|| "start a thread".into())?;
        handle.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
