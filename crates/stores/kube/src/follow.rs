//! Follower of a resource: it is listed once and then watched, into a table. This knows no resource by itself.
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

use crate::client::{ApiError, Client, WatchEnd, WatchStart};
use crate::message::{Event, EventKind, Followed, Resource};

const EVENT_QUEUE: usize = 256;
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Shortest duration of a watch. It lasts up to twice as long, so that not all end at once.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(300);
/// Time per object over which nodes spread their next list, and the most of it.
const SPREAD_PER_OBJECT: Duration = Duration::from_millis(5);
const MAX_SPREAD: Duration = Duration::from_secs(60);

type View<'a, T> = <<T as Table>::Resource as Resource>::View<'a>;

/// Table of a resource, and the events of its changes.
pub trait Table: Send + Sync + 'static {
    type Resource: Followed;
    /// Event for who follows the table.
    type Event: Send + 'static;

    fn resource(&self) -> &Self::Resource;

    /// Number of objects.
    fn size(&self) -> usize;

    /// Begins a list: what is not [`Self::listed`] before [`Self::end_list`] is gone.
    fn begin_list(&self);

    fn listed(&self, object: &View<'_, Self>)
    where
        Self: Sized;

    fn end_list(&self);

    /// Notes an object that was created or written.
    fn put(&self, object: &View<'_, Self>, events: &mut Vec<Self::Event>)
    where
        Self: Sized;

    fn deleted(&self, object: &View<'_, Self>, events: &mut Vec<Self::Event>)
    where
        Self: Sized;

    /// Event with all objects, after a list.
    fn snapshot(&self) -> Self::Event;

    /// Event of an unreachable API server: once per loss, and once more if it then refuses us.
    fn down(&self, why: ApiError) -> Self::Event;

    fn up(&self) -> Self::Event;

    /// Notes the progress of follower.
    fn note(&self, _progress: Progress<'_>) {}
}

/// Progress of follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The table is as it was at this version, and is being followed from there.
    Reached(&'a str),
    /// The API server has answered.
    Contact,
    /// The watch failed.
    Broken,
    /// Follower has ended.
    Stopped,
}

/// Lists all objects from scratch; returns their version. Not to be called while they are being followed.
pub async fn list<T: Table>(client: &Client, table: &T) -> Result<String, ApiError> {
    match list_by_watch(client, table).await {
        Err(error) if error.is_not_streamed() => {
            tracing::debug!("The API server does not stream lists ({error}): asking for pages");
            table.begin_list();
            let version = client.list(table.resource(), |object| table.listed(&object)).await?;
            table.end_list();
            Ok(version)
        }
        done => done,
    }
}

async fn list_by_watch<T: Table>(client: &Client, table: &T) -> Result<String, ApiError> {
    let resource = table.resource();
    let mut watch = client.watch(resource, WatchStart::All, MIN_WATCH_DURATION).await?;
    table.begin_list();
    let mut version = None;
    while version.is_none() {
        let next = watch.next(resource, |event| {
            match event {
                Event::Object(EventKind::Bookmark, object) => {
                    if T::Resource::ends_initial_events(&object) {
                        version = Some(T::Resource::version(&object).to_owned());
                    }
                }
                Event::Object(EventKind::Added | EventKind::Modified, object) => {
                    table.listed(&object);
                }
                Event::Object(EventKind::Deleted, object) => {
                    table.deleted(&object, &mut Vec::new());
                }
                Event::Error(status) => return Err(status),
            }
            Ok(())
        });
        match next.await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => return Err(client.watch_error(resource, status)),
            Err(ended) => return Err(client.watch_broke(resource, ended)),
        }
    }
    table.end_list();
    Ok(version.unwrap_or_default())
}

/// Follows all objects from a version on, or from scratch, until the receiver is dropped. Must be called within a
/// tokio runtime.
pub fn follow<T: Table>(
    client: Arc<Client>,
    table: Arc<T>,
    version: Option<String>,
    mut rng: fastrand::Rng,
) -> mpsc::Receiver<T::Event> {
    if let Some(version) = &version {
        table.note(Progress::Reached(version));
    }
    let backoff = RETRY.tries(rng.fork());
    spawn_sender("watch of a resource in the API server", EVENT_QUEUE, |events| async move {
        let mut follower = Follower { client, table, events, version, backoff, rng, down: None };
        match follower.run().await {}
    })
}

struct Follower<T: Table> {
    client: Arc<Client>,
    table: Arc<T>,
    events: mpsc::Sender<T::Event>,
    version: Option<String>,
    backoff: Tries,
    rng: fastrand::Rng,
    /// While the API server is unreachable or refuses us: the status of the refusal, if there is one.
    down: Option<Option<u16>>,
}

impl<T: Table> Drop for Follower<T> {
    fn drop(&mut self) {
        self.table.note(Progress::Stopped);
    }
}

impl<T: Table> Follower<T> {
    async fn run(&mut self) -> Infallible {
        loop {
            let began = Instant::now();
            let mut moves = self.client.moves();
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
            let pause = self.backoff.pause().max(error.retry_after().unwrap_or_default());
            self.report_down(error).await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Lists all objects, or watches them until the server ends the watch.
    async fn step(&mut self) -> Result<(), ApiError> {
        let Some(version) = self.version.clone() else {
            let version = list(&self.client, &*self.table).await?;
            self.report_up().await;
            self.note_version(version);
            let all = self.table.snapshot();
            self.send(all).await;
            return Ok(());
        };
        match self.watch(&version).await {
            Err(error) if error.is_too_old() => {
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
        let (client, table) = (self.client.clone(), self.table.clone());
        let resource = table.resource();
        let lasting = MIN_WATCH_DURATION.mul_f64(1.0 + self.rng.f64());
        let began = Instant::now();
        let mut watch = client.watch(resource, WatchStart::Version(version), lasting).await?;
        self.report_up().await;
        table.note(Progress::Contact);
        loop {
            let (mut events, mut version) = (Vec::new(), None);
            let next = watch.next(resource, |event| {
                let (kind, object) = match event {
                    Event::Object(kind, object) => (kind, object),
                    Event::Error(status) => return Err(status),
                };
                match kind {
                    EventKind::Added | EventKind::Modified => table.put(&object, &mut events),
                    EventKind::Deleted => table.deleted(&object, &mut events),
                    EventKind::Bookmark => {}
                }
                version = Some(T::Resource::version(&object).to_owned());
                Ok(())
            });
            let next = next.await;
            if next.is_ok() {
                table.note(Progress::Contact);
            }
            for event in events {
                self.send(event).await;
            }
            // Only after the events up to there were sent.
            if let Some(version) = version.filter(|version: &String| !version.is_empty()) {
                self.note_version(version);
            }
            match next {
                Ok(Ok(())) => self.backoff.reset(),
                Ok(Err(status)) => return Err(client.watch_error(resource, status)),
                Err(WatchEnd::InTime) => {
                    // A server that shuts down closes what it has just accepted.
                    if began.elapsed() < MIN_WATCH_DURATION {
                        tokio::time::sleep(self.backoff.pause()).await;
                    }
                    return Ok(());
                }
                Err(ended) => return Err(client.watch_broke(resource, ended)),
            }
        }
    }

    fn note_version(&mut self, version: String) {
        self.table.note(Progress::Reached(&version));
        self.version = Some(version);
    }

    /// Reports it once, and again when a server that was unreachable is back and refuses us, which needs a fix.
    async fn report_down(&mut self, error: ApiError) {
        let refused = error.code().filter(|code| matches!(code, 401 | 403));
        let reported = self.down.replace(refused);
        if reported.is_none() || (refused.is_some() && reported != Some(refused)) {
            let down = self.table.down(error);
            self.send(down).await;
        } else {
            tracing::debug!("The API server is still unreachable: {error}");
        }
    }

    async fn report_up(&mut self) {
        if self.down.take().is_some() {
            let up = self.table.up();
            self.send(up).await;
        }
    }

    async fn send(&self, event: T::Event) {
        // A receiver that is gone ends the task.
        let _ = self.events.send(event).await;
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
