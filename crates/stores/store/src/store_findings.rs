//! Nodes that get no packets, as the store itself knows, and their form on the wire of a lease server.

use std::collections::BTreeMap;

use flannel_common::shorten;
use flannel_lease::Subnet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most bytes of a node's name: those of a Node in Kubernetes.
const MAX_NAME_BYTES: usize = 253;
const MAX_REASON_BYTES: usize = 300;
/// Most findings of each kind that a lease server sends, and a client keeps.
const MAX_FINDINGS: usize = 100;

/// Nodes that get no packets, as a store that assigns subnets knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreFindings {
    pub conflicts: Vec<LeaseConflict>,
    /// Names of nodes whose announcement cannot be used, and why.
    pub unusable: BTreeMap<Box<str>, Box<str>>,
}

/// Nodes that were given one subnet: packets for it go to one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct LeaseConflict {
    pub subnet: Subnet,
    pub holder: Box<str>,
    pub others: Vec<Box<str>>,
}

impl StoreFindings {
    /// A line `{"findings":{…}}` with all there are.
    pub fn to_json(&self) -> String {
        let conflict = |it: &LeaseConflict| LeaseConflict {
            others: it.others.iter().take(MAX_FINDINGS).cloned().collect(),
            ..it.clone()
        };
        let conflicts = self.conflicts.iter().take(MAX_FINDINGS).map(conflict);
        let unusable = self.unusable.iter().take(MAX_FINDINGS);
        let findings = json!({
            "Conflicts": conflicts.collect::<Vec<_>>(),
            "Unusable": unusable.map(|(node, why)| json!({"Node": node, "Why": why})).collect::<Value>(),
        });
        format!("{{\"findings\":{findings}}}\n")
    }

    /// Reads such a line; `None` if it is about something else. Findings that cannot be read are left out.
    pub(crate) fn read(line: &str) -> Option<Self> {
        // Whole tables come the same way: they are not read twice.
        if !line.starts_with("{\"findings\":") {
            return None;
        }
        let line: Value = serde_json::from_str(line).ok()?;
        let list =
            |kind: &str| line["findings"][kind].as_array().into_iter().flatten().take(MAX_FINDINGS);
        let name = |text: &str| -> Box<str> { shorten(text, MAX_NAME_BYTES).into() };
        let conflict = |it: &Value| {
            let LeaseConflict { subnet, holder, others } = LeaseConflict::deserialize(it).ok()?;
            let others = others.iter().take(MAX_FINDINGS).map(|other| name(other)).collect();
            Some(LeaseConflict { subnet, holder: name(&holder), others })
        };
        let unusable = |it: &Value| -> Option<(Box<str>, Box<str>)> {
            Some((
                name(it["Node"].as_str()?),
                shorten(it["Why"].as_str()?, MAX_REASON_BYTES).into(),
            ))
        };
        Some(Self {
            conflicts: list("Conflicts").filter_map(conflict).collect(),
            unusable: list("Unusable").filter_map(unusable).collect(),
        })
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
        assert_eq!((read.conflicts.len(), read.unusable.len()), (MAX_FINDINGS, MAX_FINDINGS));
        assert!(read.unusable.values().all(|why| why.len() < MAX_REASON_BYTES + 50));
    }
}
