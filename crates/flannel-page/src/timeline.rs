//! What happened, on all nodes: the newest first, and what several tell of the same moment told once.

use flannel_state::HistoryEvent;
use jiff::Timestamp;

use crate::picture::{Node, Picture};

/// So many lines are shown.
const SHOWN: usize = 60;
/// What is told of within this is of one moment.
const MOMENT: i64 = 5_000;

/// The kind of event by which a node tells that an operator asked it for something. Every diagnosis leaves one on every
/// node: they would crowd out what happened, so only the node's own page has them.
const REQUEST: &str = "request";

#[derive(Debug, PartialEq)]
pub(crate) struct Line<'a> {
    pub(crate) at: Timestamp,
    pub(crate) node: String,
    pub(crate) id: String,
    pub(crate) event: &'a HistoryEvent,
    /// How many other nodes tell the same.
    pub(crate) others: usize,
}

pub(crate) fn of_all(picture: &Picture) -> Vec<Line<'_>> {
    let mut told: Vec<(Timestamp, &Node, &HistoryEvent)> = picture
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
