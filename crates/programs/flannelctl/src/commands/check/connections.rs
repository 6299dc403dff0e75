//! Whether the kernel still has room for connections: when it has none, packets of new ones are dropped.

use flannel_state::{Finding, Layer};
use flannel_trace::settings::{more_connections, tracked_connections};

const LAYER: Layer = Layer::Connections;

pub(super) fn look() -> Option<Finding> {
    let (count, most) = tracked_connections()?;
    judge(count, most)
}

fn judge(count: u64, most: u64) -> Option<Finding> {
    if most == 0 || count < most - most / 10 {
        return None;
    }
    let what = format!("the kernel tracks {count} connections, and has room for {most}");
    let why = "packets of new connections are dropped when there is no room, also between pods (`nf_conntrack: table \
               full` in the kernel's log)";
    let fix = more_connections(most);
    let judge = if count >= most { Finding::broken } else { Finding::warning };
    Some(judge(LAYER, what, why, fix))
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
