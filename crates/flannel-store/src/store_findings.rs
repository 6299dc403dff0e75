//! Nodes that get no packets, by what the store itself knows of them, and how a lease server tells its clients.

use std::collections::BTreeMap;

use flannel_common::shorten;
use flannel_lease::Subnet;
use serde::{Deserialize, Serialize};

/// The longest name of a node that is kept: that of a Node in Kubernetes.
const LONGEST_NAME: usize = 253;
const LONGEST_REASON: usize = 300;
/// How many findings of each kind a lease server tells, and a client keeps.
const MOST_KEPT: usize = 100;

/// What a store that assigns subnets knows of nodes that get no packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreFindings {
    pub conflicts: Vec<LeaseConflict>,
    /// Names of nodes whose announcement cannot be used, and why.
    pub unusable: BTreeMap<Box<str>, Box<str>>,
}

/// Nodes that were given one subnet: packets for it go to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConflict {
    pub subnet: Subnet,
    /// The node that gets packets.
    pub holder: Box<str>,
    /// The nodes that get nothing.
    pub others: Vec<Box<str>>,
}

#[derive(Serialize, Deserialize)]
struct WireLine {
    findings: WireFindings,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireFindings {
    conflicts: Vec<WireConflict>,
    unusable: Vec<WireNodeReason>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireConflict {
    subnet: String,
    holder: String,
    others: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireNodeReason {
    node: String,
    why: String,
}

impl StoreFindings {
    /// A line `{"findings":{…}}` with all there are.
    pub fn to_json(&self) -> String {
        let conflict = |it: &LeaseConflict| WireConflict {
            subnet: it.subnet.to_string(),
            holder: it.holder.to_string(),
            others: it.others.iter().take(MOST_KEPT).map(ToString::to_string).collect(),
        };
        let findings = WireFindings {
            conflicts: self.conflicts.iter().take(MOST_KEPT).map(conflict).collect(),
            unusable: (self.unusable.iter().take(MOST_KEPT))
                .map(|(node, why)| WireNodeReason { node: node.to_string(), why: why.to_string() })
                .collect(),
        };
        let line = serde_json::to_string(&WireLine { findings }).unwrap_or_default();
        format!("{line}\n")
    }

    /// Reads such a line; `None` if it is about something else. Conflicts that cannot be read are left out.
    pub(crate) fn read(line: &str) -> Option<Self> {
        // Whole tables come the same way: they are not read twice.
        if !line.starts_with("{\"findings\":") {
            return None;
        }
        let WireLine { findings } = serde_json::from_str(line).ok()?;
        let name = |text: &str| -> Box<str> { shorten(text, LONGEST_NAME).into() };
        let conflict = |it: WireConflict| {
            let others = it.others.iter().take(MOST_KEPT).map(|other| name(other)).collect();
            let subnet = it.subnet.parse().ok()?;
            Some(LeaseConflict { subnet, holder: name(&it.holder), others })
        };
        let unusable = |it: WireNodeReason| -> (Box<str>, Box<str>) {
            (name(&it.node), shorten(&it.why, LONGEST_REASON).into())
        };
        let conflicts = findings.conflicts.into_iter().take(MOST_KEPT).filter_map(conflict);
        let unusable = findings.unusable.into_iter().take(MOST_KEPT).map(unusable);
        Some(Self { conflicts: conflicts.collect(), unusable: unusable.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflict(number: usize) -> LeaseConflict {
        LeaseConflict {
            subnet: format!("10.{}.{}.0-24", number / 256, number % 256).parse().expect("a key"),
            holder: "a".into(),
            others: vec!["b".into(), "c".into()],
        }
    }

    #[test]
    fn findings_are_read_as_they_were_written() {
        let unusable = BTreeMap::from([("d".into(), "it has no podCIDR".into())]);
        let some = StoreFindings { conflicts: vec![conflict(1), conflict(2)], unusable };
        for findings in [some, StoreFindings::default()] {
            assert_eq!(StoreFindings::read(findings.to_json().trim_end()), Some(findings));
        }
        assert_eq!(StoreFindings::read("{\"requests\":[]}"), None);
    }

    #[test]
    fn findings_of_a_server_have_a_size() {
        let named = |number: usize| -> Box<str> { format!("node-{number}").into() };
        let long: Box<str> = "x".repeat(9_999).into();
        let many = StoreFindings {
            conflicts: (0..1_000).map(conflict).collect(),
            unusable: (0..1_000).map(|number| (named(number), long.clone())).collect(),
        };
        let read = StoreFindings::read(many.to_json().trim_end()).expect("a line of findings");
        assert_eq!((read.conflicts.len(), read.unusable.len()), (MOST_KEPT, MOST_KEPT));
        assert!(read.unusable.values().all(|why| why.len() < LONGEST_REASON + 50));
    }
}
