//! What is kept of every decision, and its text: one line of JSON per commit.

use flannel_store::Millis;
use std::sync::Arc;

use flannel_lease::{LeaseAttrs, NetworkName, Subnet};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Changes that happen together or not at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    pub revision: u64,
    pub at: Millis,
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A run of the server begins; it was away so many milliseconds, by a clock that may have been
    /// set meanwhile.
    Start {
        history: u64,
        away: i64,
    },
    /// Nothing happened, but it is later now.
    Clock,
    Config {
        network: NetworkName,
        text: Option<String>,
    },
    Put {
        network: NetworkName,
        subnet: Subnet,
        attrs: LeaseAttrs,
        expires: Option<Millis>,
        owner: Option<Arc<str>>,
    },
    Gone {
        network: NetworkName,
        subnet: Subnet,
    },
}

impl Commit {
    pub fn to_json(&self) -> serde_json::Result<String> {
        let changes = self.changes.iter().map(Stored::try_from).collect::<Result<_, _>>()?;
        serde_json::to_string(&StoredCommit { r: self.revision, t: self.at, c: changes })
    }

    /// About how many bytes it takes, in memory as on the disk.
    pub(crate) fn weight(&self) -> usize {
        const REST: usize = 160;
        let of = |change: &Change| match change {
            Change::Put { attrs, .. } => REST + attrs.weight(),
            Change::Config { text, .. } => REST + text.as_ref().map_or(0, String::len),
            Change::Gone { .. } | Change::Start { .. } | Change::Clock => REST,
        };
        self.changes.iter().map(of).sum()
    }

    pub fn from_json(text: &str) -> Result<Self, String> {
        let stored: StoredCommit = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check_reach(stored.r, stored.t)?;
        let changes = stored.c.into_iter().map(Change::try_from).collect::<Result<_, _>>()?;
        Ok(Self { revision: stored.r, at: stored.t, changes })
    }
}

/// Revisions and times are counted on from; one that leaves no room for that was never written by us.
pub(crate) fn check_reach(revision: u64, time: Millis) -> Result<(), String> {
    const FURTHEST: u64 = i64::MAX.cast_unsigned();
    if revision > FURTHEST || time > FURTHEST {
        return Err(format!("revision {revision} at {time} is out of reach"));
    }
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct StoredCommit {
    r: u64,
    t: Millis,
    c: Vec<Stored>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stored {
    Start {
        history: u64,
        away: i64,
    },
    Clock,
    Config {
        n: String,
        text: Option<String>,
    },
    Put {
        n: String,
        s: String,
        a: Box<RawValue>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        e: Option<Millis>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        o: Option<String>,
    },
    Gone {
        n: String,
        s: String,
    },
}

impl TryFrom<&Change> for Stored {
    type Error = serde_json::Error;

    fn try_from(change: &Change) -> serde_json::Result<Self> {
        Ok(match change {
            Change::Start { history, away } => Self::Start { history: *history, away: *away },
            Change::Clock => Self::Clock,
            Change::Config { network, text } => {
                Self::Config { n: network.to_string(), text: text.clone() }
            }
            Change::Put { network, subnet, attrs, expires, owner } => Self::Put {
                n: network.to_string(),
                s: subnet.to_string(),
                a: RawValue::from_string(attrs.to_json())?,
                e: *expires,
                o: owner.as_deref().map(str::to_owned),
            },
            Change::Gone { network, subnet } => {
                Self::Gone { n: network.to_string(), s: subnet.to_string() }
            }
        })
    }
}

impl TryFrom<Stored> for Change {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        let name = |text: String| text.parse::<NetworkName>().map_err(|error| error.to_string());
        let subnet = |text: String| text.parse::<Subnet>().map_err(|error| error.to_string());
        Ok(match stored {
            Stored::Start { history, away } => Self::Start { history, away },
            Stored::Clock => Self::Clock,
            Stored::Config { n, text } => Self::Config { network: name(n)?, text },
            Stored::Put { n, s, a, e, o } => Self::Put {
                network: name(n)?,
                subnet: subnet(s)?,
                attrs: LeaseAttrs::from_json(a.get().as_bytes()).map_err(|e| e.to_string())?,
                expires: e,
                owner: o.map(Arc::from),
            },
            Stored::Gone { n, s } => Self::Gone { network: name(n)?, subnet: subnet(s)? },
        })
    }
}
