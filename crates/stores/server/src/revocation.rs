//! Revocation of a client's rights while it listens: checked whenever tokens or certificates have been reloaded, so that
//! a stream does not outlive the right to it.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;

/// Interval at which Kubernetes is asked again whether a client's token is good.
const TOKEN_REVIEW_INTERVAL: Duration = Duration::from_secs(600);

/// End of a client's rights; nothing for a client that is not asked who it is.
pub(crate) struct Revocation(Option<RevocationWatch>);

struct RevocationWatch {
    /// Number of reloads of tokens and certificates.
    reloads: watch::Receiver<u64>,
    is_valid: Box<dyn Fn() -> bool + Send + Sync>,
    /// Asks Kubernetes again, where it vouches for the client.
    review: Option<Review>,
}

/// Asks again; `is_valid` tells the result.
pub(crate) type Review = Box<dyn Fn() -> RevocationFuture + Send + Sync>;

/// Completes when the client has lost its rights.
pub(crate) type RevocationFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Revocation {
    pub(crate) fn new(
        reloads: watch::Receiver<u64>,
        is_valid: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self(Some(RevocationWatch { reloads, is_valid: Box::new(is_valid), review: None }))
    }

    /// Adds a review by who vouches for the client.
    pub(crate) fn with_review(mut self, review: Review) -> Self {
        if let Some(watched) = &mut self.0 {
            watched.review = Some(review);
        }
        self
    }

    pub(crate) fn never() -> Self {
        Self(None)
    }

    /// Waits for the revocation; `None` if there will be none.
    pub(crate) fn wait(self) -> Option<RevocationFuture> {
        let RevocationWatch { mut reloads, is_valid, review } = self.0?;
        Some(Box::pin(async move {
            loop {
                let reviewed = async {
                    match &review {
                        Some(review) => {
                            // Spread, so that not all clients are reviewed at once.
                            let pause = TOKEN_REVIEW_INTERVAL.mul_f64(1.0 + 0.2 * fastrand::f64());
                            tokio::time::sleep(pause).await;
                            review().await;
                        }
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = reloads.changed() => if changed.is_err() { return },
                    () = reviewed => {}
                }
                if !is_valid() {
                    return;
                }
            }
        }))
    }
}
