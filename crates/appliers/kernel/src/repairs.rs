//! Log lines about repairs: enough to find out who undoes our work, but never a flood.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flannel_common::Throttle;
use flannel_entries::kernel::Key;

/// Number of entries that are listed at once; more are only counted.
const MAX_LISTED: usize = 5;
/// Number of failures that are logged per minute; more are only counted.
const FAILURES_PER_MINUTE: u32 = 10;

#[derive(Default)]
pub(crate) struct RepairLog {
    /// Entries that were undone and are not seen restored yet, by whom and when.
    undone: BTreeMap<Key, (Option<String>, Instant)>,
    left_alone: BTreeMap<Key, Throttle>,
    failures: Failures,
    /// The last port that undid something, and its process: one process may undo thousands of entries.
    last: Option<(u32, Option<String>)>,
}

/// Limits failures in the log to the first of each minute.
#[derive(Default)]
struct Failures {
    minute: Throttle,
    told: u32,
}

impl Failures {
    /// If a failure may be logged: how many were suppressed in the minute before.
    fn may_tell(&mut self, now: Instant) -> Option<u32> {
        let Some(later) = self.minute.pass(now) else {
            self.told += 1;
            return (self.told <= FAILURES_PER_MINUTE).then_some(0);
        };
        self.told = 1;
        Some(later.saturating_sub(FAILURES_PER_MINUTE - 1))
    }
}

impl RepairLog {
    pub(crate) fn undone(&mut self, key: &Key, by: Option<String>, now: Instant) {
        self.undone.entry(key.clone()).or_insert((by, now));
    }

    /// Describes the process that has this netlink port, at once: a command that undoes something ends with that.
    pub(crate) fn culprit(&mut self, port: u32) -> Option<String> {
        match &self.last {
            Some((last, who)) if *last == port && who.is_some() => who.clone(),
            _ => {
                let who = culprit(port);
                self.last = Some((port, who.clone()));
                who
            }
        }
    }

    /// Logs what was repaired since the last report: what the kernel holds again as wanted, not what was merely
    /// tried. `is_good` is `None` for what is no longer wanted.
    pub(crate) fn report(&mut self, now: Instant, is_good: impl Fn(&Key) -> Option<bool>) {
        // By who has undone them.
        let mut restored: BTreeMap<Option<String>, Vec<(Key, Duration)>> = BTreeMap::new();
        self.undone.retain(|key, (by, since)| {
            let good = is_good(key);
            if good == Some(true) {
                let of_theirs = restored.entry(by.clone()).or_default();
                of_theirs.push((key.clone(), since.elapsed()));
            }
            good == Some(false)
        });
        for (by, restored) in &restored {
            tell_restored(by.as_deref(), restored);
        }
        self.left_alone.retain(|_, log| log.has_passed_lately(now));
    }

    pub(crate) fn leave_alone(
        &mut self,
        key: &Key,
        by: Option<&str>,
        pause: Duration,
        now: Instant,
    ) {
        if self.left_alone.entry(key.clone()).or_default().pass(now).is_none() {
            return;
        }
        match by {
            Some(_) => tracing::warn!(
                "{key} is changed by somebody else again and again{}: \
                 leaving it for {pause:.0?} before the next try; stop the other manager",
                by_whom(by)
            ),
            None => tracing::warn!(
                "{key} does not stay as it is written, again and again: another manager, or the kernel \
                 itself, keeps it otherwise; leaving it for {pause:.0?} before the next try"
            ),
        }
    }

    pub(crate) fn failed(&mut self, entry: &str, error: &str, pause: Duration, now: Instant) {
        let Some(untold) = self.failures.may_tell(now) else { return };
        if untold > 0 {
            tracing::warn!("{untold} more entries could not be written during the last minute");
        }
        tracing::warn!("cannot write {entry}: {error}; next try in {pause:.0?}");
    }
}

fn tell_restored(undone_by: Option<&str>, restored: &[(Key, Duration)]) {
    let by = by_whom(undone_by);
    let micros = |after: &Duration| u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
    match restored {
        [(first, after), rest @ ..] if restored.len() > MAX_LISTED => {
            let longest = rest.iter().map(|(_, after)| after).fold(after, Ord::max);
            tracing::info!(
                event = "entry-restored",
                undone_by,
                after_micros = micros(longest),
                entries = restored.len(),
                "restored {} entries, {first} among them, after {longest:.0?}{by}",
                restored.len()
            );
        }
        few => {
            for (key, after) in few {
                tracing::info!(
                    event = "entry-restored",
                    undone_by,
                    after_micros = micros(after),
                    "restored {key} after {after:.0?}{by}"
                );
            }
        }
    }
}

/// Largest process id of the kernel; further sockets of a process have larger ports.
const LARGEST_PROCESS: u32 = 1 << 22;

fn by_whom(who: Option<&str>) -> String {
    who.map(|who| format!(" (undone by {who})")).unwrap_or_default()
}

/// Describes a process and its ancestors. The first netlink socket of a process has its process id as port. Commands
/// come and go: their ancestor is what can be stopped.
fn culprit(port: u32) -> Option<String> {
    if port == 0 || port > LARGEST_PROCESS {
        return None;
    }
    let name = |process: u32| std::fs::read_to_string(format!("/proc/{process}/comm")).ok();
    let stat = std::fs::read_to_string(format!("/proc/{port}/stat"));
    let Some(own) = name(port) else {
        return Some(format!("process {port}, which has ended or is in a container"));
    };
    let parent = stat.ok().and_then(|stat| {
        let (_, fields) = stat.rsplit_once(')')?;
        let parent = fields.split_whitespace().nth(1)?.parse::<u32>().ok().filter(|id| *id > 1)?;
        Some(format!(", of {}, process {parent}", name(parent)?.trim()))
    });
    Some(format!("{}, process {port}{}", own.trim(), parent.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failures_of_a_minute_are_told_and_the_others_counted() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        for _ in 0..FAILURES_PER_MINUTE {
            assert_eq!(failures.may_tell(start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(failures.may_tell(start + Duration::from_secs(59)), None);
        }
        let next = start + Duration::from_secs(60);
        assert_eq!(failures.may_tell(next), Some(7));
        assert_eq!(failures.may_tell(next), Some(0), "they are told once");
        assert_eq!(failures.may_tell(next + Duration::from_secs(60)), Some(0), "all were told");
    }
}
