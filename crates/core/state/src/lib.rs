//! State of a daemon: one schema, which `flanneld` writes and every tool reads.
//!
//! It is JSON, over HTTP on a Unix socket ([`SOCKET`]) that only root may use, and in part on the probe port:
//!
//! | request | what | probe port |
//! |---|---|---|
//! | `GET /v1/state` | a [`DaemonState`]: the node and its networks, without a line for each peer | yes, without [`NetworkState::config`] |
//! | `GET /v1/peers` | a [`PeerState`] a line, of every network | yes |
//! | `GET /v1/events` | a [`HistoryEvent`] a line, the oldest first; `?last=20` begins with the last 20, `?follow=1` goes on with what happens | yes, without `follow` |
//! | `GET /v1/entries` | an [`EntryState`] a line: all that is wanted; `?wrong=1`: only what is not there | no |
//! | `GET /metrics` | for Prometheus: docs/metrics.md | yes |
//! | `POST /v1/repair` | compares everything now, puts right what differs, a [`RepairState`] a line | no |
//!
//! docs/state.md tells people the same, field by field.
//!
//! Fields are added without notice, so a reader ignores those it does not know; [`SCHEMA`] is raised when one
//! goes or changes its meaning. Nothing here is secret, and names of nodes and reasons are text of others:
//! who shows them escapes them.

mod drop_count;
mod entry;
mod event;
mod finding;
mod network;
mod peer;
mod probe;

pub use drop_count::DropCount;
pub use entry::{EntryCondition, EntryState, RepairState, RepairedEntry};
pub use event::HistoryEvent;
pub use finding::{Finding, Layer, Severity};
pub use network::{
    EntriesState, LeaseState, NetworkState, PeerCounts, ProblemState, StoreState, UnderlayState,
    Verdict,
};
pub use peer::{PeerCondition, PeerState};
pub use probe::{ProbeState, ProbedPeer, ProbingState, counted};

use serde::{Deserialize, Serialize};

pub const SCHEMA: u32 = 1;

/// Default path of a daemon's socket, beside its subnet file.
pub const SOCKET: &str = "/run/flannel/flanneld.sock";

/// The name of the socket in the directory of the subnet file.
pub const SOCKET_NAME: &str = "flanneld.sock";

/// A moment, as RFC 3339 in UTC.
pub type Moment = String;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DaemonState {
    pub schema: u32,
    pub version: String,
    pub hostname: String,
    pub started: Moment,
    pub now: Moment,
    pub networks: Vec<NetworkState>,
}

impl DaemonState {
    pub fn is_healthy(&self) -> bool {
        !self.networks.is_empty() && self.networks.iter().all(NetworkState::is_healthy)
    }

    pub fn verdict(&self) -> Verdict {
        self.networks.iter().map(|network| network.verdict).max().unwrap_or(Verdict::NotReady)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_as_well_as_the_worst_of_its_networks() {
        let network = |verdict| NetworkState { verdict, ..NetworkState::starting("a") };
        let daemon = |verdicts: &[Verdict]| DaemonState {
            schema: SCHEMA,
            version: String::new(),
            hostname: String::new(),
            started: String::new(),
            now: String::new(),
            networks: verdicts.iter().map(|verdict| network(*verdict)).collect(),
        };
        assert_eq!(daemon(&[Verdict::Ready, Verdict::CutOff]).verdict(), Verdict::CutOff);
        assert_eq!(daemon(&[Verdict::Ready, Verdict::ReadyBut]).verdict(), Verdict::ReadyBut);
        assert_eq!(daemon(&[]).verdict(), Verdict::NotReady, "there is nothing yet");
    }

    /// A newer daemon may say more.
    #[test]
    fn what_a_reader_does_not_know_is_passed_over() {
        let mut said =
            serde_json::to_value(NetworkState::starting("blue")).expect("it is plain data");
        said["tomorrow"] = serde_json::json!({"more": 1});
        let read: NetworkState = serde_json::from_value(said).expect("the rest is known");
        assert_eq!(read, NetworkState::starting("blue"));
    }
}
