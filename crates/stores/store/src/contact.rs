//! Last contact with a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, Default)]
pub struct Contact(Arc<ContactRecord>);

#[derive(Debug, Default)]
struct ContactRecord {
    /// In milliseconds since 1970; 0: never.
    last: AtomicU64,
    restarts: AtomicU64,
}

impl Contact {
    /// It has said something, were it only that there is nothing new.
    pub fn note_contact(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.last.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn note_restart(&self) {
        self.0.restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub fn last(&self) -> Option<SystemTime> {
        let last = self.0.last.load(Ordering::Relaxed);
        (last > 0).then(|| UNIX_EPOCH + Duration::from_millis(last))
    }

    pub fn restarts(&self) -> u64 {
        self.0.restarts.load(Ordering::Relaxed)
    }
}
