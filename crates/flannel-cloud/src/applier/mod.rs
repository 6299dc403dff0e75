//! Keeps this node's routes in a cloud's table: the applier.
//!
//! A task, for it does nothing but wait for answers. A round has two parts: all tables that matter are looked
//! at, then what differs is written. What is declared meanwhile is heard at once and seen to in the next round.

mod steps;
mod task;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flannel_common::Worker;
use flannel_wanted::{Command, Requester, WorkerApplier, WorkerHandle};
use ipnet::IpNet;
use tracing::Instrument as _;

use crate::CloudEntry;
use crate::record::{self, OwnRoute};
use task::RouteTask;

const QUEUE: usize = 256;

type Handle<S> = WorkerHandle<S, CloudEntry, Vec<IpNet>>;
type Job<S> = Command<S, CloudEntry, Vec<IpNet>>;

/// A handle.
#[derive(Clone)]
pub struct CloudApplier<S> {
    handle: Handle<S>,
    /// Where it is noted which routes are this node's.
    directory: Arc<Path>,
}

impl<S: Requester> CloudApplier<S> {
    pub fn new(seed: u64, directory: PathBuf) -> Self {
        let directory: Arc<Path> = directory.into();
        let of = directory.clone();
        let handle = WorkerHandle::late("applier of cloud routes", move |status| {
            let (worker, jobs) = Worker::of_task(QUEUE);
            tokio::spawn(RouteTask::new(status, of, seed).run(jobs).in_current_span());
            Ok(worker)
        });
        Self { handle, directory }
    }
}

/// Routes stay when the daemon ends: pods go on while it is away.
impl<S: Requester> WorkerApplier for CloudApplier<S> {
    type Requester = S;
    type Entry = CloudEntry;
    /// The networks, now and before: what leads to this node inside of them is ours.
    type Ownership = Vec<IpNet>;
    type Other = std::convert::Infallible;

    fn handle(&self) -> &Handle<S> {
        &self.handle
    }

    fn has_leftovers(&self, networks: &Vec<IpNet>) -> bool {
        !left_behind(&self.directory, networks).is_empty()
    }
}

/// Routes that a daemon before this one has written.
fn left_behind(directory: &Path, networks: &[IpNet]) -> Vec<OwnRoute> {
    let mut own = record::recorded(directory);
    own.retain(|route| networks.iter().any(|network| network.contains(&route.destination)));
    own
}
