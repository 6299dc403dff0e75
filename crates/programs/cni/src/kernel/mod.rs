//! Links, addresses, routes and limits of one network namespace, over one socket.

mod address;
mod link;
mod query;
mod removal;
mod route;
mod sysctl;
mod traffic_control;
mod vlan;

use std::io;

use flannel_netlink::{Connection, NetlinkError, Protocol, Request};

pub(crate) use link::{Link, Veth};
pub(crate) use removal::{remove_link, remove_link_of};
pub(crate) use sysctl::{enable, set};
pub(crate) use traffic_control::{Bucket, Ifb};
pub(crate) use vlan::PortVlans;

/// The kernel as seen from the namespace in which it was opened.
pub(crate) struct Kernel {
    connection: Connection,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    #[error("could not {what}: {error}")]
    Refused { what: String, error: NetlinkError },
    #[error("could not talk to the kernel: {0}")]
    Io(#[from] io::Error),
}

/// A change, and what it is for, in words that follow "could not".
pub(crate) struct Change {
    what: String,
    request: Request,
    /// Error numbers that mean: it is so already.
    fine: &'static [i32],
}

impl Change {
    fn new(what: String, request: Request) -> Self {
        Self { what, request, fine: &[] }
    }

    /// It is fine when one of these says that it is so already.
    pub(crate) fn unless(self, fine: &'static [i32]) -> Self {
        Self { fine, ..self }
    }
}

impl Kernel {
    pub(crate) fn open() -> Result<Self, KernelError> {
        Ok(Self { connection: Connection::open(Protocol::Route)? })
    }

    /// All changes in one go. The first that fails is told; those after it have been made.
    pub(crate) fn apply(&mut self, changes: Vec<Change>) -> Result<(), KernelError> {
        let (words, requests): (Vec<_>, Vec<_>) =
            changes.into_iter().map(|change| ((change.what, change.fine), change.request)).unzip();
        let mut refused = None;
        self.connection.apply(requests, |at, error| {
            let (what, fine) = &words[at];
            if refused.is_none() && !fine.contains(&error.errno) {
                refused = Some(KernelError::Refused { what: what.clone(), error });
            }
        })?;
        refused.map_or(Ok(()), Err)
    }
}

impl KernelError {
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { error, .. } => Some(error.errno),
            Self::Io(error) => error.raw_os_error(),
        }
    }
}

impl From<KernelError> for crate::protocol::Error {
    fn from(error: KernelError) -> Self {
        Self::internal(error)
    }
}
