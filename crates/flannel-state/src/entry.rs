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
    /// Who keeps it: `kernel`, `tunnel`, `commands`, `cloud`, `ipsec`.
    pub applier: String,
    /// What kind of entry: `device`, `route`, `neighbour`, `fdb`. New kinds may come.
    pub kind: String,
    /// As `ip` and `bridge` would show it, where it is one of the kernel's.
    pub entry: String,
    pub state: EntryCondition,
    /// Why it is not there.
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

/// What a comparison of everything that one applier keeps has found, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairState {
    pub network: String,
    /// As in [`EntryState::applier`], or `traffic-rules`; empty if the network has nobody to ask yet.
    pub applier: String,
    /// How many entries were compared.
    pub wanted: usize,
    /// How many of them were not as wanted.
    pub found: usize,
    /// The first of those, as they are now.
    #[serde(default)]
    pub entries: Vec<RepairedEntry>,
    /// What was flannel's, wanted by nobody, and was taken away.
    #[serde(default)]
    pub removed: Vec<String>,
    /// Why it could not be compared.
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
