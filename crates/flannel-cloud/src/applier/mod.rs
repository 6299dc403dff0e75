//! Keeps this node's routes in a cloud's table: the applier.
//!
//! A task, for it does nothing but wait for answers. A round has two parts: all tables that matter are looked
//! at, then what differs is written. What is declared meanwhile is heard at once and seen to in the next round.

mod steps;
mod task;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use flannel_wanted::{
    Applier, Comparison, Desired, EntryQuery, EntryReport, Requester, Status, Stopped, Tally,
};
use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::Instrument as _;

use crate::CloudEntry;
use crate::record::{self, OwnRoute};
use task::RouteTask;

const QUEUE: usize = 256;
const STOPPED: Stopped = Stopped("applier of cloud routes");

/// A handle. The task is started with the first wish: most networks have none.
pub struct CloudApplier<S> {
    jobs: Arc<Mutex<Option<mpsc::Sender<Job<S>>>>>,
    status: Arc<watch::Sender<Status>>,
    /// Where it is noted which routes are this node's.
    directory: Arc<Path>,
    seed: u64,
}

impl<S> Clone for CloudApplier<S> {
    fn clone(&self) -> Self {
        let Self { jobs, status, directory, seed } = self;
        Self {
            jobs: jobs.clone(),
            status: status.clone(),
            directory: directory.clone(),
            seed: *seed,
        }
    }
}

enum Job<S> {
    Replace(Vec<IpNet>, Desired<S, CloudEntry>, oneshot::Sender<Status>),
    Update(Desired<S, CloudEntry>, oneshot::Sender<Status>),
    Status(oneshot::Sender<Status>),
    Entries(EntryQuery<S>, oneshot::Sender<Vec<EntryReport<S>>>),
    Tally(oneshot::Sender<Tally<S>>),
    Compare(oneshot::Sender<Comparison>),
}

impl<S: Requester> CloudApplier<S> {
    pub fn new(seed: u64, directory: PathBuf) -> Self {
        let status = Arc::new(watch::Sender::new(Status::default()));
        Self { jobs: Arc::default(), status, directory: directory.into(), seed }
    }

    /// To the task, if it has been started or is to be.
    fn jobs(&self, start: bool) -> Option<mpsc::Sender<Job<S>>> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_none() && start {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let task = RouteTask::new(self.status.clone(), self.directory.clone(), self.seed);
            tokio::spawn(task.run(receiver).in_current_span());
            *jobs = Some(sender);
        }
        jobs.clone()
    }

    /// Without a task, and without need for one, nothing is wanted.
    async fn ask<T: Default>(
        &self,
        start: bool,
        job: impl FnOnce(oneshot::Sender<T>) -> Job<S>,
    ) -> Result<T, Stopped> {
        let Some(jobs) = self.jobs(start) else { return Ok(T::default()) };
        let (answer, receive) = oneshot::channel();
        jobs.send(job(answer)).await.map_err(|_| STOPPED)?;
        receive.await.map_err(|_| STOPPED)
    }
}

impl<S: Requester> Applier<S> for CloudApplier<S> {
    type Entry = CloudEntry;
    /// The networks, now and before: what leads to this node inside of them is ours.
    type Ownership = Vec<IpNet>;

    async fn replace(
        &self,
        networks: Vec<IpNet>,
        desired: Desired<S, CloudEntry>,
    ) -> Result<Status, Stopped> {
        let start = !desired.is_empty() || !left_behind(&self.directory, &networks).is_empty();
        self.ask(start, |answer| Job::Replace(networks, desired, answer)).await
    }

    async fn update(&self, changes: Desired<S, CloudEntry>) -> Result<Status, Stopped> {
        let any = changes.iter().any(|(_, entries)| !entries.is_empty());
        self.ask(any, |answer| Job::Update(changes, answer)).await
    }

    async fn status(&self) -> Result<Status, Stopped> {
        self.ask(false, Job::Status).await
    }

    async fn entries(&self, query: EntryQuery<S>) -> Result<Vec<EntryReport<S>>, Stopped> {
        self.ask(false, |answer| Job::Entries(query, answer)).await
    }

    async fn tally(&self) -> Result<Tally<S>, Stopped> {
        self.ask(false, Job::Tally).await
    }

    async fn compare(&self) -> Result<Comparison, Stopped> {
        self.ask(false, Job::Compare).await
    }

    fn watch_status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Routes stay: pods go on while the daemon is away.
    async fn stop(&self) {}
}

/// Routes that a daemon before this one has written.
fn left_behind(directory: &Path, networks: &[IpNet]) -> Vec<OwnRoute> {
    let mut own = record::recorded(directory);
    own.retain(|route| networks.iter().any(|network| network.contains(&route.destination)));
    own
}
