//! Rounds of the applier.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_common::{Backoff, RepairPolicy, sleep_until};
use flannel_entries::cloud::{Access, CloudEntry, CloudKey, CloudRoute, Table};
use flannel_wanted::{Comparison, KeyedEntry as _, Requester, Status, StatusPublisher, Wanted};
use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot};

use super::steps::{Step, write};
use super::{Job, left_behind};
use crate::client::{Client, MayForward, TableView};
use crate::pace::Pace;
use crate::{CloudError, Fault, Result};

const POLICY: RepairPolicy =
    RepairPolicy { at_once: 5, calm: Duration::from_secs(600), undone: RETRY, refused: RETRY };
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

pub(super) struct RouteTask<S> {
    pub(super) wanted: Wanted<S, CloudEntry>,
    pub(super) networks: Vec<IpNet>,
    /// Routes that are no longer wanted, and how often removing them has failed.
    pub(super) leaving: Vec<(CloudRoute, u32)>,
    clients: Vec<Arc<Client>>,
    /// Why it is unknown whether this node may forward: logged once.
    doubt: Option<String>,
    last_error: Option<String>,
    pace: Pace,
    /// Whether routes of an earlier daemon have been found.
    knows_the_past: bool,
    /// Something was declared since the last round began.
    pub(super) changed: bool,
    pub(super) comparing: Vec<PendingComparison>,
    pub(super) removed: Vec<String>,
    part: Option<Part>,
    status: StatusPublisher,
    pub(super) directory: Arc<Path>,
    pub(super) rng: fastrand::Rng,
}

pub(super) type Part = Pin<Box<dyn Future<Output = PartResult> + Send>>;

pub(super) struct PendingComparison {
    answer: oneshot::Sender<Comparison>,
    /// The round it waits for has begun: one that was under way does not count.
    begun: bool,
}

pub(super) enum PartResult {
    /// Tables, and whether this node may forward by an access.
    Looked(Vec<TableReading>, Vec<(Arc<Access>, Result<MayForward>)>),
    Written(Vec<(Step, Result<()>)>),
}

pub(super) struct TableReading {
    pub(super) client: Arc<Client>,
    pub(super) table: Table,
    pub(super) view: Result<TableView>,
}

