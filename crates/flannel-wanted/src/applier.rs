//! What keeps one part of the world as it is wanted.

use tokio::sync::watch;

use crate::{Comparison, EntryQuery, EntryReport, KeyedEntry, Status, Tally};

/// Who wants entries: a lease, or the node itself. If two want one entry in different versions, the
/// lower one in order gets its version.
pub trait Requester: Ord + Clone + Send + 'static {}
impl<T: Ord + Clone + Send + 'static> Requester for T {}

/// What each of several wants. It takes the place of all that those have wanted before.
pub type Desired<S, E> = Vec<(S, Vec<E>)>;

/// Keeps its part of the world equal to what is wanted of it: it writes what differs, tries again what
/// fails, puts right what others have changed. A handle: what does the work lives in a thread or task of
/// its own and ends when the last handle is dropped.
pub trait Applier<S: Requester>: Clone {
    type Entry: KeyedEntry;
    /// What marks an entry that nobody wants any more as ours, so that it is removed.
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

    /// How it stands when all that was declared before has been tried.
    fn status(&self) -> impl Future<Output = Result<Status, Stopped>> + Send;

    /// How it stands, and every change of that. It closes when the applier has ended.
    fn watch_status(&self) -> watch::Receiver<Status>;

    /// How single entries fare.
    fn entries(
        &self,
        query: EntryQuery<S>,
    ) -> impl Future<Output = Result<Vec<EntryReport<S>>, Stopped>> + Send;

    /// How many entries fare how.
    fn tally(&self) -> impl Future<Output = Result<Tally<S>, Stopped>> + Send;

    /// Compares everything with what is wanted now, whatever is believed of it, tries at once what waits for its
    /// time, and says what was found and what became of it.
    fn compare(&self) -> impl Future<Output = Result<Comparison, Stopped>> + Send;

    /// The daemon ends: does what is to be done then, and returns when it is done. Whatever keeps pods
    /// connected is left in place.
    fn stop(&self) -> impl Future<Output = ()> + Send;
}

/// The applier is gone, and with it whoever could keep things as they are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} has stopped")]
pub struct Stopped(pub &'static str);
