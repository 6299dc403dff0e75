//! A counter of packets that something on a node has dropped.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DropCount {
    pub what: String,
    pub fix: String,
    pub packets: u64,
    /// It is a rule, a queue or a policy, and not a sum of many reasons.
    #[serde(default)]
    pub is_exact: bool,
}
