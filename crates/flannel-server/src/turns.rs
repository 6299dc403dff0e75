//! Whole tables are sent a few at a time. After a restart every node asks for one; sent to all at once,
//! all would progress slowly together, and a server that is killed again soon would have served nobody.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::limits::Limits;

#[derive(Clone, Debug)]
pub(crate) struct Turns {
    places: Arc<Semaphore>,
    longest: Duration,
}

/// Lasts until it is dropped, or until it has lasted too long for those who wait.
#[derive(Debug)]
pub(crate) struct Turn {
    _ends: oneshot::Sender<Infallible>,
}

pub(crate) type Waiting = Pin<Box<dyn Future<Output = Turn> + Send>>;

impl Turns {
    pub(crate) fn new(limits: &Limits) -> Self {
        let places = Arc::new(Semaphore::new(limits.whole_tables.max(1)));
        Self { places, longest: limits.longest_turn }
    }

    /// In the order of asking.
    pub(crate) fn take(&self) -> Waiting {
        let (places, longest) = (self.places.clone(), self.longest);
        Box::pin(async move {
            // It is never closed.
            let place = places.acquire_owned().await.ok();
            let (ends, ended) = oneshot::channel();
            tokio::spawn(async move {
                // Whoever takes its table slowly, or not at all, does not keep the others waiting.
                let _ = tokio::time::timeout(longest, ended).await;
                drop(place);
            });
            Turn { _ends: ends }
        })
    }
}
