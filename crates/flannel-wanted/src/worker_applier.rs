//! Appliers whose work is done by a [`Worker`]: what their handles have in common.

use std::convert::Infallible;
use std::io;

use flannel_common::{Work, Worker};
use tokio::sync::{oneshot, watch};

use crate::{
    Applier, Comparison, Desired, EntryQuery, EntryReport, KeyedEntry, Requester, Status, Stopped,
    Tally,
};

/// What such an applier is told. A declaration is answered with the resulting status. `Q`: what only this applier is
/// asked.
pub enum Command<S, E, O, Q = Infallible> {
    Replace(O, Desired<S, E>, oneshot::Sender<Status>),
    Update(Desired<S, E>, oneshot::Sender<Status>),
    Status(oneshot::Sender<Status>),
    Entries(EntryQuery<S>, oneshot::Sender<Vec<EntryReport<S>>>),
    Tally(oneshot::Sender<Tally<S>>),
    Compare(oneshot::Sender<Comparison>),
    Other(Q),
}

/// A handle on the worker. The worker ends when the last one is dropped.
pub struct WorkerHandle<S, E, O, Q = Infallible> {
    name: &'static str,
    worker: Worker<Command<S, E, O, Q>>,
    status: watch::Receiver<Status>,
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
    /// `name` is what errors call it, `thread` what the system does; `queue` is how many commands wait for it
    /// before their senders wait for a place. `make` runs in the new thread.
    pub fn start<W: Work<Command = Command<S, E, O, Q>>>(
        name: &'static str,
        thread: &str,
        queue: usize,
        make: impl FnOnce(StatusPublisher) -> W + Send + 'static,
    ) -> io::Result<Self> {
        let (publisher, status) = watch::channel(Status::default());
        let worker = Worker::start(thread, queue, move || make(StatusPublisher(publisher)))?;
        Ok(Self { name, worker, status })
    }

    /// Sends a command that is answered.
    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command<S, E, O, Q>,
    ) -> Result<T, Stopped> {
        self.worker.ask(command).await.map_err(|_| Stopped(self.name))
    }

    /// Sends a command whose answer nobody waits for, if there is a place in the queue.
    pub fn tell<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command<S, E, O, Q>) {
        self.worker.try_send(command(oneshot::channel().0));
    }
}

/// Tells those who watch the status.
pub struct StatusPublisher(watch::Sender<Status>);

impl StatusPublisher {
    pub(crate) fn new(status: watch::Sender<Status>) -> Self {
        Self(status)
    }

    /// An unchanged status wakes nobody.
    pub fn publish(&self, status: Status) {
        self.0.send_if_modified(|old| {
            let changed = *old != status;
            *old = status;
            changed
        });
    }
}

/// An applier that is no more than a handle on its worker, and has nothing to do when the daemon ends: what it
/// keeps goes on by itself.
pub trait WorkerApplier: Clone + Sync {
    type Requester: Requester;
    type Entry: KeyedEntry + Send + 'static;
    type Ownership: Send + 'static;
    type Other: Send + 'static;

    fn handle(&self) -> &WorkerHandle<Self::Requester, Self::Entry, Self::Ownership, Self::Other>;
}

impl<T: WorkerApplier> Applier<T::Requester> for T {
    type Entry = T::Entry;
    type Ownership = T::Ownership;

    async fn replace(
        &self,
        ownership: T::Ownership,
        desired: Desired<T::Requester, T::Entry>,
    ) -> Result<Status, Stopped> {
        self.handle().ask(|answer| Command::Replace(ownership, desired, answer)).await
    }

    async fn update(&self, changes: Desired<T::Requester, T::Entry>) -> Result<Status, Stopped> {
        self.handle().ask(|answer| Command::Update(changes, answer)).await
    }

    async fn status(&self) -> Result<Status, Stopped> {
        self.handle().ask(Command::Status).await
    }

    fn watch_status(&self) -> watch::Receiver<Status> {
        self.handle().status.clone()
    }

    async fn entries(
        &self,
        query: EntryQuery<T::Requester>,
    ) -> Result<Vec<EntryReport<T::Requester>>, Stopped> {
        self.handle().ask(|answer| Command::Entries(query, answer)).await
    }

    async fn tally(&self) -> Result<Tally<T::Requester>, Stopped> {
        self.handle().ask(Command::Tally).await
    }

    async fn compare(&self) -> Result<Comparison, Stopped> {
        self.handle().ask(Command::Compare).await
    }

    async fn stop(&self) {}
}
