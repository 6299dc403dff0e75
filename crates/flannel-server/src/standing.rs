//! Whether a client still has the rights it had when it began to listen. Checked whenever tokens or
//! certificates have been read anew, so that a stream does not outlive the right to hear it.

use std::pin::Pin;

use tokio::sync::watch;

/// For a client that is not asked who it is: nothing.
pub(crate) struct Standing(Option<Watched>);

struct Watched {
    /// Counts how often something was read anew.
    renewed: watch::Receiver<u64>,
    still: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Comes when the client is no longer who it was.
pub(crate) type Lost = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Standing {
    pub(crate) fn new(
        renewed: watch::Receiver<u64>,
        still: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Watched { renewed, still: Box::new(still) }))
    }

    pub(crate) fn for_ever() -> Self {
        Self(None)
    }

    /// `None`: it does not end.
    pub(crate) fn lost(self) -> Option<Lost> {
        let Watched { mut renewed, still } = self.0?;
        Some(Box::pin(async move {
            while renewed.changed().await.is_ok() {
                if !still() {
                    return;
                }
            }
        }))
    }
}
