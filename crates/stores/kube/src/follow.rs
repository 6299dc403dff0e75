//! Follower of the Nodes: they are listed once and then watched, into the table of their cluster.
//!
//! Nodes come through a watch that begins with all of them, where the server can do that, else page by page. A watch that
//! ends continues where it ended; only when its version has expired are all Nodes listed again, and then not by all
//! nodes of the cluster at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use flannel_common::{Backoff, Tries, spawn_sender};
use flannel_store::StoreEvent;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{ApiError, WatchEnd};
use crate::cluster::Cluster;
use crate::message::EventKind;

const EVENT_QUEUE: usize = 256;
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Shortest duration of a watch. It lasts up to twice as long, so that not all end at once.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(300);
/// Time per Node over which nodes spread their next list, and the most of it.
const SPREAD_PER_OBJECT: Duration = Duration::from_millis(5);
const MAX_SPREAD: Duration = Duration::from_secs(60);

/// Lists all Nodes from scratch; returns their version. Not to be called while they are being followed.
pub(crate) async fn list(cluster: &Cluster) -> Result<String, ApiError> {
    match list_by_watch(cluster).await {
        // It cannot send a list through a watch.
        Err(error) if matches!(error.code, Some(400 | 422)) => {
            tracing::debug!("The API server does not stream lists ({error}): asking for pages");
            cluster.table.lock().begin_list();
            let nodes = &cluster.api.nodes;
            let version = cluster.api.client.list(nodes, |node| cluster.listed(&node)).await?;
            cluster.end_list();
            Ok(version)
        }
        done => done,
    }
}

async fn list_by_watch(cluster: &Cluster) -> Result<String, ApiError> {
    let (client, nodes) = (&cluster.api.client, &cluster.api.nodes);
    let mut watch = client.watch(nodes, None, MIN_WATCH_DURATION).await?;
    cluster.table.lock().begin_list();
    let mut version = None;
    while version.is_none() {
        let next = watch.next(nodes, |kind, node| match kind {
            EventKind::Bookmark if node.ends_initial_events => {
                version = Some(node.resource_version.into_owned());
            }
            EventKind::Bookmark => {}
            EventKind::Added | EventKind::Modified => cluster.listed(&node),
            EventKind::Deleted => drop(cluster.deleted(&node)),
        });
        next.await.map_err(|ended| client.watch_error(nodes, ended))?;
    }
    cluster.end_list();
    Ok(version.unwrap_or_default())
}

/// Follows all Nodes until the receiver is dropped. Must be called within a tokio runtime.
pub(crate) fn follow(
    cluster: Arc<Cluster>,
    version: Option<String>,
    mut rng: fastrand::Rng,
) -> mpsc::Receiver<StoreEvent> {
    cluster.followed.lock().clone_from(&version);
    let backoff = RETRY.tries(rng.fork());
    spawn_sender("watch of Nodes in the API server", EVENT_QUEUE, |events| async move {
        let mut follower = Follower { cluster, events, version, backoff, rng, down: None };
        match follower.run().await {}
    })
}

struct Follower {
    cluster: Arc<Cluster>,
    /// A receiver that is gone ends the task.
    events: mpsc::Sender<StoreEvent>,
    version: Option<String>,
    backoff: Tries,
    rng: fastrand::Rng,
    /// While the API server is unreachable or refuses us: the status of the refusal, if there is one.
    down: Option<Option<u16>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        *self.cluster.followed.lock() = None;
    }
}

