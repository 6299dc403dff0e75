//! Rules and queues that may drop a packet.

use flannel_state::{Finding, Layer};

use crate::firewall::Drop;
use crate::firewall::guards::is_own;

/// Suspects that are worth naming, at most [`MAX_SUSPECTS`], those that have dropped most first.
pub(crate) fn some_of_many(mut perhaps: Vec<Drop>) -> Vec<Drop> {
    perhaps.retain(|drop| {
        let ours = is_own(&drop.rule);
        // What is marked is marked by those who mean to drop it, and most packets bear no mark.
        let by_mark = drop.rule.contains("--mark")
            && drop.packets == Some(0)
            && !asks_for_no_mark(&drop.rule);
        !ours && !by_mark
    });
    perhaps.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    perhaps.truncate(MAX_SUSPECTS);
    perhaps
}

const MAX_SUSPECTS: usize = 3;

/// Whether a rule is for packets without a mark. `rule`: in words of iptables.
fn asks_for_no_mark(rule: &str) -> bool {
    let zero = ["--mark 0x0 ", "--mark 0x0/", "--mark 0 "].iter().any(|it| rule.contains(it));
    zero && !rule.contains("! --mark")
}

/// A rule or queue that may drop some packets, with how many it has dropped.
pub(crate) fn may_drop(layer: Layer, drop: &Drop) -> Finding {
    let count = match drop.packets {
        Some(0) => "none so far".to_owned(),
        Some(count) => format!("{count} so far"),
        None => "it does not count how many".to_owned(),
    };
    Finding::warning(layer, format!("{} may drop some packets ({count})", drop.rule), "", &drop.fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_for_packets_without_a_mark_is_a_suspect_before_it_has_dropped_any() {
        let named = |rule: &str| {
            let rule = format!("the rule of iptables `FORWARD {rule} -j DROP`");
            !some_of_many(vec![Drop { rule, fix: String::new(), packets: Some(0) }]).is_empty()
        };
        assert!(named("-m mark --mark 0x0"));
        assert!(!named("-m mark --mark 0x4000"), "whoever marks packets means to drop them");
        assert!(!named("-m mark ! --mark 0x0"));
    }
}
