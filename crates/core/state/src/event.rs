//! Something that happened.

use serde::{Deserialize, Serialize};

use crate::Moment;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEvent {
    /// Rises by one from event to event. A gap is what the bounded history has forgotten.
    pub number: u64,
    pub at: Moment,
    /// Network, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Kind of event: `peer-announced`, `entry-restored`, `store-lost`. New kinds may come.
    pub kind: String,
    pub what: String,
    /// Process that had undone what was restored, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<String>,
    /// Time in microseconds for which what was restored was missing; the longest of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_micros: Option<u64>,
    /// Number of entries restored, where one event stands for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
}
