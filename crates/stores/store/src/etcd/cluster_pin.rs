//! The one etcd cluster that is spoken to. All endpoints must be members of it, and of the one that was known before: an
//! endpoint of another cluster has other leases and another config, which are not this network's.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// Called with the id of a cluster that is met for the first time.
type FoundCallback = Box<dyn Fn(u64) + Send + Sync>;

#[derive(Clone, Default)]
pub struct ClusterPin(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    fix: Option<String>,
    learned: Option<FoundCallback>,
}

#[derive(Debug, Default)]
struct State {
    cluster: Option<u64>,
    /// Endpoints of other clusters, each logged once.
    others: BTreeSet<String>,
}

impl ClusterPin {
    /// Pin of a cluster that is `known`; `fix` is logged when another one is found; `learned` is called with the first one found.
    pub fn new(
        known: Option<u64>,
        fix: String,
        learned: impl Fn(u64) + Send + Sync + 'static,
    ) -> Self {
        let state = Mutex::new(State { cluster: known, ..State::default() });
        Self(Arc::new(Shared { state, fix: Some(fix), learned: Some(Box::new(learned)) }))
    }

    /// Whether a member may be spoken to. What tells no cluster, as some servers that are not etcd, is believed.
    pub(super) fn check(&self, endpoint: &str, found: u64) -> Result<(), String> {
        if found == 0 {
            return Ok(());
        }
        let mut state = self.0.state.lock();
        let Some(known) = state.cluster else {
            state.cluster = Some(found);
            drop(state);
            if let Some(learned) = &self.0.learned {
                learned(found);
            }
            return Ok(());
        };
        if known == found {
            return Ok(());
        }
        let fix = self.0.fix.as_deref();
        let fix = fix.unwrap_or("name members of one cluster alone in etcd-endpoints");
        let other = format!(
            "it is a member of the cluster {found:x}, and leases are in the cluster {known:x}: {fix}"
        );
        if state.others.insert(endpoint.to_owned()) {
            tracing::error!(endpoint, "This etcd is not used: {other}");
        }
        Err(other)
    }
}

impl fmt::Debug for ClusterPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterPin").field(&self.0.state.lock().cluster).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn the_first_cluster_is_kept_and_every_other_one_refused() {
        let learned = Arc::new(AtomicU64::new(0));
        let pin = {
            let learned = learned.clone();
            ClusterPin::new(None, "do so".to_owned(), move |id| {
                learned.store(id, Ordering::Relaxed)
            })
        };
        assert_eq!(pin.check("a", 0), Ok(()));
        assert_eq!((pin.check("a", 7), pin.check("b", 7)), (Ok(()), Ok(())));
        assert_eq!(learned.load(Ordering::Relaxed), 7);
        let other = pin.clone().check("c", 8).unwrap_err().to_string();
        assert!(other.contains("cluster 8") && other.contains("do so"), "{other}");
        assert_eq!(learned.load(Ordering::Relaxed), 7);
    }
}
