//! The PID namespace of a lab, which guarantees that the lab leaves no process behind.
//!
//! Everything a lab runs lives in one PID namespace. Its first process does nothing but read from a
//! pipe whose other end the lab's owner holds: when the owner ends in whatever way, the pipe closes,
//! the first process ends, and the kernel kills all others with it, grandchildren included. A
//! parent-death signal could not do that: it is lost on grandchildren, and it is bound to the thread
//! that forked.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::error::{Context, LabError, Result};
use crate::mounts;
use crate::namespace::on_new_thread;

/// With it go the mounts that all nodes of the lab start from.
#[derive(Debug)]
pub(crate) struct PidNamespace {
    first: Mutex<Child>,
    fd: OwnedFd,
    base_mounts: OwnedFd,
    children: Mutex<Vec<Weak<Mutex<Child>>>>,
}

impl PidNamespace {
    pub(crate) fn start() -> Result<Arc<Self>> {
        let (first, base_mounts) = on_new_thread("lab-pids", || {
            // SAFETY: the thread is new and ends here; nothing else shares its file system state.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
                .context(|| "make a mount namespace".into())?;
            mounts::prepare_base()?;
            // Before /proc shows the new PID namespace only.
            let base_mounts: OwnedFd = File::open("/proc/thread-self/ns/mnt")
                .context(|| "open the lab's mount namespace".into())?
                .into();
            // SAFETY: only where children of this thread are born changes.
            unsafe { unshare_unsafe(UnshareFlags::NEWPID) }
                .context(|| "make a PID namespace".into())?;
            let first = spawn_first()?;
            Ok((first, base_mounts))
        })?;
        let fd = File::open(format!("/proc/{}/ns/pid", first.id()))
            .context(|| "open the lab's PID namespace".into())?
            .into();
        let first = Mutex::new(first);
        Ok(Arc::new(Self { first, fd, base_mounts, children: Mutex::default() }))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn base_mounts(&self) -> BorrowedFd<'_> {
        self.base_mounts.as_fd()
    }

    /// Remembers a process so that it is reaped even if its handle outlives the lab.
    pub(crate) fn adopt(&self, child: &Arc<Mutex<Child>>) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|known| known.strong_count() > 0);
        children.push(Arc::downgrade(child));
    }

    /// Kills every process of the lab and waits until they are gone.
    pub(crate) fn end(&self) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        let _ = first.kill();
        // The kernel lets the first process go only after all others were reaped by their parent.
        let children =
            std::mem::take(&mut *self.children.lock().unwrap_or_else(PoisonError::into_inner));
        for child in children.iter().filter_map(Weak::upgrade) {
            let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = child.kill();
            let _ = child.wait();
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while first.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for PidNamespace {
    fn drop(&mut self) {
        self.end();
    }
}

/// `cat` reads its standard input until the other end is closed, which is all that is needed.
fn spawn_first() -> Result<Child> {
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    // SAFETY: only system calls that are allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            mounts::own_proc()?;
            // Orphans of the namespace become children of this process: let the kernel reap them.
            if libc::signal(libc::SIGCHLD, libc::SIG_IGN) == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
            // An interrupt from the terminal is the owner's to handle.
            rustix::process::setsid()?;
            Ok(())
        });
    }
    match command.spawn() {
        Ok(child) => Ok(child),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(LabError::MissingTool { tool: "cat", hint: "install coreutils" })
        }
        Err(error) => Err(error).context(|| "start the lab's first process".into()),
    }
}
