//! Telling the store how this node's network is, beside everything else: the daemon never waits for it.

use std::convert::Infallible;
use std::time::Duration;

use flannel_store::{NodeNetwork, NodeStore};
use tokio::sync::watch;

use crate::readiness::Readiness;

/// What is wrong for a moment, as at every start, is not told.
const FAULT_REPORT_DELAY: Duration = Duration::from_secs(5);

/// Tells of every change. What is being told is dropped when there is something newer.
pub(super) async fn keep_telling(
    store: &dyn NodeStore,
    mut said: watch::Receiver<Readiness>,
) -> Infallible {
    let mut told = None;
    loop {
        let now = said.borrow_and_update().node_network();
        let news = told.as_ref() != Some(&now);
        if news {
            // The store may already have received it when this is dropped; then the earlier state must be reported again.
            told = None;
        }
        tokio::select! {
            () = tell(store, &now), if news => told = Some(now),
            changed = said.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
        }
    }
}

async fn tell(store: &dyn NodeStore, now: &NodeNetwork) {
    if *now != NodeNetwork::Works {
        tokio::time::sleep(FAULT_REPORT_DELAY).await;
    }
    store.report(now).await;
}
