//! What the log says about repairs: enough to find who undoes our work, never a flood.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Key;

const ONCE_A_MINUTE: Duration = Duration::from_secs(60);
/// More entries than this in one go are counted, not listed.
const LISTED: usize = 5;
/// Failures are listed up to this many per minute; the rest is counted.
const FAILURES_PER_MINUTE: u32 = 10;

#[derive(Default)]
pub(crate) struct RepairLog {
    /// What has been undone and is not seen restored yet, and by whom.
    undone: BTreeMap<Key, u32>,
    left_alone: BTreeMap<Key, Instant>,
    failure_window: Option<Instant>,
    failures: u32,
}

impl RepairLog {
    pub(crate) fn undone(&mut self, key: &Key, by: u32) {
        self.undone.entry(key.clone()).or_insert(by);
    }

    /// Says what is put right since the last report: what the kernel holds again as it should, not what
    /// was merely tried. `is_good`: `None` for what is wanted no more.
    pub(crate) fn report(&mut self, now: Instant, is_good: impl Fn(&Key) -> Option<bool>) {
        let mut restored = Vec::new();
        self.undone.retain(|key, by| {
            let good = is_good(key);
            if good == Some(true) {
                restored.push((key.clone(), *by));
            }
            good == Some(false)
        });
        if restored.len() > LISTED {
            let by = restored.iter().find_map(|(_, by)| culprit(*by)).unwrap_or_default();
            let first = &restored[0].0;
            tracing::info!("restored {} entries, {first} among them{by}", restored.len());
        } else {
            for (key, by) in &restored {
                tracing::info!("restored {key}{}", culprit(*by).unwrap_or_default());
            }
        }
        self.left_alone.retain(|_, last| now.duration_since(*last) < ONCE_A_MINUTE);
    }

    pub(crate) fn leave_alone(&mut self, key: &Key, by: u32, pause: Duration, now: Instant) {
        let recently =
            self.left_alone.get(key).is_some_and(|last| now.duration_since(*last) < ONCE_A_MINUTE);
        if recently {
            return;
        }
        self.left_alone.insert(key.clone(), now);
        match culprit(by) {
            Some(by) => tracing::warn!(
                "{key} is changed by somebody else again and again{by}: \
                 leaving it for {pause:.0?} before the next try; stop the other manager"
            ),
            None => tracing::warn!(
                "{key} does not stay as it is written, again and again: another manager, or the kernel \
                 itself, keeps it otherwise; leaving it for {pause:.0?} before the next try"
            ),
        }
    }

    pub(crate) fn failed(&mut self, entry: &str, error: &str, pause: Duration, now: Instant) {
        if self.failure_window.is_none_or(|start| now.duration_since(start) > ONCE_A_MINUTE) {
            if self.failures > FAILURES_PER_MINUTE {
                let unsaid = self.failures - FAILURES_PER_MINUTE;
                tracing::warn!("{unsaid} more entries could not be written in the last minute");
            }
            self.failure_window = Some(now);
            self.failures = 0;
        }
        self.failures += 1;
        if self.failures <= FAILURES_PER_MINUTE {
            tracing::warn!("cannot write {entry}: {error}; next try in {pause:.0?}");
        }
    }
}

/// Who holds this netlink port. The first socket of a process has its process id.
fn culprit(port: u32) -> Option<String> {
    if port == 0 {
        return None;
    }
    let name = std::fs::read_to_string(format!("/proc/{port}/comm")).ok()?;
    Some(format!(" (undone by {}, process {port})", name.trim()))
}
