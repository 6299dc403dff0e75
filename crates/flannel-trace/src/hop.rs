//! One hop of a packet's way.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    Good,
    /// It cannot be told from here.
    Unknown,
    Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    There,
    Back,
    /// What daemons say of the other node.
    Peer,
    /// Real packets.
    Live,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// The name of the other node, if the hop is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub way: Way,
    pub hop: String,
    pub condition: Condition,
    pub what: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// The hops of one direction, as they are found.
pub struct Hops {
    way: Way,
    pub all: Vec<Hop>,
}

impl Hops {
    pub fn new(way: Way) -> Self {
        Self { way, all: Vec::new() }
    }

    pub fn good(&mut self, hop: &str, what: impl Into<String>) {
        self.add(hop, Condition::Good, what, "");
    }

    pub fn unknown(&mut self, hop: &str, what: impl Into<String>) {
        self.add(hop, Condition::Unknown, what, "");
    }

    pub fn wrong(&mut self, hop: &str, what: impl Into<String>, fix: impl Into<String>) {
        self.add(hop, Condition::Wrong, what, fix);
    }

    fn add(
        &mut self,
        hop: &str,
        condition: Condition,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let (hop, what, fix) = (hop.to_owned(), what.into(), fix.into());
        self.all.push(Hop { node: None, way: self.way, hop, condition, what, fix });
    }
}
