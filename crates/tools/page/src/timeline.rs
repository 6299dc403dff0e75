//! Events of all nodes: the newest first, and what several report of the same moment once.

use flannel_state::HistoryEvent;
use jiff::Timestamp;

use crate::picture::{NodeView, Picture};

const SHOWN: usize = 60;
/// Milliseconds within which events are of the same moment.
const MOMENT: i64 = 5_000;

/// Events of operators' requests: every diagnosis leaves one on every node, so only the node's own page has them.
const REQUEST: &str = "request";

#[derive(Debug, PartialEq)]
pub(crate) struct Line<'a> {
    pub(crate) at: Timestamp,
    pub(crate) node: String,
    pub(crate) id: String,
    pub(crate) event: &'a HistoryEvent,
    pub(crate) others: usize,
}

pub(crate) fn of_all(picture: &Picture) -> Vec<Line<'_>> {
    let mut told: Vec<(Timestamp, &NodeView, &HistoryEvent)> = picture
        .nodes
        .values()
        .flat_map(|node| node.events.iter().map(move |event| (node, event)))
        .filter(|(_, event)| event.kind != REQUEST)
        .filter_map(|(node, event)| Some((event.at.parse().ok()?, node, event)))
        .collect();
    told.sort_by(|(one, ..), (other, ..)| other.cmp(one));
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (at, node, event) in told {
        let same = lines
            .iter_mut()
            .rev()
            .take_while(|line| line.at.as_millisecond() - at.as_millisecond() <= MOMENT);
        let mut same =
            same.filter(|line| line.event.kind == event.kind && line.event.what == event.what);
        if let Some(line) = same.next() {
            line.others += 1;
            continue;
        }
        if lines.len() == SHOWN {
            break;
        }
        let id = node.lease.subnet.to_string();
        lines.push(Line { at, node: node.name(), id, event, others: 0 });
    }
    lines
}
