//! What the handles of all appliers with a [`Worker`] have in common.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use flannel_common::{Worker, send_if_changed};
use tokio::sync::{oneshot, watch};

use crate::{
    Comparison, Desired, EntryQuery, EntryReport, KeyedEntry, Status, Stopped, Tally, Wanted,
};

/// Number of commands that wait for a worker; further senders wait for room in the queue.
pub const COMMAND_QUEUE: usize = 256;

/// A command for the worker of an applier. Declarations are answered with the status; `Q` is its own command.
pub enum Command<S, E, O, Q = Infallible> {
    Replace(O, Desired<S, E>, oneshot::Sender<Status>),
    Update(Desired<S, E>, oneshot::Sender<Status>),
    Status(oneshot::Sender<Status>),
    Report(Report<S>),
    Compare(oneshot::Sender<Comparison>),
    Other(Q),
}

pub enum Report<S> {
    Entries(EntryQuery<S>, oneshot::Sender<Vec<EntryReport<S>>>),
    Tally(oneshot::Sender<Tally<S>>),
}

impl<S: Ord + Clone> Report<S> {
    /// Answers the question. `complete_tally` adds what only the applier knows.
    pub fn answer<E: KeyedEntry>(
        self,
        wanted: &Wanted<S, E>,
        complete_tally: impl FnOnce(Tally<S>) -> Tally<S>,
    ) {
        match self {
            Self::Entries(query, answer) => {
                let _ = answer.send(wanted.report(&query, Instant::now()));
            }
            Self::Tally(answer) => drop(answer.send(complete_tally(wanted.tally()))),
        }
    }
}

type WorkerOf<S, E, O, Q> = Worker<Command<S, E, O, Q>>;
type Start<S, E, O, Q> = dyn FnOnce(StatusPublisher) -> io::Result<WorkerOf<S, E, O, Q>> + Send;

/// A handle on an applier's worker, which is started at once or with the first wish.
pub struct WorkerHandle<S, E, O, Q = Infallible> {
    name: &'static str,
    worker: Arc<Mutex<Stage<S, E, O, Q>>>,
    pub(crate) status: watch::Receiver<Status>,
}

enum Stage<S, E, O, Q> {
    Waiting(StatusPublisher, Box<Start<S, E, O, Q>>),
    Started(WorkerOf<S, E, O, Q>),
    Failed,
}

impl<S, E, O, Q> Clone for WorkerHandle<S, E, O, Q> {
    fn clone(&self) -> Self {
        Self { name: self.name, worker: self.worker.clone(), status: self.status.clone() }
    }
}

impl<S, E, O, Q> WorkerHandle<S, E, O, Q>
where
    Command<S, E, O, Q>: Send + 'static,
{
    /// Handle of an applier that few networks need: its worker is started with the first wish. Errors call it `name`.
    pub fn lazy(
        name: &'static str,
        start: impl FnOnce(StatusPublisher) -> io::Result<WorkerOf<S, E, O, Q>> + Send + 'static,
    ) -> Self {
        let (publisher, status) = watch::channel(Status::default());
        let waiting = Stage::Waiting(StatusPublisher(publisher), Box::new(start));
        Self { name, worker: Arc::new(Mutex::new(waiting)), status }
    }

    /// Handle of an applier that every network needs: its worker is started at once.
    pub fn start(
        name: &'static str,
        start: impl FnOnce(StatusPublisher) -> io::Result<WorkerOf<S, E, O, Q>>,
    ) -> io::Result<Self> {
        let (publisher, status) = watch::channel(Status::default());
        let started = Stage::Started(start(StatusPublisher(publisher))?);
        Ok(Self { name, worker: Arc::new(Mutex::new(started)), status })
    }

    /// Sends a command and waits for its answer. A worker that has not been started answers with the default.
    pub async fn ask<T: Default>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command<S, E, O, Q>,
    ) -> Result<T, Stopped> {
        self.declare(false, command).await
    }

    /// Sends a command without waiting for its answer, if there is room in the queue.
    pub fn tell<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command<S, E, O, Q>) {
        if let Ok(Some(worker)) = self.worker(false) {
            let _ = worker.try_send(command(oneshot::channel().0));
        }
    }

    pub(crate) async fn declare<T: Default>(
        &self,
        start: bool,
        command: impl FnOnce(oneshot::Sender<T>) -> Command<S, E, O, Q>,
    ) -> Result<T, Stopped> {
        match self.worker(start)? {
            Some(worker) => worker.ask(command).await.map_err(|_| Stopped(self.name)),
            None => Ok(T::default()),
        }
    }

    /// Returns the worker, and starts it first if `start` says so; `None` if it has not been started.
    fn worker(&self, start: bool) -> Result<Option<WorkerOf<S, E, O, Q>>, Stopped> {
        let mut stage = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if start {
            *stage = match std::mem::replace(&mut *stage, Stage::Failed) {
                Stage::Waiting(status, start) => match start(status) {
                    Ok(worker) => Stage::Started(worker),
                    Err(error) => {
                        tracing::error!("Cannot start the {}: {error}", self.name);
                        Stage::Failed
                    }
                },
                started => started,
            };
        }
        match &*stage {
            Stage::Waiting(..) => Ok(None),
            Stage::Started(worker) => Ok(Some(worker.clone())),
            Stage::Failed => Err(Stopped(self.name)),
        }
    }
}

