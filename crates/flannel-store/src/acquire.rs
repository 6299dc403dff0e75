//! Getting a subnet, however many others want one at the same time: ask the store what it knows of this
//! node, say how it is to be announced, try; and begin anew when somebody else was quicker.

use std::time::Duration;

use flannel_common::Backoff;
use flannel_lease::{Claimant, LeaseAttrs, NetworkConfig};

use crate::{Acquired, Claim, Recalled, Store, StoreError};

const TRIES: u32 = 10;
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// `recalled` is what the first try goes by. `attrs` says how the node is announced, given how it was; the
/// public addresses must not depend on that.
pub async fn acquire<S: Store + ?Sized>(
    store: &S,
    config: &NetworkConfig,
    me: &Claimant,
    recalled: Recalled,
    attrs: impl Fn(Option<&LeaseAttrs>) -> LeaseAttrs + Send,
) -> Result<Acquired, StoreError> {
    let mut backoff = RETRY.tries(fastrand::Rng::new());
    let mut recalled = recalled;
    for _ in 0..TRIES {
        // A lease that told how the node was announced may be gone by the second try.
        let announced = recalled.announced.clone();
        let claim = Claim::new(attrs(announced.as_ref()), me.previous);
        match store.try_acquire(config, &claim, recalled).await {
            Err(StoreError::Contended { .. }) => {}
            done => return done,
        }
        tokio::time::sleep(backoff.pause()).await;
        recalled = store.recall(config, me).await?;
        recalled.announced = recalled.announced.or(announced);
    }
    Err(StoreError::Contended { tries: TRIES })
}
