//! Whether a client still has the rights it had when it began to listen. Checked whenever tokens or
//! certificates have been read anew, so that a stream does not outlive the right to hear it.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;

/// How often somebody else is asked again whether a client's token is good.
const REVIEW_EVERY: Duration = Duration::from_secs(600);

/// For a client that is not asked who it is: nothing.
pub(crate) struct Standing(Option<Watched>);

struct Watched {
    /// Counts how often something was read anew.
    renewed: watch::Receiver<u64>,
    still: Box<dyn Fn() -> bool + Send + Sync>,
    /// Asks whoever vouches for the client, where that is somebody else.
    review: Option<Review>,
}

/// Asks again; afterwards `still` tells.
pub(crate) type Review = Box<dyn Fn() -> Lost + Send + Sync>;

/// Comes when the client is no longer who it was.
pub(crate) type Lost = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Standing {
    pub(crate) fn new(
        renewed: watch::Receiver<u64>,
        still: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Watched { renewed, still: Box::new(still), review: None }))
    }

    /// It also ends when whoever vouches for the client no longer does.
    pub(crate) fn with_review(mut self, review: Review) -> Self {
        if let Some(watched) = &mut self.0 {
            watched.review = Some(review);
        }
        self
    }

    pub(crate) fn for_ever() -> Self {
        Self(None)
    }

    /// `None`: it does not end.
    pub(crate) fn lost(self) -> Option<Lost> {
        let Watched { mut renewed, still, review } = self.0?;
        Some(Box::pin(async move {
            loop {
                let reviewed = async {
                    match &review {
                        Some(review) => {
                            // Not all at the same moment.
                            let pause = REVIEW_EVERY.mul_f64(1.0 + 0.2 * fastrand::f64());
                            tokio::time::sleep(pause).await;
                            review().await;
                        }
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = renewed.changed() => if changed.is_err() { return },
                    () = reviewed => {}
                }
                if !still() {
                    return;
                }
            }
        }))
    }
}
