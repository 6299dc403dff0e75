//! Permits to send a snapshot of the lease table: a few at a time. After a restart every node asks for one; sent to all at
//! once, all would progress slowly together, and a server that is killed again soon would have served nobody.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use flannel_common::Task;
use tokio::sync::{Semaphore, oneshot};

use crate::limits::Limits;

#[derive(Clone, Debug)]
pub(crate) struct SnapshotPermits {
    semaphore: Arc<Semaphore>,
    timeout: Duration,
}

/// Permit that lasts until it is dropped, or until others have waited too long.
#[derive(Debug)]
pub(crate) struct SnapshotPermit {
    _ends: oneshot::Sender<Infallible>,
}

pub(crate) type PendingPermit = Pin<Box<dyn Future<Output = SnapshotPermit> + Send>>;

impl SnapshotPermits {
    pub(crate) fn new(limits: &Limits) -> Self {
        let semaphore = Arc::new(Semaphore::new(limits.concurrent_snapshots.max(1)));
        Self { semaphore, timeout: limits.snapshot_timeout }
    }

    /// Waits for a permit, in the order of the calls.
    pub(crate) fn acquire(&self) -> PendingPermit {
        let (semaphore, timeout) = (self.semaphore.clone(), self.timeout);
        Box::pin(async move {
            // The semaphore is never closed.
            let permit = semaphore.acquire_owned().await.ok();
            let (ends, ended) = oneshot::channel();
            let end = async move {
                // A client that reads its snapshot slowly, or not at all, does not keep the others waiting.
                let _ = tokio::time::timeout(timeout, ended).await;
                drop(permit);
            };
            Task::spawn("end of a snapshot permit", end).detach();
            SnapshotPermit { _ends: ends }
        })
    }
}
