//! Who reaches whom: a number for each pair of nodes, for the browser to colour.

use std::collections::HashMap;

use flannel_state::{PeerCondition, PeerState};

use crate::node_report::is_unreached;
use crate::picture::{NodeView, Picture, by_subnet};

/// Above this many nodes one node's view replaces the matrix: it would be unreadable, and asking all too much.
pub(crate) const MAX_MATRIX_NODES: usize = 64;

/// Values that are not a round trip in microseconds.
const SELF: i64 = -1;
const PROGRAMMED: i64 = -2;
const INCOMPLETE: i64 = -3;
const VANISHED: i64 = -4;
const UNUSABLE: i64 = -5;
const UNKNOWN: i64 = -6;
const UNREACHED: i64 = -7;

fn cell(seen: &PeerState) -> i64 {
    let latency = seen.probe.as_ref().and_then(|probe| probe.latency_micros);
    match seen.condition {
        _ if is_unreached(seen) => UNREACHED,
        PeerCondition::Incomplete => INCOMPLETE,
        PeerCondition::Vanished => VANISHED,
        PeerCondition::Unusable => UNUSABLE,
        PeerCondition::Programmed => {
            latency.and_then(|micros| i64::try_from(micros).ok()).unwrap_or(PROGRAMMED)
        }
    }
}

/// Values row by row, each in the order of the nodes; `None` where there are too many.
pub(crate) fn cells(picture: &Picture) -> Option<Vec<Vec<i64>>> {
    let nodes: Vec<&NodeView> = picture.nodes.values().collect();
    (nodes.len() <= MAX_MATRIX_NODES).then(|| {
        let row =
            |from: &&NodeView| nodes.iter().map(|to| pair(from, to, from.peers.as_ref())).collect();
        nodes.iter().map(row).collect()
    })
}

/// `peers`: those of the node `from`.
fn pair(from: &NodeView, to: &NodeView, peers: Option<&HashMap<String, PeerState>>) -> i64 {
    if from.lease.subnet == to.lease.subnet {
        return SELF;
    }
    let seen = |peers: &HashMap<String, PeerState>| {
        to.lease.subnet.nets().find_map(|net| peers.get(&net.to_string()).map(cell))
    };
    peers.and_then(seen).unwrap_or(UNKNOWN)
}

pub(crate) fn seen_by(
    picture: &Picture,
    from: &NodeView,
    peers: Vec<PeerState>,
) -> Vec<(String, i64)> {
    let peers = by_subnet(peers);
    let of = |to: &NodeView| (to.lease.subnet.to_string(), pair(from, to, Some(&peers)));
    picture.nodes.values().map(of).collect()
}
