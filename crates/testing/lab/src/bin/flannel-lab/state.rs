//! Where a running lab is found: its directory under `/run/flannel-lab`.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};

const ROOT: &str = "/run/flannel-lab";

/// The name of a lab, which is the name of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabName(String);

impl LabName {
    pub(crate) fn dir(&self) -> PathBuf {
        Path::new(ROOT).join(&self.0)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir().join("control.sock")
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        self.dir().join("logs")
    }

    /// By which programs of the host reach the API server of a lab that has one.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir().join("kubeconfig")
    }

    /// The words that a command needs to mean this lab.
    pub(crate) fn option(&self) -> String {
        if self.0 == "default" { String::new() } else { format!(" --name {}", self.0) }
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LabName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > 32 || !text.bytes().all(allowed) {
            return Err("1 to 32 letters, digits, `-` or `_`".into());
        }
        Ok(Self(text.to_owned()))
    }
}

/// The directory of a lab, held by a lock that the kernel releases when its holder dies.
#[derive(Debug)]
pub(crate) struct StateDir {
    dir: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Takes the directory and clears what a dead supervisor has left; nothing if it is in use.
    pub(crate) fn take(name: &LabName) -> anyhow::Result<Option<Self>> {
        let dir = name.dir();
        loop {
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
            let path = dir.join("lock");
            let lock = match File::options().create(true).append(true).open(&path) {
                Ok(lock) => lock,
                // Its last holder is just removing it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).context(format!("open {}", path.display())),
            };
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error).context(format!("lock {}", path.display())),
            }
            let current = fs::metadata(&path).map(|meta| meta.ino()).ok();
            if current != lock.metadata().map(|meta| meta.ino()).ok() {
                continue;
            }
            clear(&dir, &path);
            return Ok(Some(Self { dir, _lock: lock }));
        }
    }

    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.dir);
        // Goes only if no other lab is there.
        let _ = fs::remove_dir(ROOT);
    }
}

fn clear(dir: &Path, except: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path != except {
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_directory() {
        for wrong in ["", "..", "a/b", "a b", &"x".repeat(33)] {
            assert!(wrong.parse::<LabName>().is_err(), "{wrong}");
        }
        let name: LabName = "my-lab_2".parse().unwrap();
        assert_eq!(name.dir(), Path::new("/run/flannel-lab/my-lab_2"));
        assert_eq!(name.option(), " --name my-lab_2");
    }
}
