//! Whether this node's clock can be believed: certificates and tokens are judged by it.

use super::finding::Finding;

const SUBJECT: &str = "clock";
/// No release of this program is older.
const NOT_BEFORE: i64 = 1_767_225_600;

pub(super) fn look() -> Vec<Finding> {
    let now = jiff::Timestamp::now().as_second();
    // SAFETY: a value of zeroes asks for nothing to be changed, and the kernel fills it in.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the value lives until the call has returned.
    let state = unsafe { libc::adjtimex(&raw mut clock) };
    judge(now, (state >= 0).then_some(clock.status & libc::STA_UNSYNC == 0)).into_iter().collect()
}

/// `kept`: whether somebody keeps the clock right; unknown where that is not told.
fn judge(now: i64, kept: Option<bool>) -> Option<Finding> {
    if now < NOT_BEFORE {
        return Some(Finding::broken(
            SUBJECT,
            format!(
                "the clock says {}",
                jiff::Timestamp::from_second(now)
                    .map_or_else(|_| now.to_string(), |at| at.to_string())
            ),
            "certificates are not valid yet by it: neither the lease server, nor etcd with TLS, nor Kubernetes can be asked",
            "timedatectl set-ntp true, or set it: date -s",
        ));
    }
    (kept == Some(false)).then(|| {
        Finding::note(
            SUBJECT,
            "nobody keeps the clock right (no NTP)",
            "it drifts; certificates and logs of several nodes are compared by it: timedatectl set-ntp true",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::finding::Severity;

    #[test]
    fn a_clock_that_was_never_set_is_broken_and_one_that_nobody_keeps_is_worth_knowing() {
        assert_eq!(judge(NOT_BEFORE + 1, Some(true)), None);
        assert_eq!(judge(NOT_BEFORE + 1, None), None);
        assert_eq!(judge(0, Some(true)).unwrap().severity, Severity::Broken);
        assert_eq!(judge(NOT_BEFORE + 1, Some(false)).unwrap().severity, Severity::Note);
    }
}
