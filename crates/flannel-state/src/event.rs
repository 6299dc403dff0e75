//! Something that happened.

use serde::{Deserialize, Serialize};

use crate::Moment;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEvent {
    /// Rises by one from event to event. A gap is what the bounded history has forgotten.
    pub number: u64,
    pub at: Moment,
    /// Of which network, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// What kind of event: `peer-announced`, `entry-restored`, `store-lost`. New kinds may come.
    pub kind: String,
    /// In words.
    pub what: String,
    /// Of what was restored: the process that had undone it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<String>,
    /// Of what was restored: how long it was not as wanted, in microseconds; the longest where it was several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_micros: Option<u64>,
    /// Of what was restored: how many entries, where they are told of together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
}
