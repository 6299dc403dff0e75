//! The logs of a lab, in a file system in memory that is mounted nowhere: they vanish with the lab.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

use crate::error::{Context, Result};

/// Where the logs of a lab are.
#[derive(Debug)]
pub(crate) struct LogDir {
    path: PathBuf,
    _memory: Option<OwnedFd>,
}

impl LogDir {
    /// In the given directory, or in memory: then nothing remains however the process ends.
    pub(crate) fn new(dir: Option<&Path>) -> Result<Self> {
        if let Some(dir) = dir.map(Path::to_owned).or_else(kept_logs) {
            fs::create_dir_all(&dir).context(|| format!("create {}", dir.display()))?;
            return Ok(Self { path: dir, _memory: None });
        }
        let what = || "make a file system in memory for logs".to_owned();
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).context(what)?;
        fsconfig_set_string(&context, "mode", "0755").context(what)?;
        fsconfig_create(&context).context(what)?;
        let memory = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
            .context(what)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
        Ok(Self { path, _memory: Some(memory) })
    }

    pub(crate) fn log(&self, name: &str) -> LogFile {
        LogFile { path: self.path.join(format!("{name}.log")) }
    }
}

/// A directory of its own below `$FLANNEL_LAB_LOGS`, for whoever wants to read the logs of a test
/// after its end.
fn kept_logs() -> Option<PathBuf> {
    static LABS: AtomicU32 = AtomicU32::new(1);
    let dir = std::env::var_os("FLANNEL_LAB_LOGS")?;
    let number = LABS.fetch_add(1, Ordering::Relaxed);
    Some(Path::new(&dir).join(format!("{}-{number}", std::process::id())))
}

/// The log of one daemon over all its runs.
#[derive(Clone, Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
}

impl LogFile {
    /// Opened for a process to write to; former runs stay.
    pub(crate) fn open(&self) -> Result<File> {
        File::options()
            .create(true)
            .append(true)
            .open(&self.path)
            .context(|| format!("open the log {}", self.path.display()))
    }

    pub(crate) fn text(&self) -> String {
        fs::read(&self.path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    pub(crate) fn tail(&self, lines: usize) -> String {
        let text = self.text();
        let all: Vec<&str> = text.lines().collect();
        let mut tail = String::new();
        for line in &all[all.len().saturating_sub(lines)..] {
            tail.push_str("    ");
            tail.push_str(line);
            tail.push('\n');
        }
        tail
    }
}
