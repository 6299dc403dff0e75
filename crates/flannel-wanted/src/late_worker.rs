//! Appliers that most networks want nothing of: their worker is started with the first wish.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use flannel_common::Worker;
use tokio::sync::{oneshot, watch};

use crate::{
    Command, Comparison, Desired, EntryQuery, EntryReport, Requester, Status, StatusPublisher,
    Stopped, Tally,
};

/// A handle on a worker that may not have been started; until then nothing is wanted of it.
pub struct LateWorker<S, E, O, Q = Infallible> {
    name: &'static str,
    worker: Arc<MaybeStarted<S, E, O, Q>>,
    status: watch::Sender<Status>,
    start: Arc<Start<S, E, O, Q>>,
}

type WorkerOf<S, E, O, Q> = Worker<Command<S, E, O, Q>>;
type MaybeStarted<S, E, O, Q> = Mutex<Option<WorkerOf<S, E, O, Q>>>;

type Start<S, E, O, Q> = dyn Fn(StatusPublisher) -> io::Result<WorkerOf<S, E, O, Q>> + Send + Sync;

impl<S, E, O, Q> Clone for LateWorker<S, E, O, Q> {
    fn clone(&self) -> Self {
        let Self { name, worker, status, start } = self;
        Self { name, worker: worker.clone(), status: status.clone(), start: start.clone() }
    }
}

impl<S: Requester, E: Send + 'static, O: Send + 'static, Q: Send + 'static> LateWorker<S, E, O, Q> {
    /// `name` is what errors call it.
    pub fn new(
        name: &'static str,
        start: impl Fn(StatusPublisher) -> io::Result<WorkerOf<S, E, O, Q>> + Send + Sync + 'static,
    ) -> Self {
        let (worker, status) = (Arc::default(), watch::Sender::new(Status::default()));
        Self { name, worker, status, start: Arc::new(start) }
    }

    /// `needed`: there is something to do even if nothing is wanted.
    pub async fn replace(
        &self,
        ownership: O,
        desired: Desired<S, E>,
        needed: bool,
    ) -> Result<Status, Stopped> {
        let start = needed || wants_anything(&desired);
        self.ask(start, |answer| Command::Replace(ownership, desired, answer)).await
    }

    pub async fn update(&self, changes: Desired<S, E>) -> Result<Status, Stopped> {
        let start = wants_anything(&changes);
        self.ask(start, |answer| Command::Update(changes, answer)).await
    }

    pub async fn status(&self) -> Result<Status, Stopped> {
        self.ask(false, Command::Status).await
    }

    pub async fn entries(&self, query: EntryQuery<S>) -> Result<Vec<EntryReport<S>>, Stopped> {
        self.ask(false, |answer| Command::Entries(query, answer)).await
    }

    pub async fn tally(&self) -> Result<Tally<S>, Stopped> {
        self.ask(false, Command::Tally).await
    }

    pub async fn compare(&self) -> Result<Comparison, Stopped> {
        self.ask(false, Command::Compare).await
    }

    pub fn watch_status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// What only this one is asked; `None` if it has not been started, or has ended.
    pub async fn other<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Q) -> Option<T> {
        let worker = self.worker(false).ok()??;
        worker.ask(|answer| Command::Other(question(answer))).await.ok()
    }

    pub fn is_started(&self) -> bool {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    async fn ask<T: Default>(
        &self,
        start: bool,
        command: impl FnOnce(oneshot::Sender<T>) -> Command<S, E, O, Q>,
    ) -> Result<T, Stopped> {
        match self.worker(start)? {
            Some(worker) => worker.ask(command).await.map_err(|_| Stopped(self.name)),
            None => Ok(T::default()),
        }
    }

    /// The worker, if it has been started or is to be.
    fn worker(&self, start: bool) -> Result<Option<WorkerOf<S, E, O, Q>>, Stopped> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() && start {
            let started = (self.start)(StatusPublisher::new(self.status.clone()));
            *worker = Some(started.map_err(|error| {
                tracing::error!("Cannot start the {}: {error}", self.name);
                Stopped(self.name)
            })?);
        }
        Ok(worker.clone())
    }
}

fn wants_anything<S, E>(wishes: &Desired<S, E>) -> bool {
    wishes.iter().any(|(_, entries)| !entries.is_empty())
}
