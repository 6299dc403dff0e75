//! The [`Applier`] trait: an applier keeps one part of the world as wanted.

use std::fmt::Display;

use tokio::sync::watch;

use crate::{Comparison, EntryQuery, EntryReport, KeyedEntry, Status, Tally};

/// A requester wants entries: it is a lease, or the node itself. If two requesters want different versions of one
/// entry, the lower one in order gets its version.
pub trait Requester: Ord + Clone + Display + Send + 'static {}
impl<T: Ord + Clone + Display + Send + 'static> Requester for T {}

/// The entries of several requesters. They replace everything those requesters wanted before.
pub type Desired<S, E> = Vec<(S, Vec<E>)>;

/// An applier keeps its part of the world equal to what is wanted of it: it writes what differs, retries what fails
/// and repairs what others have changed. It is a handle: the work is done by a thread or task that ends when the last
/// handle is dropped.
pub trait Applier<S: Requester>: Clone {
    type Entry: KeyedEntry;
    /// Decides whether an entry that nobody wants any more is ours, so that it is removed.
    type Ownership;

    /// Declares all that is wanted. What is ours and nobody wants is removed.
    fn replace(
        &self,
        ownership: Self::Ownership,
        desired: Desired<S, Self::Entry>,
    ) -> impl Future<Output = Result<Status, Stopped>> + Send;

    /// Declares what single requesters want; one without entries is forgotten.
    fn update(
        &self,
        changes: Desired<S, Self::Entry>,
    ) -> impl Future<Output = Result<Status, Stopped>> + Send;

    /// The status after everything declared so far has been tried.
    fn status(&self) -> impl Future<Output = Result<Status, Stopped>> + Send;

    /// The current status and every later one. It closes when the applier has ended.
    fn watch_status(&self) -> watch::Receiver<Status>;

    /// The state of single entries.
    fn entries(
        &self,
        query: EntryQuery<S>,
    ) -> impl Future<Output = Result<Vec<EntryReport<S>>, Stopped>> + Send;

    /// How many entries are in which state.
    fn tally(&self) -> impl Future<Output = Result<Tally<S>, Stopped>> + Send;

    /// Compares everything with what is wanted, whatever is believed of it, retries at once what waits for its
    /// turn, and reports what was found and what was done about it.
    fn compare(&self) -> impl Future<Output = Result<Comparison, Stopped>> + Send;

    /// Does what is left to do when the daemon ends, and returns when it is done. Whatever keeps pods connected is
    /// left in place.
    fn stop(&self) -> impl Future<Output = ()> + Send;
}

/// Error of an applier that has ended: nothing keeps its part of the world as wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} has stopped")]
pub struct Stopped(pub &'static str);
