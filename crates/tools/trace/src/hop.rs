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
    /// What to do where it is wrong; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// What was found on this node; a warning is told as what is not known.
    #[serde(skip)]
    pub finding: Option<Finding>,
}

pub struct Hops {
    pub(crate) way: Way,
    pub all: Vec<Hop>,
}

impl Hops {
    pub fn new(way: Way) -> Self {
        Self { way, all: Vec::new() }
    }

    pub fn good(&mut self, hop: &str, what: impl Into<String>) {
        self.add(hop, Condition::Good, what.into());
    }

    pub fn unknown(&mut self, hop: &str, what: impl Into<String>) {
        self.add(hop, Condition::Unknown, what.into());
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
        let Finding { about, fix, severity, .. } = finding.clone();
        let (condition, what, fix) = match severity {
            Severity::Broken => (Condition::Wrong, about, fix),
            Severity::Warning | Severity::Note => {
                (Condition::Unknown, format!("{about}; to undo it: {fix}"), String::new())
            }
        };
        let (node, way, hop, finding) = (None, self.way, hop.to_owned(), Some(finding));
        self.all.push(Hop { node, way, hop, condition, what, fix, finding });
    }

    fn add(&mut self, hop: &str, condition: Condition, what: String) {
        let (node, way, hop, fix) = (None, self.way, hop.to_owned(), String::new());
        self.all.push(Hop { node, way, hop, condition, what, fix, finding: None });
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
