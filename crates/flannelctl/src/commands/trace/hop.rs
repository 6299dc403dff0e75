//! One hop of a packet's way.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Condition {
    Good,
    /// It cannot be told from here.
    Unknown,
    Wrong,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Hop {
    /// `there`, `back`, or `peer` for what is asked of the other node.
    pub(super) way: &'static str,
    pub(super) hop: &'static str,
    pub(super) condition: Condition,
    pub(super) what: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) fix: String,
}

/// The hops of one direction, as they are found.
pub(super) struct Hops {
    pub(super) way: &'static str,
    pub(super) all: Vec<Hop>,
}

impl Hops {
    pub(super) fn new(way: &'static str) -> Self {
        Self { way, all: Vec::new() }
    }

    pub(super) fn good(&mut self, hop: &'static str, what: impl Into<String>) {
        self.add(hop, Condition::Good, what, "");
    }

    pub(super) fn unknown(&mut self, hop: &'static str, what: impl Into<String>) {
        self.add(hop, Condition::Unknown, what, "");
    }

    pub(super) fn wrong(
        &mut self,
        hop: &'static str,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(hop, Condition::Wrong, what, fix);
    }

    fn add(
        &mut self,
        hop: &'static str,
        condition: Condition,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.all.push(Hop { way: self.way, hop, condition, what: what.into(), fix: fix.into() });
    }
}
