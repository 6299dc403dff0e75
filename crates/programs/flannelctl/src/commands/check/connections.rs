//! Whether the kernel still has room for connections: when it has none, packets of new ones are dropped.

use super::kernel::setting;
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Connections;

pub(super) fn look() -> Option<Finding> {
    let number = |name: &str| setting(&format!("net/netfilter/{name}"))?.parse::<u64>().ok();
    judge(number("nf_conntrack_count")?, number("nf_conntrack_max")?)
}

fn judge(count: u64, most: u64) -> Option<Finding> {
    let is_full = count >= most;
    // 0 means no limit.
    if most == 0 || count < most - most / 10 {
        return None;
    }
    let what = format!("the kernel tracks {count} connections, and has room for {most}");
    let why = "packets of new connections are dropped when there is no room, also between pods (`nf_conntrack: table \
               full` in the kernel's log)";
    let fix = format!("sysctl -w net.netfilter.nf_conntrack_max={}", most * 2);
    Some(match is_full {
        true => Finding::broken(LAYER, what, why, fix),
        false => Finding::warning(LAYER, what, why, fix),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flannel_state::Severity;

    #[test]
    fn a_table_that_is_full_or_nearly_so_is_said() {
        assert_eq!(judge(899, 1_000), None);
        assert_eq!(judge(5, 0), None, "there is no limit");
        assert_eq!(judge(950, 1_000).map(|found| found.severity), Some(Severity::Warning));
        let full = judge(1_000, 1_000).unwrap();
        assert_eq!(full.severity, Severity::Broken);
        assert_eq!(full.fix, "sysctl -w net.netfilter.nf_conntrack_max=2000");
    }
}
