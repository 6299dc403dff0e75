//! Desired state of some part of the world (the kernel, a tunnel, a cloud's route table, …), and the appliers that
//! keep it so.
//!
//! [`Wanted`] is the bookkeeping that every applier needs: who wants which entry, what differs, what is retried and
//! when. An [`Applier`] keeps one part of the world equal to what is wanted of it, and reports on that by a
//! [`Status`]. Nothing in here knows what a lease or a kernel is.

#![forbid(unsafe_code)]

mod applier;
mod entries;
mod requesters;
mod slots;
mod status;
mod tally;
mod wanted;
mod worker_handle;

pub use applier::{Applier, Desired, Requester, Stopped};
pub use entries::{Comparison, EntryQuery, EntryReport, Requesters};
#[cfg(any(test, feature = "test-util"))]
pub use slots::WALKED;
pub use status::{FailureKind, Problem, Status};
pub use tally::{KindTally, Tally};
pub use wanted::{Batch, Importance, KeyedEntry, Repair, Wanted};
pub use worker_handle::{COMMAND_QUEUE, Command, Report, StatusPublisher, WorkerHandle};
