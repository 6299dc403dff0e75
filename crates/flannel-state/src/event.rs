//! Something that happened.

use serde::{Deserialize, Serialize};

use crate::Moment;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEvent {
    /// Rises by one from event to event. A gap is what the bounded history has forgotten.
    pub number: u64,
    pub at: Moment,
    /// Of which network, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// What kind of event: `peer-came`, `entry-restored`, `store-lost`. New kinds may come.
    pub kind: String,
    /// In words.
    pub what: String,
}
