//! Leases in a directory of this machine: durable, with nothing else installed.

mod acknowledged;
mod journal;
mod log_matches_snapshot;
mod node_requests;
mod recent;
mod record;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use flannel_common::Worker;
use flannel_lease::{LEASE_TTL, NetworkName};
use flannel_store::{KeptLease, Millis, Refusal, StoreError, split_owner};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use self::journal::{DirectoryContents, Journal, MIN_COMPACTION_BYTES};
use self::writer::{Job, Writer};
use crate::clock::{self, Clock};
use crate::lease_state::{Reply, Request};
use crate::metrics::LogFigures;
use crate::watch_log::WatchLogs;

pub use self::journal::OpenError;
pub use self::node_requests::{MemoryRequests, RequestsByNetwork};
pub use self::store::EmbeddedStore;

/// Most requests that wait for the disk; more are refused.
const MAX_WAITING_REQUESTS: usize = 16_384;

/// Reason why a request was not carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing was changed; the same request may succeed later.
    #[error("cannot write the lease store ({0}): nothing was changed; try again later")]
    ReadOnly(String),
    #[error("too many requests are waiting: try again later")]
    Busy,
    #[error("the lease store has stopped")]
    Stopped,
}

/// A refusal by a store behind the server stays one; everything else may be tried again.
impl From<StoreError> for AskError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Rejected { refusal, .. } => (*refusal).into(),
            StoreError::OutOfSubnets(error) => Refusal::OutOfSubnets(error).into(),
            StoreError::NotAssignedYet { reason, fix } => {
                Refusal::NotAssignedYet { reason, fix }.into()
            }
            StoreError::Taken { by, .. } => {
                let (attrs, owner) = split_owner(by.attrs);
                let expires = Some(clock::wall() + LEASE_TTL.as_millis() as Millis);
                Refusal::Taken(by.subnet, Box::new(KeptLease::new(attrs, expires, owner))).into()
            }
            other => Self::ReadOnly(other.to_string()),
        }
    }
}

/// How a data directory is opened.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedOptions {
    /// The choice of subnets and the name of this run come from it.
    pub seed: u64,
    /// Time by the machine's clock.
    pub wall: Millis,
    /// A shorter log is not compacted.
    pub min_compaction_bytes: u64,
}

impl EmbeddedOptions {
    pub fn new(seed: u64) -> Self {
        Self { seed, wall: clock::wall(), min_compaction_bytes: MIN_COMPACTION_BYTES }
    }
}

/// An open data directory. Clones share it.
#[derive(Clone, Debug)]
pub struct Embedded {
    writer: Worker<Job>,
    pub(crate) watch_logs: Arc<WatchLogs>,
    pub(crate) clock: Clock,
    pub(crate) log_figures: Arc<LogFigures>,
    /// Requests of operators to nodes.
    pub(crate) requests: RequestsByNetwork,
}

impl Embedded {
    /// Reads the directory, creating it if need be, and keeps it locked. From `seed` come the choice
    /// of subnets and the name of this run.
    pub fn open(dir: &Path, seed: u64) -> Result<Self, OpenError> {
        Self::open_with(dir, &EmbeddedOptions::new(seed))
    }

    /// The same at a time `wall` of the machine's clock, which is not read afterwards.
    pub fn open_at(dir: &Path, seed: u64, wall: Millis) -> Result<Self, OpenError> {
        Self::open_with(dir, &EmbeddedOptions { wall, ..EmbeddedOptions::new(seed) })
    }

    /// The same with other options.
    pub fn open_with(dir: &Path, options: &EmbeddedOptions) -> Result<Self, OpenError> {
        let EmbeddedOptions { seed, wall, min_compaction_bytes } = *options;
        let DirectoryContents { mut journal, mut lease_state, mut recent } = Journal::open(dir)?;
        journal.min_compaction_bytes = min_compaction_bytes;
        for (name, network) in &lease_state.networks {
            if let Some(fault) = network.config_fault() {
                tracing::error!(network = %name, "{}", Refusal::UnusableConfig(Box::new(fault.clone())));
            }
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = Clock::start(wall);
        let start = lease_state.start(rng.u64(1..), clock.now());
        journal.append(std::slice::from_ref(&start)).map_err(|source| OpenError::Io {
            attempted: "write to the data directory",
            path: dir.to_owned(),
            source,
        })?;
        lease_state.apply(&start);
        recent.push(start);
        let watch_logs = Arc::new(WatchLogs::default());
        watch_logs.reset(&lease_state, recent.floor(), recent.commits());
        let for_writer = watch_logs.clone();
        let log_figures = Arc::new(LogFigures::default());
        let writer = Writer {
            lease_state,
            journal,
            recent,
            watch_logs: for_writer,
            clock,
            rng,
            waiting: Vec::new(),
            asked_at: Instant::now(),
            noted_at: Instant::now(),
            failing: false,
            figures: log_figures.clone(),
        };
        writer.note_length();
        let writer = Worker::start("lease-store", MAX_WAITING_REQUESTS, move || writer);
        let writer = writer.map_err(|source| OpenError::Io {
            attempted: "start a thread for",
            path: dir.to_owned(),
            source,
        })?;
        Ok(Self { writer, watch_logs, clock, log_figures, requests: RequestsByNetwork::default() })
    }

    /// Carries out a request; when this returns, what it led to is durable.
    pub async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError> {
        let (reply, answer) = oneshot::channel();
        let job = Job { network: network.clone(), request, reply };
        self.writer.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => AskError::Busy,
            TrySendError::Closed(_) => AskError::Stopped,
        })?;
        answer.await.unwrap_or(Err(AskError::Stopped))
    }
}
