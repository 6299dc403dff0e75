//! The [`Applier`] trait: an applier keeps one part of the world as wanted.

use std::fmt::Display;

use tokio::sync::watch;

use crate::{
    Command, Comparison, EntryQuery, EntryReport, KeyedEntry, Report, Status, Tally, WorkerHandle,
};

/// A requester wants entries: it is a lease, or the node itself. If two requesters want different versions of one
/// entry, the lower one in order gets its version.
pub trait Requester: Ord + Clone + Display + Send + 'static {}
impl<T: Ord + Clone + Display + Send + 'static> Requester for T {}

/// The entries of several requesters. They replace everything those requesters wanted before.
pub type Desired<S, E> = Vec<(S, Vec<E>)>;

/// An applier keeps its part of the world equal to what is wanted of it: it writes what differs, retries what fails
/// and repairs what others have changed. It is a handle: the work is done by a thread or task that ends when the last
/// handle is dropped.
pub trait Applier: Sized + Sync {
    type Requester: Requester;
    type Entry: KeyedEntry;
    /// Decides whether an entry that nobody wants any more is ours, so that it is removed.
    type Ownership: Send + 'static;
    /// A command that only this applier knows.
    type Other: Send + 'static;

    fn handle(&self) -> &WorkerHandle<Self::Requester, Self::Entry, Self::Ownership, Self::Other>;

    /// Whether there is work even if nothing is wanted: something that an earlier daemon has left.
    fn has_leftovers(&self, _: &Self::Ownership) -> bool {
        false
    }

    /// Does what is left to do when the daemon ends. By default everything stays, so that pods stay connected.
    fn stop(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Declares all that is wanted. What is ours and nobody wants is removed.
    fn replace(
        &self,
        ownership: Self::Ownership,
        desired: Desired<Self::Requester, Self::Entry>,
    ) -> impl Future<Output = Result<Status, Stopped>> + Send {
        async move {
            let start = wants_anything(&desired) || self.has_leftovers(&ownership);
            let replace = |answer| Command::Replace(ownership, desired, answer);
            self.handle().declare(start, replace).await
        }
    }

    /// Declares what single requesters want; one without entries is forgotten.
    fn update(
        &self,
        changes: Desired<Self::Requester, Self::Entry>,
    ) -> impl Future<Output = Result<Status, Stopped>> + Send {
        let start = wants_anything(&changes);
        self.handle().declare(start, |answer| Command::Update(changes, answer))
    }

    /// The status after everything declared so far has been tried.
    fn status(&self) -> impl Future<Output = Result<Status, Stopped>> + Send {
        self.handle().ask(Command::Status)
    }

    /// The current status and every later one. It closes when the applier has ended.
    fn watch_status(&self) -> watch::Receiver<Status> {
        self.handle().status.clone()
    }

    fn entries(
        &self,
        query: EntryQuery<Self::Requester>,
    ) -> impl Future<Output = Result<Vec<EntryReport<Self::Requester>>, Stopped>> + Send {
        self.handle().ask(|answer| Command::Report(Report::Entries(query, answer)))
    }

    fn tally(&self) -> impl Future<Output = Result<Tally<Self::Requester>, Stopped>> + Send {
        self.handle().ask(|answer| Command::Report(Report::Tally(answer)))
    }

    /// Compares everything with what is wanted, whatever is believed of it, retries at once what waits for its
    /// turn, and reports what was found and what was done about it.
    fn compare(&self) -> impl Future<Output = Result<Comparison, Stopped>> + Send {
        self.handle().ask(Command::Compare)
    }
}

fn wants_anything<S, E>(wishes: &Desired<S, E>) -> bool {
    wishes.iter().any(|(_, entries)| !entries.is_empty())
}

/// Error of an applier that has ended: nothing keeps its part of the world as wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} has stopped")]
pub struct Stopped(pub &'static str);
