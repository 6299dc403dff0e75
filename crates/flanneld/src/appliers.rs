//! All that keeps the world as the backend wants it, behind one type: the daemon does not care which
//! applier sees to what.
//!
//! Appliers stand on each other. The kernel stands on those that make devices of their own: an address or a
//! route needs the device that a tunnel has made. So what is added is added from the ground up, those
//! before the kernel; and what is taken away goes the other way, so that no route leads into nothing.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use flannel_backend::{DesiredState, WantedBy};
use flannel_kernel::{Engine, OpenError, Ownership};
use flannel_wanted::{Applier, Status, Stopped};
use tokio::sync::watch;

/// A handle to all of them.
#[derive(Clone)]
pub struct Appliers {
    kernel: Engine<WantedBy>,
}

impl Appliers {
    pub fn start(seed: u64) -> Result<Self, OpenError> {
        Ok(Self { kernel: Engine::start(seed)? })
    }

    /// For what is to be known of the node: its facts, and the paths to peers.
    pub fn kernel(&self) -> &Engine<WantedBy> {
        &self.kernel
    }

    /// Declares all that is wanted. `ownership`: what is ours in the kernel.
    pub async fn replace(
        &self,
        ownership: Ownership,
        desired: DesiredState,
    ) -> Result<Status, Stopped> {
        let DesiredState { kernel } = desired;
        self.kernel.replace(ownership, kernel).await
    }

    /// Declares what single peers, or the node, want from now on.
    pub async fn update(&self, changes: DesiredState) -> Result<Status, Stopped> {
        let DesiredState { kernel } = changes;
        self.kernel.update(kernel).await
    }

    pub fn watch_status(&self) -> WatchedStatus {
        let Self { kernel } = self;
        WatchedStatus(vec![kernel.watch_status()])
    }

    /// The daemon ends. In reverse order: the kernel may stand on the others.
    pub async fn stop(&self) {
        let Self { kernel } = self;
        kernel.stop().await;
    }
}

/// How it stands with all of them, and every change of that.
pub struct WatchedStatus(Vec<watch::Receiver<Status>>);

impl WatchedStatus {
    pub fn now(&mut self) -> Status {
        let each = self.0.iter_mut().map(|status| status.borrow_and_update().clone());
        each.reduce(Status::and).unwrap_or_default()
    }

    /// Fails when one of them has stopped.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        let mut changes: Vec<_> =
            self.0.iter_mut().map(|status| Box::pin(status.changed())).collect();
        poll_fn(|context| {
            let mut polled = changes.iter_mut().map(|change| pin!(change).poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(wanted: usize, bad: usize) -> Status {
        Status { wanted, bad, ..Status::default() }
    }

    #[test]
    fn the_status_is_that_of_all_and_follows_each() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (first, one) = watch::channel(status(3, 0));
        let (second, other) = watch::channel(status(4, 1));
        let mut both = WatchedStatus(vec![one, other]);
        assert_eq!(both.now(), status(7, 1));
        runtime.block_on(async {
            for (sender, sum) in [(&second, status(6, 0)), (&first, status(6, 0))] {
                sender.send_replace(status(3, 0));
                both.changed().await.expect("both are there");
                assert_eq!(both.now(), sum);
            }
            drop(first);
            assert!(both.changed().await.is_err(), "one has stopped");
        });
    }
}