impl Follower {
    async fn run(&mut self) -> Infallible {
        loop {
            let began = Instant::now();
            let mut moves = self.cluster.api.client.moves();
            let ended = tokio::select! {
                ended = self.step() => ended,
                _ = moves.changed() => {
                    self.backoff.reset();
                    continue;
                }
            };
            if began.elapsed() > RETRY.most {
                self.backoff.reset();
            }
            let Err(error) = ended else { continue };
            self.cluster.contact.note_restart();
            let pause = self.backoff.pause().max(error.retry_after.unwrap_or_default());
            self.report_down(error).await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Lists all Nodes, or watches them until the server ends the watch.
    async fn step(&mut self) -> Result<(), ApiError> {
        let Some(version) = self.version.clone() else {
            let version = list(&self.cluster).await?;
            self.report_up().await;
            self.note_version(version);
            let all = self.cluster.table.lock().leases();
            _ = self.events.send(StoreEvent::Snapshot(all)).await;
            return Ok(());
        };
        match self.watch(&version).await {
            Err(error) if error.code == Some(410) => {
                let spread = spread(self.cluster.table.lock().len(), &mut self.rng);
                tracing::info!(
                    "watch of nodes expired (410): listing all of them again in {spread:.1?}"
                );
                self.version = None;
                tokio::time::sleep(spread).await;
                Ok(())
            }
            ended => ended,
        }
    }

    async fn watch(&mut self, version: &str) -> Result<(), ApiError> {
        let cluster = self.cluster.clone();
        let (client, nodes) = (&cluster.api.client, &cluster.api.nodes);
        let lasting = MIN_WATCH_DURATION.mul_f64(1.0 + self.rng.f64());
        let began = Instant::now();
        let mut watch = client.watch(nodes, Some(version), lasting).await?;
        self.report_up().await;
        cluster.contact.note_contact();
        loop {
            let (mut events, mut version) = (Vec::new(), String::new());
            let next = watch.next(nodes, |kind, node| {
                match kind {
                    EventKind::Added | EventKind::Modified => events.extend(cluster.put(&node)),
                    EventKind::Deleted => events.extend(cluster.deleted(&node)),
                    EventKind::Bookmark => {}
                }
                version = node.resource_version.into_owned();
            });
            let next = next.await;
            if next.is_ok() || matches!(next, Err(WatchEnd::Refused(_))) {
                cluster.contact.note_contact();
            }
            for event in events {
                _ = self.events.send(event).await;
            }
            // Only after the events up to there were sent.
            if !version.is_empty() {
                self.note_version(version);
            }
            match next {
                Ok(()) => self.backoff.reset(),
                Err(WatchEnd::InTime) => {
                    // A server that shuts down closes what it has just accepted.
                    if began.elapsed() < MIN_WATCH_DURATION {
                        tokio::time::sleep(self.backoff.pause()).await;
                    }
                    return Ok(());
                }
                Err(ended) => return Err(client.watch_error(nodes, ended)),
            }
        }
    }

    fn note_version(&mut self, version: String) {
        *self.cluster.followed.lock() = Some(version.clone());
        self.version = Some(version);
    }

    /// Reports it once, and again when a server that was unreachable is back and refuses us, which needs a fix.
    async fn report_down(&mut self, error: ApiError) {
        let refused = error.code.filter(|code| matches!(code, 401 | 403));
        let reported = self.down.replace(refused);
        if reported.is_none() || (refused.is_some() && reported != Some(refused)) {
            _ = self.events.send(StoreEvent::Down(error.into_store_error("").to_string())).await;
        } else {
            tracing::debug!("The API server is still unreachable: {error}");
        }
    }

    async fn report_up(&mut self) {
        if self.down.take().is_some() {
            _ = self.events.send(StoreEvent::Up).await;
        }
    }
}

/// Pause before all objects are listed again, so that not all nodes of a cluster do it at once.
fn spread(objects: usize, rng: &mut fastrand::Rng) -> Duration {
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    SPREAD_PER_OBJECT.saturating_mul(objects).min(MAX_SPREAD).mul_f64(rng.f64())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What the daemon of one node does when the API server has forgotten where it was.
    fn moment(seed: u64, objects: usize) -> Duration {
        spread(objects, &mut fastrand::Rng::with_seed(seed))
    }

    #[test]
    fn nodes_of_a_cluster_list_all_nodes_again_at_different_moments() {
        let nodes = 20;
        let whole = SPREAD_PER_OBJECT * u32::try_from(nodes).expect("a number");
        let moments: Vec<Duration> = (0..1_000).map(|seed| moment(seed, nodes)).collect();
        assert!(moments.iter().all(|moment| *moment < whole), "within 5 ms for each Node");
        // In each tenth of that time about a tenth of them.
        let mut tenths = [0; 10];
        for moment in &moments {
            tenths[(moment.as_nanos() * 10 / whole.as_nanos()) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (60..=140).contains(count)), "{tenths:?}");
        assert!(moments.iter().collect::<BTreeSet<_>>().len() > 990, "hardly two at one moment");
    }

    #[test]
    fn however_large_a_cluster_is_nobody_waits_for_more_than_a_minute() {
        let latest = (0..4).map(|seed| moment(seed, 15_000)).max().expect("four");
        assert!(latest <= MAX_SPREAD && latest > MAX_SPREAD / 2, "{latest:?}");
        assert_eq!(moment(1, 0), Duration::ZERO);
    }
}
