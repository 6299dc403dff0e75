//! Whether a client is still who it was when it began to listen. Looked at whenever tokens or
//! certificates have been read anew, so that a stream does not outlive the right to hear it.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

#[derive(Clone)]
pub(crate) struct Standing {
    /// Counts how often something was read anew.
    renewed: watch::Receiver<u64>,
    still: Arc<dyn Fn() -> bool + Send + Sync>,
}

pub(crate) type Lost = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Standing {
    pub(crate) fn new(
        renewed: watch::Receiver<u64>,
        still: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { renewed, still: Arc::new(still) }
    }

    /// Of somebody who is not asked who it is.
    pub(crate) fn for_ever() -> Self {
        Self::new(watch::channel(0).1, || true)
    }

    /// When it is over.
    pub(crate) fn lost(mut self) -> Lost {
        Box::pin(async move {
            while self.renewed.changed().await.is_ok() {
                if !(self.still)() {
                    return;
                }
            }
            std::future::pending().await
        })
    }
}
