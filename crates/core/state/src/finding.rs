//! A finding: something wrong or worth knowing, with cause and fix. All that judge make it, all that show show it.

use std::cmp::Reverse;
use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Thing it concerns, or the fault itself in a few words.
    pub about: String,
    pub layer: Layer,
    #[serde(rename = "why")]
    pub cause: String,
    /// Fix: what to type or to do; empty if there is nothing to do.
    pub fix: String,
    /// Daemons older than this field reported only what is broken.
    #[serde(default)]
    pub severity: Severity,
    #[serde(rename = "traffic")]
    pub traffic_flows: bool,
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing, nothing to do.
    Note,
    /// It may go wrong, or has and was repaired.
    Warning,
    /// Pods are cut off by it, or will be.
    #[default]
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    Arp,
    Bridge,
    Clock,
    Cni,
    Config,
    Connections,
    Daemon,
    Entries,
    Files,
    Firewall,
    Flags,
    Forwarding,
    Host,
    Ipsec,
    Kernel,
    Lease,
    Managers,
    Mtu,
    Neighbours,
    Nic,
    Offload,
    Others,
    Pods,
    Probe,
    Queues,
    Ranges,
    Reach,
    #[serde(rename = "rp_filter")]
    ReversePath,
    Store,
    Tunnel,
    Underlay,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Finding {
    pub fn broken(
        layer: Layer,
        about: impl Into<String>,
        cause: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (about, cause, fix) = (about.into(), cause.into(), fix.into());
        Self { about, layer, cause, fix, severity: Severity::Broken, traffic_flows: false }
    }

    pub fn warning(
        layer: Layer,
        about: impl Into<String>,
        cause: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let finding = Self::broken(layer, about, cause, fix);
        Self { severity: Severity::Warning, traffic_flows: true, ..finding }
    }

    pub fn note(layer: Layer, about: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { severity: Severity::Note, ..Self::warning(layer, about, cause, "") }
    }

    /// The same, where pods' packets pass for now.
    #[must_use]
    pub fn with_traffic(self) -> Self {
        Self { traffic_flows: true, ..self }
    }

    /// The worst first, and else as they come.
    pub fn sort(findings: &mut [Self]) {
        findings.sort_by_key(|finding| (Reverse(finding.severity), finding.traffic_flows));
    }
}

/// One sentence.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { about, cause, fix, .. } = self;
        let parts = [("", about), (": ", cause), ("; ", fix)];
        parts.iter().filter(|(_, text)| !text.is_empty()).try_for_each(|(separator, text)| {
            f.write_str(separator)?;
            f.write_str(text)
        })
    }
}

/// Name in JSON.
impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_sorted_by_severity_and_then_by_whether_traffic_flows() {
        let broken = Finding::broken(Layer::Host, "a", "b", "c");
        let away = Finding::broken(Layer::Store, "d", "e", "f").with_traffic();
        let (warning, note) =
            (Finding::warning(Layer::Mtu, "g", "h", "i"), Finding::note(Layer::Nic, "j", "k"));
        let mut findings = [note.clone(), warning.clone(), away.clone(), broken.clone()];
        Finding::sort(&mut findings);
        assert_eq!(findings, [broken, away, warning, note]);
    }

    #[test]
    fn a_finding_of_another_version_is_read() {
        let older = r#"{"about": "a", "layer": "lease", "why": "b", "fix": "c", "traffic": false}"#;
        let read: Finding = serde_json::from_str(older).expect("all that it must have is there");
        assert_eq!(read, Finding::broken(Layer::Lease, "a", "b", "c"));
        let newer = older.replace("lease", "wormhole");
        let read: Finding = serde_json::from_str(&newer).expect("layers may be added");
        assert_eq!(read.layer, Layer::Unknown);
        assert_eq!(Layer::ReversePath.to_string(), "rp_filter");
        assert_eq!(read.to_string(), "a: b; c");
    }
}
