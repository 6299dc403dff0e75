//! What there is of flannel's traffic rules beside what flannel-rs would want.

use flannel_common::Family;
use flannel_traffic::{Outlook, Rules, TrafficError, TunnelGuard, outlook};

use super::{Findings, Verdict};

pub(super) fn look(findings: &mut Findings, wanted: Rules) {
    let what = match (wanted.masquerade, wanted.forward) {
        (true, true) => "masquerade and forward rules",
        (true, false) => "masquerade rules",
        _ => "forward rules",
    };
    let both = outlook(wanted.clone()).and_then(|outlook| Ok((outlook, unguarded(wanted)?)));
    let (Outlook { kept_in, written: with_guards, removed }, written) = match both {
        Ok(both) => both,
        Err(error) => return findings.add("rules", Verdict::NotKnown, error.to_string()),
    };
    if with_guards != written {
        let text = "rules that drop pods' packets to the tunnel between nodes are added";
        findings.add("rules", Verdict::Changes, text);
    }
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

/// The families whose rules are written, guards of the tunnel aside.
fn unguarded(mut wanted: Rules) -> Result<Vec<Family>, TrafficError> {
    for rules in [&mut wanted.v4, &mut wanted.v6].into_iter().flatten() {
        rules.guard = TunnelGuard::none(rules.network);
    }
    Ok(outlook(wanted)?.written)
}
