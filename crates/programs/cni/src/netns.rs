//! Network namespaces by path: opening one, and doing something inside it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const NSFS_MAGIC: u64 = 0x6e73_6673;
const PROC_MAGIC: u64 = 0x9fa0;
const OWN_NETNS: &str = "/proc/thread-self/ns/net";

pub struct Netns {
    file: File,
    path: String,
}

#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("there is no network namespace at {path}")]
    Gone { path: String },
    #[error("{path} is not a namespace")]
    NotANamespace { path: String },
    #[error("could not {attempted} the network namespace {path}: {error}")]
    Io { attempted: &'static str, path: String, error: io::Error },
}

impl Netns {
    pub fn open(path: &str) -> Result<Self, NetnsError> {
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NetnsError::Gone { path: path.to_owned() },
            _ => NetnsError::Io { attempted: "open", path: path.to_owned(), error },
        })?;
        let failed = |error| NetnsError::Io { attempted: "examine", path: path.to_owned(), error };
        let system = rustix::fs::fstatfs(&file).map_err(|error| failed(error.into()))?;
        // A file left over where a namespace was mounted, once the host has been restarted.
        if ![NSFS_MAGIC, PROC_MAGIC].contains(&(system.f_type as u64)) {
            return Err(NetnsError::NotANamespace { path: path.to_owned() });
        }
        Ok(Self { file, path: path.to_owned() })
    }

    pub fn current() -> Result<Self, NetnsError> {
        Self::open(OWN_NETNS)
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is the one this thread is in.
    pub fn is_current(&self) -> bool {
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        match (self.file.metadata(), std::fs::metadata(OWN_NETNS)) {
            (Ok(this), Ok(own)) => identity(this) == identity(own),
            _ => false,
        }
    }

    /// Does something as a member of it. Sockets opened inside go on belonging to it.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T, NetnsError> {
        let failed = |attempted| {
            move |error: io::Error| NetnsError::Io { attempted, path: self.path.clone(), error }
        };
        let own = File::open(OWN_NETNS).map_err(failed("come back from"))?;
        enter(self.as_fd()).map_err(failed("enter"))?;
        let result = work();
        enter(own.as_fd()).map_err(failed("come back from"))?;
        Ok(result)
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}
