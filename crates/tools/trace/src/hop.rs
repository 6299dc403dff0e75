//! One hop of a packet's way.

use flannel_state::{Finding, Layer, Severity};
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
#[serde(from = "HopRecord", into = "HopRecord")]
pub struct Hop {
    /// The name of the other node, if the hop is there.
    pub node: Option<String>,
    pub way: Way,
    pub hop: String,
    pub outcome: HopOutcome,
}

/// What becomes of a packet at a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopOutcome {
    /// It passes: what is right, in words.
    Good(String),
    /// Why it cannot be told from here.
    Unknown(String),
    /// It is lost there, or may be if the finding is but a warning.
    Found(Finding),
}

/// A hop as it is written in JSON. The layer of a finding is not told.
#[derive(Clone, Serialize, Deserialize)]
struct HopRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    way: Way,
    hop: String,
    condition: Condition,
    what: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    fix: String,
}

impl Hop {
    pub fn condition(&self) -> Condition {
        match &self.outcome {
            HopOutcome::Good(_) => Condition::Good,
            HopOutcome::Found(finding) if finding.severity == Severity::Broken => Condition::Wrong,
            HopOutcome::Unknown(_) | HopOutcome::Found(_) => Condition::Unknown,
        }
    }

    /// In words.
    pub fn what(&self) -> String {
        match &self.outcome {
            HopOutcome::Good(what) | HopOutcome::Unknown(what) => what.clone(),
            HopOutcome::Found(finding) if finding.severity == Severity::Broken => {
                finding.about.clone()
            }
            HopOutcome::Found(Finding { about, fix, .. }) => format!("{about}; to undo it: {fix}"),
        }
    }

    /// What to do where it is wrong; else empty.
    pub fn fix(&self) -> &str {
        match &self.outcome {
            HopOutcome::Found(finding) if finding.severity == Severity::Broken => &finding.fix,
            _ => "",
        }
    }
}

impl From<Hop> for HopRecord {
    fn from(hop: Hop) -> Self {
        let (condition, what, fix) = (hop.condition(), hop.what(), hop.fix().to_owned());
        Self { node: hop.node, way: hop.way, hop: hop.hop, condition, what, fix }
    }
}

impl From<HopRecord> for Hop {
    fn from(record: HopRecord) -> Self {
        let HopRecord { node, way, hop, condition, what, fix } = record;
        let outcome = match condition {
            Condition::Good => HopOutcome::Good(what),
            Condition::Unknown => HopOutcome::Unknown(what),
            Condition::Wrong => HopOutcome::Found(Finding::broken(Layer::Unknown, what, "", fix)),
        };
        Self { node, way, hop, outcome }
    }
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
        self.add(hop, HopOutcome::Good(what.into()));
    }

    pub fn unknown(&mut self, hop: &str, what: impl Into<String>) {
        self.add(hop, HopOutcome::Unknown(what.into()));
    }

    pub fn wrong(
        &mut self,
        hop: &str,
        layer: Layer,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.found(hop, Finding::broken(layer, what, "", fix));
    }

    pub fn found(&mut self, hop: &str, finding: Finding) {
        self.add(hop, HopOutcome::Found(finding));
    }

    fn add(&mut self, hop: &str, outcome: HopOutcome) {
        self.all.push(Hop { node: None, way: self.way, hop: hop.to_owned(), outcome });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_a_hop_has_the_same_fields_whatever_becomes_of_the_packet() {
        let mut hops = Hops::new(Way::There);
        hops.good("bridge", "cni0 is up");
        hops.wrong("pod", Layer::Pods, "it is gone", "look for it");
        hops.found("rules", Finding::warning(Layer::Firewall, "it may drop some", "", "delete it"));
        let json = serde_json::to_value(&hops.all).unwrap();
        let expected = serde_json::json!([
            {"way": "there", "hop": "bridge", "condition": "good", "what": "cni0 is up"},
            {"way": "there", "hop": "pod", "condition": "wrong", "what": "it is gone", "fix": "look for it"},
            {"way": "there", "hop": "rules", "condition": "unknown", "what": "it may drop some; to undo it: delete it"},
        ]);
        assert_eq!(json, expected);
        let read: Vec<Hop> = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), json);
    }
}