impl<S: Requester> RouteTask<S> {
    pub(super) fn new(status: StatusPublisher, directory: Arc<Path>, seed: u64) -> Self {
        Self {
            wanted: Wanted::new(POLICY),
            networks: Vec::new(),
            leaving: Vec::new(),
            clients: Vec::new(),
            doubt: None,
            last_error: None,
            pace: Pace::default(),
            knows_the_past: false,
            changed: false,
            comparing: Vec::new(),
            removed: Vec::new(),
            part: None,
            status,
            directory,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    pub(super) async fn run(mut self, mut jobs: mpsc::Receiver<Job<S>>) {
        loop {
            let wake = self.begin_if_due(Instant::now());
            self.status.publish(Status::of(&self.wanted));
            tokio::select! {
                job = jobs.recv() => match job {
                    Some(job) => self.carry_out(job),
                    None => return,
                },
                ended = end_if_any(&mut self.part) => self.on_ended(ended),
                () = sleep_until(wake) => {}
            }
        }
    }

    fn carry_out(&mut self, job: Job<S>) {
        let (unwanted, answer) = match job {
            Job::Replace(networks, desired, answer) => {
                self.networks = networks;
                let mut unwanted = self.wanted.replace(desired);
                if !std::mem::replace(&mut self.knows_the_past, true) {
                    unwanted.extend(self.left_behind());
                }
                (unwanted, answer)
            }
            Job::Update(changes, answer) => (self.wanted.update(changes), answer),
            Job::Status(answer) => {
                let _ = answer.send(Status::of(&self.wanted));
                return;
            }
            Job::Report(report) => return report.answer(&self.wanted, |tally| tally),
            Job::Other(never) => match never {},
            Job::Compare(answer) => return self.compare(answer, Instant::now()),
        };
        self.leaving.extend(unwanted.iter().filter_map(|entry| Some((entry.route()?.clone(), 0))));
        self.changed = true;
        let _ = answer.send(Status::of(&self.wanted));
    }

    fn compare(&mut self, answer: oneshot::Sender<Comparison>, now: Instant) {
        if self.wanted.is_empty() && self.leaving.is_empty() {
            let _ = answer.send(Comparison::default());
        } else if let Some(until) = self.pace.quiet_until(now) {
            let left = until.saturating_duration_since(now);
            let why = format!("the cloud was asked too much: it is not asked again for {left:.0?}");
            let _ = answer.send(Comparison { failure: Some(why), ..Comparison::default() });
        } else {
            if self.comparing.is_empty() {
                self.wanted.begin_comparison();
            }
            self.comparing.push(PendingComparison { answer, begun: false });
            self.changed = true;
        }
    }

    fn end_comparing(&mut self, failure: Option<String>, now: Instant) {
        if self.comparing.iter().any(|it| it.begun) {
            let removed = std::mem::take(&mut self.removed);
            let comparison = Comparison { removed, failure, ..self.wanted.end_comparison(now) };
            for it in self.comparing.extract_if(.., |it| it.begun) {
                let _ = it.answer.send(comparison.clone());
            }
            if !self.comparing.is_empty() {
                self.wanted.begin_comparison();
            }
        }
    }

    /// Routes that an earlier daemon has written and that are not wanted any more, as far as that can be told.
    fn left_behind(&self) -> Vec<CloudEntry> {
        let routes = || self.wanted.iter().filter_map(CloudEntry::route);
        let before = left_behind(&self.directory, &self.networks).into_iter().filter_map(|own| {
            let mut route = own.route();
            // No keys are recorded: the current ones are used, if it is the same machine.
            let same = routes().find(|other| other.access.node == route.access.node);
            if let Some(other) = same {
                route.access = other.access.clone();
            }
            let wanted = routes().any(|other| other.key() == route.key());
            (!wanted).then_some(CloudEntry::Route(route))
        });
        before.collect()
    }

    /// Begins a round if it is time for one. Returns when to check again.
    fn begin_if_due(&mut self, now: Instant) -> Option<Instant> {
        if self.part.is_some() || (self.wanted.is_empty() && self.leaving.is_empty()) {
            return None;
        }
        if let Some(until) = self.pace.quiet_until(now) {
            return Some(until);
        }
        self.wanted.wake(now);
        let look = self.pace.next_look.is_none_or(|due| due <= now);
        if !look && !self.changed && !self.wanted.is_dirty() {
            return self.wanted.next_wake().into_iter().chain(self.pace.next_look).min();
        }
        self.changed = false;
        self.comparing.iter_mut().for_each(|it| it.begun = true);
        self.part = Some(self.look());
        None
    }

    fn look(&mut self) -> Part {
        let entries: Vec<CloudEntry> = self.wanted.iter().cloned().collect();
        let leaving = self.leaving.iter().map(|(route, _)| CloudEntry::Route(route.clone()));
        let all: Vec<CloudEntry> = entries.into_iter().chain(leaving).collect();
        self.clients.retain(|client| all.iter().any(|entry| *entry.access() == client.access));
        let mut tables: Vec<(Arc<Client>, Table)> = Vec::new();
        let mut forwardings = Vec::new();
        for entry in all {
            let client = self.client(entry.access());
            match entry {
                CloudEntry::Forwarding(_) => forwardings.push(client),
                CloudEntry::Route(CloudRoute { table, .. }) => {
                    let known = |(other, name): &(Arc<Client>, Table)| {
                        Arc::ptr_eq(other, &client) && *name == table
                    };
                    if !tables.iter().any(known) {
                        tables.push((client, table));
                    }
                }
            }
        }
        Box::pin(async move {
            let mut refusal = None;
            let mut looks = Vec::new();
            for (client, table) in tables {
                let view = unless_throttled(&mut refusal, client.view(&table)).await;
                looks.push(TableReading { client, table, view });
            }
            let mut allowed = Vec::new();
            for client in forwardings {
                let result = unless_throttled(&mut refusal, client.let_forward()).await;
                allowed.push((client.access.clone(), result));
            }
            PartResult::Looked(looks, allowed)
        })
    }

    fn client(&mut self, access: &Arc<Access>) -> Arc<Client> {
        let known = self.clients.iter().find(|client| client.access == *access);
        known.cloned().unwrap_or_else(|| {
            let client = Arc::new(Client::new(access.clone()));
            self.clients.push(client.clone());
            client
        })
    }

    fn on_ended(&mut self, ended: PartResult) {
        self.part = None;
        let now = Instant::now();
        match ended {
            PartResult::Looked(looks, allowed) => {
                let refused = looks.iter().find_map(|look| throttling(&look.view));
                let refused = refused.or_else(|| allowed.iter().find_map(|(_, it)| throttling(it)));
                for (access, result) in allowed {
                    self.on_forwarding(access, result, now);
                }
                if looks.iter().all(|look| look.view.is_ok()) {
                    self.last_error = None;
                }
                let steps = self.plan(&looks, now);
                if refused.is_none() && !steps.is_empty() {
                    self.part = Some(write(steps));
                } else {
                    self.end_round(refused, now);
                }
            }
            PartResult::Written(done) => {
                let refused = done.iter().find_map(|(_, result)| throttling(result));
                for (step, result) in done {
                    self.on_step(step, result, now);
                }
                self.end_round(refused, now);
            }
        }
    }

    fn end_round(&mut self, throttled: Option<CloudError>, now: Instant) {
        let every = self.wanted.iter().map(|entry| entry.access().check_every).min();
        let every = every.unwrap_or(RETRY.most);
        self.end_comparing(throttled.as_ref().map(ToString::to_string), now);
        match throttled {
            Some(error) => {
                let told = error.retry_after;
                let pause = self.pace.throttled(every, told, now, &mut self.rng);
                tracing::warn!("{error}: the cloud is not asked again for {pause:.0?}");
            }
            None => self.pace.ended(every, now, &mut self.rng),
        }
    }

    fn on_forwarding(&mut self, access: Arc<Access>, result: Result<MayForward>, now: Instant) {
        let entry = CloudEntry::Forwarding(access);
        let key = entry.key();
        if self.wanted.get(&key) != Some(&entry) {
            return;
        }
        let doubt = match result {
            Ok(MayForward::Yes) => None,
            Ok(MayForward::Made) => {
                tracing::info!("Allowed {} in the cloud", entry.describe());
                None
            }
            Ok(MayForward::Unknown(why)) => Some(why),
            Err(error) => return self.unseen(&key, &error, now),
        };
        if let Some(why) = doubt.as_ref().filter(|_| self.doubt != doubt) {
            tracing::warn!("{why}");
        }
        self.doubt = doubt;
        self.wanted.succeeded(&key);
    }

    /// Notes that an entry could not be read. What was there a minute ago most likely still is: a provider that is
    /// away for a while makes no node unready.
    pub(super) fn unseen(&mut self, key: &CloudKey, error: &CloudError, now: Instant) {
        let lasting = matches!(error.fault, Fault::NotFound | Fault::Limit | Fault::Refused);
        if lasting || self.wanted.is_good(key) != Some(true) {
            return self.failed(key, error, now);
        }
        let last_error = error.to_string();
        if self.last_error.as_ref() != Some(&last_error) {
            tracing::warn!(
                "The cloud cannot be asked whether its table is as it was: {last_error}; trying again"
            );
            self.last_error = Some(last_error);
        }
    }

    pub(super) fn failed(&mut self, key: &CloudKey, error: &CloudError, now: Instant) {
        // What waits for its next attempt has failed before: reading it meanwhile does not count as one.
        let waits = self.wanted.is_good(key) == Some(false) && !self.wanted.is_marked(key);
        if waits {
            return;
        }
        let words = self.wanted.get(key).map(flannel_wanted::KeyedEntry::describe);
        let retry = self.wanted.failed(key, error.to_string(), now, &mut self.rng);
        if let (Some((pause, true)), Some(words)) = (retry, words) {
            tracing::error!("Cannot keep the {words}: {error}; next try in {pause:.0?}");
        }
    }
}

/// Asks a cloud, unless it has refused: once throttled, nothing more is asked.
pub(super) async fn unless_throttled<T>(
    refusal: &mut Option<CloudError>,
    question: impl Future<Output = Result<T>>,
) -> Result<T> {
    if let Some(error) = refusal {
        return Err(error.clone());
    }
    let result = question.await;
    *refusal = throttling(&result);
    result
}

fn throttling<T>(result: &Result<T>) -> Option<CloudError> {
    result.as_ref().err().filter(|error| error.fault == Fault::Throttled).cloned()
}

async fn end_if_any(part: &mut Option<Part>) -> PartResult {
    match part {
        Some(part) => part.await,
        None => std::future::pending().await,
    }
}
