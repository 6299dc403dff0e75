//! Leases in a directory of this machine: durable, with nothing else installed.

mod acknowledged;
mod board;
mod fit;
mod journal;
#[cfg(test)]
mod lost;
mod recent;
mod record;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unusable;
mod writer;

use flannel_store::{Millis, Refusal};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender, TrySendError};

use flannel_lease::NetworkName;
use tokio::sync::oneshot;

use self::journal::{Journal, Opened};
use self::writer::{Job, Writer};
use crate::clock::{self, Clock};
use crate::lease_state::{Reply, Request};
use crate::metrics::LogFigures;
use crate::watch_log::WatchLogs;

pub use self::board::RequestBoard;
pub use self::journal::OpenError;
pub use self::store::EmbeddedStore;

/// Requests waiting for the disk; more are turned away.
const QUEUE: usize = 16_384;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing was changed; the same request may succeed later.
    #[error("the lease store cannot be written ({0}): nothing was changed; try again later")]
    ReadOnly(String),
    #[error("too many requests are waiting: try again later")]
    Busy,
    #[error("the lease store has stopped")]
    Stopped,
}

/// An open data directory. Clones share it.
#[derive(Clone, Debug)]
pub struct Embedded {
    jobs: SyncSender<Job>,
    watch_logs: Arc<WatchLogs>,
    clock: Clock,
    log_figures: Arc<LogFigures>,
    board: RequestBoard,
}

impl Embedded {
    /// Reads the directory, creating it if need be, and keeps it locked. From `seed` come the choice
    /// of subnets and the name of this run.
    pub fn open(dir: &Path, seed: u64) -> Result<Self, OpenError> {
        Self::open_at(dir, seed, clock::wall())
    }

    /// The same, where the machine's clock says `wall` now. From then on it is not looked at.
    pub fn open_at(dir: &Path, seed: u64, wall: Millis) -> Result<Self, OpenError> {
        let Opened { mut journal, mut lease_state, mut recent } = Journal::open(dir)?;
        for (name, network) in lease_state.networks() {
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
        let (jobs, queue) = mpsc::sync_channel(QUEUE);
        let for_writer = watch_logs.clone();
        let log_figures = Arc::new(LogFigures::default());
        let writer = Writer {
            lease_state,
            journal,
            recent,
            watch_logs: for_writer,
            clock,
            rng,
            failing: false,
            figures: log_figures.clone(),
        };
        writer.note_length();
        let thread = std::thread::Builder::new().name("lease-store".to_owned());
        thread.spawn(move || writer.run(&queue)).map_err(|source| OpenError::Io {
            attempted: "start a thread for",
            path: dir.to_owned(),
            source,
        })?;
        Ok(Self { jobs, watch_logs, clock, log_figures, board: RequestBoard::default() })
    }

    /// How it goes with the log.
    pub fn log_figures(&self) -> &LogFigures {
        &self.log_figures
    }

    /// What operators ask of nodes.
    pub(crate) fn board(&self) -> &RequestBoard {
        &self.board
    }

    /// The time by which leases end.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    pub fn watch_logs(&self) -> &Arc<WatchLogs> {
        &self.watch_logs
    }

    /// Carries out a request; when this returns, what it led to is durable.
    pub async fn ask(&self, network: &NetworkName, request: Request) -> Result<Reply, AskError> {
        let (reply, answer) = oneshot::channel();
        let job = Job { network: network.clone(), request, reply };
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => AskError::Busy,
            TrySendError::Disconnected(_) => AskError::Stopped,
        })?;
        answer.await.unwrap_or(Err(AskError::Stopped))
    }
}
