//! All that counts what it drops in this network namespace: read twice, it says who dropped packets between.

use std::collections::BTreeMap;
use std::fs;

use flannel_kernel::look::Kernel;
use flannel_state::DropCount;

use crate::firewall::{Drop, Rules};
use crate::queues::Queues;

#[derive(Clone, Debug, Default)]
pub struct DropCounters(BTreeMap<String, DropCount>);

impl DropCounters {
    pub fn read() -> Self {
        let mut found = Rules::read().counters();
        if let Ok(mut kernel) = Kernel::open() {
            found.extend(Queues::read(&mut kernel).counters());
        }
        let text = |name: &str| {
            fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
        };
        let counted = |Drop { rule, fix, packets }| exact(rule, fix, packets?);
        let mut all: Vec<DropCount> = found.into_iter().filter_map(counted).collect();
        all.extend(ipsec(&text("xfrm_stat")));
        all.extend(reverse_path(&text("netstat")));
        all.extend(connections(&text("stat/nf_conntrack")));
        all.extend(devices(&text("dev")));
        Self(all.into_iter().map(|counter| (counter.what.clone(), counter)).collect())
    }

    /// Counters that have grown, and by how much: rules before sums, and those that have dropped most first.
    pub fn grown_since(&self, before: &Self) -> Vec<DropCount> {
        let grown = |counter: &DropCount| {
            let was = before.0.get(&counter.what).map_or(0, |counter| counter.packets);
            let packets = counter.packets.checked_sub(was).filter(|grown| *grown > 0)?;
            Some(DropCount { packets, ..counter.clone() })
        };
        let mut all: Vec<DropCount> = self.0.values().filter_map(grown).collect();
        all.sort_by_key(|one| std::cmp::Reverse((one.is_exact, one.packets)));
        all
    }
}

fn exact(what: impl Into<String>, fix: impl Into<String>, packets: u64) -> Option<DropCount> {
    Some(DropCount { what: what.into(), fix: fix.into(), packets, is_exact: true })
}

/// `XfrmOutPolBlock  3`
fn ipsec(text: &str) -> Vec<DropCount> {
    let line = |line: &str| {
        let (name, count) = line.split_once(char::is_whitespace)?;
        name.starts_with("Xfrm").then_some(())?;
        exact(format!("IPsec ({name})"), "ip xfrm policy", count.trim().parse().ok()?)
    };
    text.lines().filter_map(line).collect()
}

/// One line of names, and one of numbers.
fn reverse_path(text: &str) -> Option<DropCount> {
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, numbers) = (lines.next()?.split(' '), lines.next()?.split(' '));
    let (_, count) = names.zip(numbers).find(|(name, _)| *name == "IPReversePathFilter")?;
    let fix = "ip route get the sender's address; or sysctl -w net.ipv4.conf.all.rp_filter=2";
    exact("rp_filter", fix, count.parse().ok()?)
}

/// A line of names, and one of hexadecimal numbers for each processor.
fn connections(text: &str) -> Option<DropCount> {
    let mut lines = text.lines();
    let at = lines.next()?.split_whitespace().position(|name| name == "drop")?;
    let count = |line: &str| u64::from_str_radix(line.split_whitespace().nth(at)?, 16).ok();
    let fix =
        "sysctl -w net.netfilter.nf_conntrack_max to more than net.netfilter.nf_conntrack_count";
    exact("the table of connections, which is full", fix, lines.filter_map(count).sum())
}

/// Reads `/proc/net/dev`.
fn devices(text: &str) -> Vec<DropCount> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, numbers)) = line.split_once(':') else { continue };
        let name = name.trim();
        let numbers: Vec<u64> =
            numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let at = |at: usize| numbers.get(at).copied().unwrap_or_default();
        for (what, packets) in [
            (format!("{name}, of what came in"), at(2) + at(3)),
            (format!("{name}, of what it sent"), at(10) + at(11)),
        ] {
            let fix = format!("ip -s -s link show {name} says why");
            found.push(DropCount { what, fix, packets, is_exact: false });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_dropped_between_two_readings_is_named_rules_before_devices() {
        let counters = |rule: u64, device: u64| {
            let mut all = DropCounters::default();
            let mut put = |what: &str, packets, is_exact| {
                let what = what.to_owned();
                let counter =
                    DropCount { what: what.clone(), fix: String::new(), packets, is_exact };
                all.0.insert(what, counter);
            };
            put("a rule", rule, true);
            put("eth0", device, false);
            all
        };
        let grown = counters(7, 30).grown_since(&counters(5, 10));
        let grown: Vec<(&str, u64)> =
            grown.iter().map(|one| (one.what.as_str(), one.packets)).collect();
        assert_eq!(grown, [("a rule", 2), ("eth0", 20)]);
        assert!(counters(1, 1).grown_since(&counters(1, 1)).is_empty());
        assert!(counters(1, 1).grown_since(&counters(9, 9)).is_empty(), "begun anew");
    }

    #[test]
    fn the_kernels_own_tables_are_read() {
        assert_eq!(ipsec("XfrmOutPolBlock 3\nother 4\n")[0].packets, 3);
        let netstat = "TcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 0 12\nIpExt: A\n";
        assert_eq!(reverse_path(netstat).map(|found| found.packets), Some(12));
        let tracked = "entries drop early_drop\n00000001 0000000a 0\n00000001 00000001 0\n";
        assert_eq!(connections(tracked).map(|found| found.packets), Some(11));
        let dev = "Inter-| Receive\n eth0: 100 2 1 2 0 0 0 0 50 1 0 4 0 0 0 0\n";
        let found = devices(dev);
        assert_eq!((found[0].packets, found[1].packets), (3, 4));
    }
}
