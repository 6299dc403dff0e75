//! Follower of any resource: its objects are listed once and then watched, into a [`Table`].
//!
//! Objects come through a watch that begins with all of them, where the server can do that, else page by page. A watch that
//! ends continues where it ended; only when its version has expired are all objects listed again, and then not by all
//! nodes of the cluster at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use flannel_common::{Backoff, Tries, spawn_sender};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{ApiError, Client, WatchEnd};
use crate::message::{EventKind, Followed, Resource};

const EVENT_QUEUE: usize = 256;
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Shortest duration of a watch. It lasts up to twice as long, so that not all end at once.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(300);
/// Time per object over which nodes spread their next list, and the most of it.
const SPREAD_PER_OBJECT: Duration = Duration::from_millis(5);
const MAX_SPREAD: Duration = Duration::from_secs(60);

type View<'a, T> = <<T as Table>::Resource as Resource>::View<'a>;

/// Table of a resource, and the events of its changes.
pub(crate) trait Table: Send + Sync + Sized + 'static {
    type Resource: Followed;
    type Event: Send + 'static;

    fn client(&self) -> &Client;

    fn resource(&self) -> &Self::Resource;

    /// Number of objects.
    fn size(&self) -> usize;

    /// Begins a list: what is not [`Self::listed`] before [`Self::end_list`] is gone.
    fn begin_list(&self);

    fn listed(&self, object: &View<'_, Self>);

    fn end_list(&self);

    /// Notes an object that was created or written.
    fn put(&self, object: &View<'_, Self>) -> Vec<Self::Event>;

    fn deleted(&self, object: &View<'_, Self>) -> Option<Self::Event>;

    /// Event with all objects, after a list.
    fn snapshot(&self) -> Self::Event;

    /// Event of an API server that is lost, once per loss and once more if it then refuses us, or reached again.
    fn contact(&self, reached: Result<(), ApiError>) -> Self::Event;

    fn note(&self, progress: Progress<'_>);
}

/// Progress of a follower.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress<'a> {
    /// The table is as it was at this version, and is being followed from there; `None`: it no longer is.
    Version(Option<&'a str>),
    /// The API server has answered.
    Contact,
    /// The watch failed.
    Broken,
}

/// Lists all objects from scratch; returns their version. Not to be called while they are being followed.
pub(crate) async fn list<T: Table>(table: &T) -> Result<String, ApiError> {
    match list_by_watch(table).await {
        // It cannot send a list through a watch.
        Err(error) if matches!(error.code, Some(400 | 422)) => {
            tracing::debug!("The API server does not stream lists ({error}): asking for pages");
            table.begin_list();
            let version =
                table.client().list(table.resource(), |object| table.listed(&object)).await?;
            table.end_list();
            Ok(version)
        }
        done => done,
    }
}

async fn list_by_watch<T: Table>(table: &T) -> Result<String, ApiError> {
    let (client, resource) = (table.client(), table.resource());
    let mut watch = client.watch(resource, None, MIN_WATCH_DURATION).await?;
    table.begin_list();
    let mut version = None;
    while version.is_none() {
        let next = watch.next(resource, |kind, object| match kind {
            EventKind::Bookmark if T::Resource::ends_initial_events(&object) => {
                version = Some(T::Resource::version(&object).to_owned());
            }
            EventKind::Bookmark => {}
            EventKind::Added | EventKind::Modified => table.listed(&object),
            EventKind::Deleted => drop(table.deleted(&object)),
        });
        next.await.map_err(|ended| client.watch_error(resource, ended))?;
    }
    table.end_list();
    Ok(version.unwrap_or_default())
}

/// Follows all objects until the receiver is dropped. Must be called within a tokio runtime.
pub(crate) fn follow<T: Table>(
    table: Arc<T>,
    version: Option<String>,
    mut rng: fastrand::Rng,
) -> mpsc::Receiver<T::Event> {
    table.note(Progress::Version(version.as_deref()));
    let backoff = RETRY.tries(rng.fork());
    spawn_sender("watch of a resource in the API server", EVENT_QUEUE, |events| async move {
        let mut follower = Follower { table, events, version, backoff, rng, down: None };
        match follower.run().await {}
    })
}

struct Follower<T: Table> {
    table: Arc<T>,
    /// A receiver that is gone ends the task.
    events: mpsc::Sender<T::Event>,
    version: Option<String>,
    backoff: Tries,
    rng: fastrand::Rng,
    /// While the API server is unreachable or refuses us: the status of the refusal, if there is one.
    down: Option<Option<u16>>,
}

impl<T: Table> Drop for Follower<T> {
    fn drop(&mut self) {
        self.table.note(Progress::Version(None));
    }
}

impl<T: Table> Follower<T> {
    async fn run(&mut self) -> Infallible {
        loop {
            let began = Instant::now();
            let mut moves = self.table.client().moves();
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
            self.table.note(Progress::Broken);
            let pause = self.backoff.pause().max(error.retry_after.unwrap_or_default());
            self.report_down(error).await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Lists all objects, or watches them until the server ends the watch.
    async fn step(&mut self) -> Result<(), ApiError> {
        let Some(version) = self.version.clone() else {
            let version = list(&*self.table).await?;
            self.report_up().await;
            self.note_version(version);
            _ = self.events.send(self.table.snapshot()).await;
            return Ok(());
        };
        match self.watch(&version).await {
            Err(error) if error.code == Some(410) => {
                let spread = spread(self.table.size(), &mut self.rng);
                let resource = self.table.resource().collection().resource;
                tracing::info!(
                    "watch of {resource} expired (410): listing all of them again in {spread:.1?}"
                );
                self.version = None;
                tokio::time::sleep(spread).await;
                Ok(())
            }
            ended => ended,
        }
    }

    async fn watch(&mut self, version: &str) -> Result<(), ApiError> {
        let table = self.table.clone();
        let (client, resource) = (table.client(), table.resource());
        let lasting = MIN_WATCH_DURATION.mul_f64(1.0 + self.rng.f64());
        let began = Instant::now();
        let mut watch = client.watch(resource, Some(version), lasting).await?;
        self.report_up().await;
        table.note(Progress::Contact);
        loop {
            let (mut events, mut version) = (Vec::new(), String::new());
            let next = watch.next(resource, |kind, object| {
                match kind {
                    EventKind::Added | EventKind::Modified => events.extend(table.put(&object)),
                    EventKind::Deleted => events.extend(table.deleted(&object)),
                    EventKind::Bookmark => {}
                }
                T::Resource::version(&object).clone_into(&mut version);
            });
            let next = next.await;
            if next.is_ok() || matches!(next, Err(WatchEnd::Refused(_))) {
                table.note(Progress::Contact);
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
                Err(ended) => return Err(client.watch_error(resource, ended)),
            }
        }
    }

    fn note_version(&mut self, version: String) {
        self.table.note(Progress::Version(Some(&version)));
        self.version = Some(version);
    }

    /// Reports it once, and again when a server that was unreachable is back and refuses us, which needs a fix.
    async fn report_down(&mut self, error: ApiError) {
        let refused = error.code.filter(|code| matches!(code, 401 | 403));
        let reported = self.down.replace(refused);
        if reported.is_none() || (refused.is_some() && reported != Some(refused)) {
            _ = self.events.send(self.table.contact(Err(error))).await;
        } else {
            tracing::debug!("The API server is still unreachable: {error}");
        }
    }

    async fn report_up(&mut self) {
        if self.down.take().is_some() {
            _ = self.events.send(self.table.contact(Ok(()))).await;
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
