//! Text of a snapshot: the lease state, and the last commits for watchers that come back. It is one record, so it is
//! complete or absent, with one line of JSON for the lease state as such, one commit per network and lease, an empty
//! line, and the last commits.

use std::collections::BTreeMap;
use std::path::Path;

use flannel_lease::NetworkName;
use flannel_store::KeptLease;
use serde::{Deserialize, Serialize};

use super::journal::OpenError;
use super::recent::RecentCommits;
use super::record::{self, Ending};
use crate::lease_state::{Change, Commit, LeaseState, Network, ServerRun, check_reach};

const FORMAT: u32 = 1;

#[derive(Default)]
pub(super) struct SnapshotContents {
    pub(super) lease_state: LeaseState,
    pub(super) recent: RecentCommits,
    /// Whether the log beside it has a first record that says where it begins.
    pub(super) log_is_marked: bool,
}

#[derive(Serialize, Deserialize)]
struct SnapshotHeader {
    format: u32,
    revision: u64,
    time: u64,
    histories: Vec<(u64, u64)>,
    floor: u64,
    #[serde(default)]
    log_is_marked: bool,
}

pub(super) fn write(
    lease_state: &LeaseState,
    recent: &RecentCommits,
) -> serde_json::Result<Vec<u8>> {
    let head = SnapshotHeader {
        format: FORMAT,
        revision: lease_state.revision,
        time: lease_state.time,
        histories: lease_state.histories.iter().map(|h| (h.id, h.since)).collect(),
        floor: recent.floor(),
        log_is_marked: true,
    };
    let mut text = serde_json::to_string(&head)?;
    text.push('\n');
    let mut line = |revision: u64, change: Change| {
        text += &Commit { revision, at: 0, changes: vec![change] }.to_json()?;
        text.push('\n');
        Ok::<_, serde_json::Error>(())
    };
    for (name, network) in &lease_state.networks {
        let config = network.config_text().map(str::to_owned);
        line(network.config_revision(), Change::Config { network: name.clone(), text: config })?;
        for (subnet, entry) in network.leases() {
            let KeptLease { attrs, expires, version, owner, since: _ } = entry.clone();
            let put = Change::Put { network: name.clone(), subnet: *subnet, attrs, expires, owner };
            line(version, put)?;
        }
    }
    text.push('\n');
    for commit in recent.commits() {
        text += &commit.to_json()?;
        text.push('\n');
    }
    Ok(record::encode(text.as_bytes()))
}

pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<SnapshotContents, OpenError> {
    let unreadable = |reason: String| OpenError::Unreadable { path: path.to_owned(), reason };
    let records = record::decode(bytes);
    let ([payload], Ending::Clean) = (&records.payloads[..], records.ending) else {
        return Err(OpenError::Damaged { path: path.to_owned(), at: records.end });
    };
    let text = std::str::from_utf8(payload).map_err(|error| unreadable(error.to_string()))?;
    let mut lines = text.lines();
    let head: SnapshotHeader = serde_json::from_str(lines.next().unwrap_or_default())
        .map_err(|error| unreadable(error.to_string()))?;
    if head.format != FORMAT {
        return Err(unreadable(format!("its format is {}, not {FORMAT}", head.format)));
    }
    check_reach(head.revision, head.time).map_err(unreadable)?;
    let mut networks: BTreeMap<NetworkName, Network> = BTreeMap::new();
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        let commit = Commit::from_json(line).map_err(unreadable)?;
        for change in commit.changes {
            match change {
                Change::Config { network, text } => {
                    let network = networks.entry(network).or_default();
                    if let Some(text) = text {
                        network.set_config(&text, commit.revision);
                    }
                }
                Change::Put { network, subnet, attrs, expires, owner } => {
                    let (version, since) = (commit.revision, None);
                    let entry = KeptLease { attrs, expires, version, owner, since };
                    networks.entry(network).or_default().put(subnet, Some(entry));
                }
                Change::Gone { .. } | Change::Start { .. } | Change::Clock => {}
            }
        }
    }
    let mut recent = RecentCommits::new(head.floor);
    for line in lines {
        recent.push(Commit::from_json(line).map_err(unreadable)?);
    }
    let SnapshotHeader { revision, time, histories, .. } = head;
    let histories = histories.into_iter().map(|(id, since)| ServerRun { id, since }).collect();
    let lease_state = LeaseState { revision, time, histories, networks };
    Ok(SnapshotContents { lease_state, recent, log_is_marked: head.log_is_marked })
}

pub(super) fn commits(path: &Path, payload: &[u8]) -> Result<Vec<Commit>, OpenError> {
    let unreadable = |reason: String| OpenError::Unreadable { path: path.to_owned(), reason };
    let text = std::str::from_utf8(payload).map_err(|error| unreadable(error.to_string()))?;
    text.lines().map(|line| Commit::from_json(line).map_err(unreadable)).collect()
}
