//! What there is of flannel's traffic rules beside what flannel-rs would want.

use flannel_common::Family;
use flannel_entries::rules::{NodeRules, RulesKey};
use flannel_traffic::{DryRun, dry_run};

use super::Findings;
use super::MigrationVerdict::{Changes, NotKnown, Stays};

pub(super) fn look(findings: &mut Findings, wanted: &NodeRules) {
    let what = match (wanted.masquerade, wanted.forward) {
        (true, true) => "masquerade and forward rules",
        (true, false) => "masquerade rules",
        _ => "forward rules",
    };
    let DryRun { kept_in, written, removed } = match dry_run(&wanted.entries()) {
        Ok(dry_run) => dry_run,
        Err(error) => return findings.add("rules", NotKnown, error.to_string()),
    };
    let with_guards = families(&written, |_| true);
    let written = families(&written, |key| !key.purpose.is_guard());
    if with_guards != written {
        let text = "rules that drop pods' packets to the tunnel between nodes are added";
        findings.add("rules", Changes, text);
    }
    match kept_in {
        Some(kind) if written.is_empty() => {
            let text = format!("the {what} in {kind} are kept as they are");
            findings.add("rules", Stays, text);
        }
        Some(kind) => {
            let families: Vec<String> = written.iter().map(ToString::to_string).collect();
            let text = format!("the {what} for {} are written in {kind}", families.join(" and "));
            findings.add("rules", Changes, text);
        }
        None => findings.add("rules", Stays, "none are wanted"),
    }
    if !removed.is_empty() {
        let text = format!("what nobody wants any more is removed: {}", removed.join(", "));
        findings.add("rules", Changes, text);
    }
}

fn families(written: &[RulesKey], are_meant: impl Fn(&RulesKey) -> bool) -> Vec<Family> {
    let mut families: Vec<Family> =
        written.iter().filter(|key| are_meant(key)).map(|key| key.family).collect();
    families.dedup();
    families
}
