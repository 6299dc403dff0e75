//! One entry that is wanted of the kernel or of another applier.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryState {
    pub network: String,
    /// The peer it leads to; without one of both it is the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_subnet: Option<String>,
    /// Applier of the entry: `kernel`, `tunnel`, `commands`, `cloud`, `ipsec`, `traffic-rules`.
    pub applier: String,
    /// Kind of entry: `device`, `route`, `neighbour`, `fdb`. New kinds may come.
    pub kind: String,
    /// The entry as `ip` and `bridge` show it, where it is one of the kernel's.
    pub entry: String,
    pub state: EntryCondition,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryCondition {
    /// It was last seen as wanted.
    Programmed,
    /// It is to be written, now or after a pause.
    Missing,
    /// It could not be written, and is tried again.
    Refused,
    /// Another peer wants it otherwise, and goes before.
    Contested,
}

/// Result of comparing everything that one applier keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairState {
    pub network: String,
    /// Applier as in [`EntryState::applier`]; empty if the network has no applier yet.
    pub applier: String,
    /// Number of entries that were compared.
    pub wanted: usize,
    /// Number of those that were not as wanted.
    pub found: usize,
    /// The first of those, as they are now.
    #[serde(default)]
    pub entries: Vec<RepairedEntry>,
    /// Entries of flannel's that were no longer wanted and were removed.
    #[serde(default)]
    pub removed: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairedEntry {
    pub entry: String,
    pub state: EntryCondition,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