pub struct StatusPublisher(watch::Sender<Status>);

impl StatusPublisher {
    /// Publishes a status. An unchanged one wakes nobody.
    pub fn publish(&self, status: Status) {
        send_if_changed(&self.0, status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Applier;

    #[derive(Clone, PartialEq)]
    struct Wish(u8);

    impl KeyedEntry for Wish {
        type Key = u8;
        type Device = ();

        fn key(&self) -> u8 {
            self.0
        }

        fn devices(&self) -> impl Iterator<Item = ()> {
            std::iter::empty()
        }

        fn describe(&self) -> String {
            self.0.to_string()
        }

        fn kind(&self) -> &'static str {
            "wish"
        }
    }

    /// What is owned is whether something is left.
    #[derive(Clone)]
    struct Late(WorkerHandle<u8, Wish, bool>);

    impl Applier for Late {
        type Requester = u8;
        type Entry = Wish;
        type Ownership = bool;
        type Other = Infallible;

        fn handle(&self) -> &WorkerHandle<u8, Wish, bool> {
            &self.0
        }

        fn has_leftovers(&self, left: &bool) -> bool {
            *left
        }
    }

    /// Its worker ends at once, so that only one that is not started has answers.
    fn late(starts: io::Result<()>) -> Late {
        Late(WorkerHandle::lazy("late one", move |_| {
            starts.map(|()| Worker::start_task("late one", 1, |_| async {}))
        }))
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn who_wants_nothing_has_no_worker() {
        block_on(async {
            let nothing = || vec![(1, Vec::new())];
            let one = late(Ok(()));
            assert_eq!(one.replace(false, Vec::new()).await, Ok(Status::default()));
            assert_eq!(one.update(nothing()).await, Ok(Status::default()));
            assert_eq!(one.tally().await.map(|tally| tally.contested), Ok(0));
            one.stop().await;
            assert!(one.watch_status().has_changed().is_ok(), "its status may change yet");
            let stopped = Err(Stopped("late one"));
            assert_eq!(late(Ok(())).replace(true, nothing()).await, stopped, "something is left");
            assert_eq!(late(Ok(())).replace(false, vec![(1, vec![Wish(1)])]).await, stopped);
            assert_eq!(one.clone().update(vec![(1, vec![Wish(1)])]).await, stopped);
            assert_eq!(one.status().await, stopped, "one worker for all handles");
        });
    }

    #[test]
    fn a_worker_that_cannot_be_started_has_stopped_for_good() {
        let one = late(Err(io::Error::other("no thread")));
        let status = one.watch_status();
        let update = block_on(one.update(vec![(1, vec![Wish(1)])]));
        assert_eq!(update, Err(Stopped("late one")));
        assert_eq!(block_on(one.status()), Err(Stopped("late one")));
        assert!(status.has_changed().is_err(), "whoever watches is told");
    }
}
