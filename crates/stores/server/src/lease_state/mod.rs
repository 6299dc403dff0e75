//! The lease server's state machine: networks with their config, leases and reservations. No I/O and
//! no clock: a request and the time go in, a [`Commit`] comes out; what is durable is a sequence of
//! commits, and applying them in order gives the lease state again.

mod change;
mod choose;
mod decide;
mod network;
mod owner;
mod request;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use flannel_lease::{NetworkName, Subnet};
use flannel_store::{KeptLease, Millis};

pub(crate) use change::check_reach;
pub use change::{Change, Commit};
pub(crate) use decide::check_size;
pub use network::Network;
pub use owner::ClientMachine;
pub use request::{Addresses, Request, Who};

/// Shortest life of a lease after a restart or an import, in which its node can renew it.
pub const MIN_LIFE_AFTER_START: Duration = Duration::from_secs(600);
/// Most histories that are remembered, to tell a continuation from a fork.
pub(crate) const MAX_HISTORIES: usize = 64;

/// Result of a request that was granted.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Done,
    Lease(Subnet, KeptLease),
}

/// Revisions written by one run of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerRun {
    pub id: u64,
    pub since: u64,
}

#[derive(Clone, Debug, Default)]
pub struct LeaseState {
    pub revision: u64,
    /// Time of the last commit.
    pub time: Millis,
    pub(crate) histories: Vec<ServerRun>,
    pub(crate) networks: BTreeMap<NetworkName, Network>,
}

/// Former state that [`LeaseState::undo`] restores.
#[derive(Debug)]
pub struct Undo {
    revision: u64,
    time: Millis,
    networks: Vec<(NetworkName, Option<Network>)>,
    leases: Vec<(NetworkName, Subnet, Option<KeptLease>)>,
}

impl LeaseState {
    pub fn network(&self, name: &NetworkName) -> Option<&Network> {
        self.networks.get(name)
    }

    /// The first commit of a run of the server. Time stood still while nobody served: whatever the
    /// clock says now, a lease has as much left as it had, and enough to be renewed.
    pub fn start(&self, history: u64, now: Millis) -> Commit {
        let away = if self.revision == 0 { 0 } else { now.cast_signed() - self.time.cast_signed() };
        self.commit(now, vec![Change::Start { history, away }])
    }

    /// Applies a commit that [`Self::decide`], [`Self::start`] or [`Self::expire`] made of this state, or that was read
    /// from the log.
    pub fn apply(&mut self, commit: &Commit) -> Undo {
        let mut undo = Undo {
            revision: self.revision,
            time: self.time,
            networks: Vec::new(),
            leases: Vec::new(),
        };
        self.revision = commit.revision;
        self.time = commit.at;
        for change in &commit.changes {
            self.apply_change(change, commit, &mut undo);
        }
        undo
    }

    /// Takes the last commit back. The start of a run cannot be taken back.
    pub fn undo(&mut self, undo: Undo) {
        for (name, subnet, before) in undo.leases.into_iter().rev() {
            if let Some(network) = self.networks.get_mut(&name) {
                network.put(subnet, before);
            }
        }
        for (name, before) in undo.networks.into_iter().rev() {
            match before {
                Some(network) => self.networks.insert(name, network),
                None => self.networks.remove(&name),
            };
        }
        self.revision = undo.revision;
        self.time = undo.time;
    }

    /// Whether revision `cursor` of `history` is a part of this lease state's past, and not of a future that was lost.
    pub fn continues(histories: &[ServerRun], revision: u64, history: u64, cursor: u64) -> bool {
        let Some(at) = histories.iter().position(|known| known.id == history) else { return false };
        let end = histories.get(at + 1).map_or(revision, |next| next.since.saturating_sub(1));
        cursor <= end
    }

    fn commit(&self, now: Millis, changes: Vec<Change>) -> Commit {
        Commit { revision: self.revision + 1, at: now, changes }
    }

    fn apply_change(&mut self, change: &Change, commit: &Commit, undo: &mut Undo) {
        match change {
            Change::Start { history, away } => {
                self.histories.push(ServerRun { id: *history, since: commit.revision });
                let surplus = self.histories.len().saturating_sub(MAX_HISTORIES);
                self.histories.drain(..surplus);
                let least = commit.at + MIN_LIFE_AFTER_START.as_millis() as Millis;
                self.networks.values_mut().for_each(|network| network.shift(*away, least));
            }
            Change::Clock => {}
            Change::Config { network, text: Some(text) } => {
                let before = self.networks.get(network).cloned();
                undo.networks.push((network.clone(), before));
                self.networks.entry(network.clone()).or_default().set_config(text, commit.revision);
            }
            Change::Config { network, text: None } => {
                undo.networks.push((network.clone(), self.networks.remove(network)));
            }
            Change::Put { network, subnet, attrs, expires, owner } => {
                let version = commit.revision;
                let entry = KeptLease::new(attrs.clone(), *expires, owner.clone());
                let entry = KeptLease { version, ..entry };
                if let Some(known) = self.networks.get_mut(network) {
                    undo.leases.push((network.clone(), *subnet, known.put(*subnet, Some(entry))));
                }
            }
            Change::Gone { network, subnet } => {
                if let Some(known) = self.networks.get_mut(network) {
                    undo.leases.push((network.clone(), *subnet, known.put(*subnet, None)));
                }
            }
        }
    }
}
