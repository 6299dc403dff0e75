//! Revocation of a client's rights while it listens, checked after reloads: no stream outlives the right to it.

use std::pin::Pin;
use std::time::Duration;

use flannel_common::run_if_any;
use tokio::sync::watch;

/// Interval at which Kubernetes is asked again whether a client's token is good.
const TOKEN_REVIEW_INTERVAL: Duration = Duration::from_secs(600);

/// Asks Kubernetes again, where it vouches for the client; `is_valid` tells the result.
pub(crate) type Review = Box<dyn Fn() -> Revocation + Send + Sync>;

/// Completes when the client has lost its rights.
pub(crate) type Revocation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Revocation for a client that is not asked who it is.
pub(crate) fn never() -> Revocation {
    Box::pin(std::future::pending())
}

/// `reloads`: number of reloads of tokens and certificates.
pub(crate) fn wait(
    mut reloads: watch::Receiver<u64>,
    is_valid: impl Fn() -> bool + Send + Sync + 'static,
    review: Option<Review>,
) -> Revocation {
    Box::pin(async move {
        loop {
            let reviewed = run_if_any(review.as_ref().map(async |review| {
                // Spread, so that not all clients are reviewed at once.
                let pause = TOKEN_REVIEW_INTERVAL.mul_f64(1.0 + 0.2 * fastrand::f64());
                tokio::time::sleep(pause).await;
                review().await;
            }));
            tokio::select! {
                changed = reloads.changed() => if changed.is_err() { return },
                () = reviewed => {}
            }
            if !is_valid() {
                return;
            }
        }
    })
}
