//! The applier: keeps this node's routes in a cloud's table.
//!
//! It is a task, for it does nothing but wait for answers. A round has two parts: all tables that matter are read,
//! then what differs is written. What is declared meanwhile is accepted at once and handled in the next round.

mod steps;
mod task;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flannel_common::Worker;
use flannel_entries::cloud::CloudEntry;
use flannel_wanted::{Applier, COMMAND_QUEUE, Command, Requester, WorkerHandle};
use ipnet::IpNet;

use crate::record::{self, OwnRoute};
use task::RouteTask;

type Handle<S> = WorkerHandle<S, CloudEntry, Vec<IpNet>>;
type Job<S> = Command<S, CloudEntry, Vec<IpNet>>;

#[derive(Clone)]
pub struct CloudApplier<S> {
    handle: Handle<S>,
    directory: Arc<Path>,
}

impl<S: Requester> CloudApplier<S> {
    pub fn new(seed: u64, directory: PathBuf) -> Self {
        let directory: Arc<Path> = directory.into();
        let of = directory.clone();
        let handle = WorkerHandle::lazy("applier of cloud routes", move |status| {
            let task = RouteTask::new(status, of, seed);
            Ok(Worker::start_task("cloud routes", COMMAND_QUEUE, |jobs| task.run(jobs)))
        });
        Self { handle, directory }
    }
}

/// Routes stay when the daemon ends: pods go on while it is away.
impl<S: Requester> Applier for CloudApplier<S> {
    type Requester = S;
    type Entry = CloudEntry;
    /// The networks, now and before: routes to this node inside of them are ours.
    type Ownership = Vec<IpNet>;
    type Other = std::convert::Infallible;

    fn handle(&self) -> &Handle<S> {
        &self.handle
    }

    fn has_leftovers(&self, networks: &Vec<IpNet>) -> bool {
        !left_behind(&self.directory, networks).is_empty()
    }
}

fn left_behind(directory: &Path, networks: &[IpNet]) -> Vec<OwnRoute> {
    let mut own = record::recorded(directory);
    own.retain(|route| networks.iter().any(|network| network.contains(&route.destination)));
    own
}
