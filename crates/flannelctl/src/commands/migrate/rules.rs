//! What there is of flannel's traffic rules beside what flannel-rs would want.

use flannel_traffic::{Outlook, Rules};

use super::{Findings, Verdict};

pub(super) fn look(findings: &mut Findings, wanted: Rules) {
    let what = match (wanted.masquerade, wanted.forward) {
        (true, true) => "masquerade and forward rules",
        (true, false) => "masquerade rules",
        _ => "forward rules",
    };
    let Outlook { kept_in, written, removed } = match flannel_traffic::outlook(wanted) {
        Ok(outlook) => outlook,
        Err(error) => return findings.add("rules", Verdict::NotKnown, error.to_string()),
    };
    match kept_in {
        Some(kind) if written.is_empty() => {
            let text = format!("the {what} in {kind} are kept as they are");
            findings.add("rules", Verdict::Stays, text);
        }
        Some(kind) => {
            let families: Vec<String> = written.iter().map(ToString::to_string).collect();
            let text = format!("the {what} for {} are written in {kind}", families.join(" and "));
            findings.add("rules", Verdict::Changes, text);
        }
        None => findings.add("rules", Verdict::Stays, "none are wanted"),
    }
    if !removed.is_empty() {
        let text = format!("what nobody wants any more is removed: {}", removed.join(", "));
        findings.add("rules", Verdict::Changes, text);
    }
}
