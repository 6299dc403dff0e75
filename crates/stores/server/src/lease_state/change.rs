//! Commits, and their text: one line of JSON each.

use flannel_lease::{LeaseAttrs, NetworkName, Subnet};
use flannel_store::Millis;
use serde::{Deserialize, Serialize};

/// Changes that happen together or not at all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    #[serde(rename = "r")]
    pub revision: u64,
    #[serde(rename = "t")]
    pub at: Millis,
    #[serde(rename = "c")]
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// A run of the server begins, after so many milliseconds by a clock that may have been set meanwhile.
    Start {
        history: u64,
        away: i64,
    },
    Clock,
    Config {
        #[serde(rename = "n")]
        network: NetworkName,
        text: Option<String>,
    },
    Put {
        #[serde(rename = "n")]
        network: NetworkName,
        #[serde(rename = "s")]
        subnet: Subnet,
        #[serde(rename = "a")]
        attrs: LeaseAttrs,
        #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
        expires: Option<Millis>,
        #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
        owner: Option<Box<str>>,
    },
    Gone {
        #[serde(rename = "n")]
        network: NetworkName,
        #[serde(rename = "s")]
        subnet: Subnet,
    },
}

impl Commit {
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Approximate bytes, in memory as on the disk.
    pub(crate) fn weight(&self) -> usize {
        const BASE_BYTES: usize = 160;
        let of = |change: &Change| match change {
            Change::Put { attrs, .. } => BASE_BYTES + attrs.weight(),
            Change::Config { text, .. } => BASE_BYTES + text.as_ref().map_or(0, String::len),
            Change::Gone { .. } | Change::Start { .. } | Change::Clock => BASE_BYTES,
        };
        self.changes.iter().map(of).sum()
    }

    pub fn from_json(text: &str) -> Result<Self, String> {
        let commit: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check_reach(commit.revision, commit.at)?;
        Ok(commit)
    }
}

/// Refuses revisions and times that leave no room to count on: this server never wrote them.
pub(crate) fn check_reach(revision: u64, time: Millis) -> Result<(), String> {
    const MAX: u64 = i64::MAX.cast_unsigned();
    if revision > MAX || time > MAX {
        return Err(format!("revision {revision} at {time} is out of reach"));
    }
    Ok(())
}
