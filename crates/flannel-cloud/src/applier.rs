//! Keeps this node's routes in a cloud's table: the applier.
//!
//! A task, for it does nothing but wait for answers. A round has two parts: all tables that matter are looked
//! at, then what differs is written. What is declared meanwhile is heard at once and seen to in the next round.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flannel_common::{Backoff, RepairPolicy};
use flannel_wanted::{
    Applier, Comparison, Desired, EntryQuery, EntryReport, KeyedEntry as _, Repair, Requester,
    Status, Stopped, Wanted,
};
use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::Instrument as _;

use crate::client::{Client, Found, MayForward, View};
use crate::pace::Pace;
use crate::plan::{Why, compare, unwanted};
use crate::record::{self, OwnRoute};
use crate::{Access, CloudEntry, CloudError, CloudKey, CloudRoute, Fault, Forwarding, Table};

const POLICY: RepairPolicy =
    RepairPolicy { at_once: 5, calm: Duration::from_secs(600), undone: RETRY, refused: RETRY };
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));
/// How often it is tried to take away a route that is no longer wanted.
const MOST_REMOVING: u32 = 10;
const QUEUE: usize = 256;
const STOPPED: Stopped = Stopped("applier of cloud routes");

/// A handle. The task is started with the first wish: most networks have none.
pub struct CloudApplier<S> {
    jobs: Arc<Mutex<Option<mpsc::Sender<Job<S>>>>>,
    status: Arc<watch::Sender<Status>>,
    /// Where it is noted which routes are this node's.
    directory: Arc<Path>,
    seed: u64,
}

impl<S> Clone for CloudApplier<S> {
    fn clone(&self) -> Self {
        let Self { jobs, status, directory, seed } = self;
        Self {
            jobs: jobs.clone(),
            status: status.clone(),
            directory: directory.clone(),
            seed: *seed,
        }
    }
}

enum Job<S> {
    Replace(Vec<IpNet>, Desired<S, CloudEntry>, oneshot::Sender<Status>),
    Update(Desired<S, CloudEntry>, oneshot::Sender<Status>),
    Status(oneshot::Sender<Status>),
    Entries(EntryQuery<S>, oneshot::Sender<Vec<EntryReport<S>>>),
    Compare(oneshot::Sender<Comparison>),
}

impl<S: Requester> CloudApplier<S> {
    pub fn new(seed: u64, directory: PathBuf) -> Self {
        let status = Arc::new(watch::Sender::new(Status::default()));
        Self { jobs: Arc::default(), status, directory: directory.into(), seed }
    }

    /// To the task, if it has been started or is to be.
    fn jobs(&self, start: bool) -> Option<mpsc::Sender<Job<S>>> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_none() && start {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let task = RouteTask::new(self.status.clone(), self.directory.clone(), self.seed);
            tokio::spawn(task.run(receiver).in_current_span());
            *jobs = Some(sender);
        }
        jobs.clone()
    }

    /// Without a task, and without need for one, nothing is wanted.
    async fn ask<T: Default>(
        &self,
        start: bool,
        job: impl FnOnce(oneshot::Sender<T>) -> Job<S>,
    ) -> Result<T, Stopped> {
        let Some(jobs) = self.jobs(start) else { return Ok(T::default()) };
        let (answer, receive) = oneshot::channel();
        jobs.send(job(answer)).await.map_err(|_| STOPPED)?;
        receive.await.map_err(|_| STOPPED)
    }
}

impl<S: Requester> Applier<S> for CloudApplier<S> {
    type Entry = CloudEntry;
    /// The networks, now and before: what leads to this node inside of them is ours.
    type Ownership = Vec<IpNet>;

    async fn replace(
        &self,
        networks: Vec<IpNet>,
        desired: Desired<S, CloudEntry>,
    ) -> Result<Status, Stopped> {
        let start = !desired.is_empty() || !left_behind(&self.directory, &networks).is_empty();
        self.ask(start, |answer| Job::Replace(networks, desired, answer)).await
    }

    async fn update(&self, changes: Desired<S, CloudEntry>) -> Result<Status, Stopped> {
        let any = changes.iter().any(|(_, entries)| !entries.is_empty());
        self.ask(any, |answer| Job::Update(changes, answer)).await
    }

    async fn status(&self) -> Result<Status, Stopped> {
        self.ask(false, Job::Status).await
    }

    async fn entries(&self, query: EntryQuery<S>) -> Result<Vec<EntryReport<S>>, Stopped> {
        self.ask(false, |answer| Job::Entries(query, answer)).await
    }

    async fn compare(&self) -> Result<Comparison, Stopped> {
        self.ask(false, Job::Compare).await
    }

    fn watch_status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Routes stay: pods go on while the daemon is away.
    async fn stop(&self) {}
}

/// Routes that a daemon before this one has written.
fn left_behind(directory: &Path, networks: &[IpNet]) -> Vec<OwnRoute> {
    let mut own = record::recorded(directory);
    own.retain(|route| networks.iter().any(|network| network.contains(&route.destination)));
    own
}

struct RouteTask<S> {
    wanted: Wanted<S, CloudEntry>,
    networks: Vec<IpNet>,
    /// Wanted no more, and how often taking them away has failed.
    leaving: Vec<(CloudRoute, u32)>,
    clients: Vec<Arc<Client>>,
    /// What cannot be known of forwarding, and why the cloud could not be asked: said once.
    doubt: Option<String>,
    last_error: Option<String>,
    pace: Pace,
    /// What was left behind is among those that leave.
    knows_the_past: bool,
    /// Something was declared since the last round began.
    changed: bool,
    /// Who has asked for a comparison and waits for the end of a round.
    comparing: Vec<Comparing>,
    /// What was taken away meanwhile.
    removed: Vec<String>,
    part: Option<Part>,
    status: Arc<watch::Sender<Status>>,
    directory: Arc<Path>,
    rng: fastrand::Rng,
}

/// A part of a round that is under way.
type Part = Pin<Box<dyn Future<Output = Ended> + Send>>;

struct Comparing {
    answer: oneshot::Sender<Comparison>,
    /// The round it waits for has begun: one that was under way has seen what was, not what is.
    begun: bool,
}

enum Ended {
    Looked(Vec<Look>, Vec<(Forwarding, Result<MayForward, CloudError>)>),
    Written(Vec<(Step, Result<(), CloudError>)>),
}

/// A table, or why it could not be seen.
struct Look {
    client: Arc<Client>,
    table: Table,
    view: Result<View, CloudError>,
}

enum Step {
    Put { client: Arc<Client>, route: CloudRoute, table: String, existing: Option<Found> },
    Remove { client: Arc<Client>, table: String, found: Found, why: Why },
}

impl<S: Requester> RouteTask<S> {
    fn new(status: Arc<watch::Sender<Status>>, directory: Arc<Path>, seed: u64) -> Self {
        Self {
            wanted: Wanted::new(POLICY),
            networks: Vec::new(),
            leaving: Vec::new(),
            clients: Vec::new(),
            doubt: None,
            last_error: None,
            pace: Pace::new(),
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

    async fn run(mut self, mut jobs: mpsc::Receiver<Job<S>>) {
        loop {
            let wake = self.begin_if_due(Instant::now());
            self.tell();
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
                let _ = answer.send(self.current());
                return;
            }
            Job::Entries(query, answer) => {
                let _ = answer.send(self.wanted.report(&query, Instant::now()));
                return;
            }
            Job::Compare(answer) => return self.compare(answer, Instant::now()),
        };
        self.leaving.extend(unwanted.iter().filter_map(|entry| Some((entry.route()?.clone(), 0))));
        self.changed = true;
        let _ = answer.send(self.current());
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
            self.comparing.push(Comparing { answer, begun: false });
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

    /// What a daemon before this one has written and is not wanted any more, as far as that can be told.
    fn left_behind(&self) -> Vec<CloudEntry> {
        let routes = || self.wanted.iter().filter_map(|(_, entry)| entry.route());
        let before = left_behind(&self.directory, &self.networks).into_iter().filter_map(|own| {
            let mut route = own.route();
            // No keys are noted: those of today are used, if it is the same machine.
            let same = routes().find(|other| other.access.node == route.access.node);
            if let Some(other) = same {
                route.access = other.access.clone();
            }
            let wanted = routes().any(|other| other.key() == route.key());
            (!wanted).then_some(CloudEntry::Route(route))
        });
        before.collect()
    }

    fn current(&self) -> Status {
        Status::of(&self.wanted)
    }

    fn tell(&self) {
        let status = self.current();
        self.status.send_if_modified(|old| {
            let changed = *old != status;
            *old = status;
            changed
        });
    }

    /// Begins a round if it is time for one. Returns when to look again.
    fn begin_if_due(&mut self, now: Instant) -> Option<Instant> {
        if self.part.is_some() || (self.wanted.is_empty() && self.leaving.is_empty()) {
            return None;
        }
        if let Some(until) = self.pace.quiet_until(now) {
            return Some(until);
        }
        self.wanted.wake(now);
        let look = self.pace.next_look().is_none_or(|due| due <= now);
        if !look && !self.changed && !self.wanted.is_dirty() {
            return self.wanted.next_wake().into_iter().chain(self.pace.next_look()).min();
        }
        self.changed = false;
        self.comparing.iter_mut().for_each(|it| it.begun = true);
        self.part = Some(self.look());
        None
    }

    /// The first part: what there is.
    fn look(&mut self) -> Part {
        let entries: Vec<CloudEntry> = self.wanted.iter().map(|(_, entry)| entry.clone()).collect();
        let leaving = self.leaving.iter().map(|(route, _)| CloudEntry::Route(route.clone()));
        let all: Vec<CloudEntry> = entries.into_iter().chain(leaving).collect();
        self.clients.retain(|client| all.iter().any(|entry| entry.access() == client.access()));
        let mut tables: Vec<(Arc<Client>, Table)> = Vec::new();
        let mut forwardings = Vec::new();
        for entry in all {
            let client = self.client(entry.access());
            match entry {
                CloudEntry::Forwarding(forwarding) => forwardings.push((client, forwarding)),
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
            let mut refusal: Option<CloudError> = None;
            let mut looks = Vec::new();
            for (client, table) in tables {
                // Once it is too much, no more is asked.
                let view = match &refusal {
                    Some(error) => Err(error.clone()),
                    None => client.view(&table).await,
                };
                refusal = refusal.or_else(|| throttling(&view));
                looks.push(Look { client, table, view });
            }
            let mut allowed = Vec::new();
            for (client, forwarding) in forwardings {
                let result = match &refusal {
                    Some(error) => Err(error.clone()),
                    None => client.let_forward().await,
                };
                refusal = refusal.or_else(|| throttling(&result));
                allowed.push((forwarding, result));
            }
            Ended::Looked(looks, allowed)
        })
    }

    fn client(&mut self, access: &Arc<Access>) -> Arc<Client> {
        let known = self.clients.iter().find(|client| client.access() == access);
        known.cloned().unwrap_or_else(|| {
            let client = Arc::new(Client::new(access.clone()));
            self.clients.push(client.clone());
            client
        })
    }

    fn on_ended(&mut self, ended: Ended) {
        self.part = None;
        let now = Instant::now();
        match ended {
            Ended::Looked(looks, allowed) => {
                let refused = looks.iter().find_map(|look| throttling(&look.view));
                let refused = refused.or_else(|| allowed.iter().find_map(|(_, it)| throttling(it)));
                for (forwarding, result) in allowed {
                    self.on_forwarding(forwarding, result, now);
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
            Ended::Written(done) => {
                let refused = done.iter().find_map(|(_, result)| throttling(result));
                for (step, result) in done {
                    self.on_step(step, result, now);
                }
                self.end_round(refused, now);
            }
        }
    }

    fn end_round(&mut self, throttled: Option<CloudError>, now: Instant) {
        let every = self.wanted.iter().map(|(_, entry)| entry.access().check_every).min();
        let every = every.unwrap_or(RETRY.most);
        self.end_comparing(throttled.as_ref().map(ToString::to_string), now);
        match throttled {
            Some(error) => {
                let pause = self.pace.throttled(every, now, &mut self.rng);
                tracing::warn!("{error}: the cloud is not asked again for {pause:.0?}");
            }
            None => self.pace.ended(every, now, &mut self.rng),
        }
    }

    fn on_forwarding(
        &mut self,
        forwarding: Forwarding,
        result: Result<MayForward, CloudError>,
        now: Instant,
    ) {
        let entry = CloudEntry::Forwarding(forwarding);
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

    /// The second part, out of what was seen and what is wanted by now.
    fn plan(&mut self, looks: &[Look], now: Instant) -> Vec<Step> {
        self.wanted.begin_resync();
        let mut steps = Vec::new();
        let routes: Vec<CloudRoute> =
            self.wanted.iter().filter_map(|(_, entry)| entry.route().cloned()).collect();
        // What is wanted in each table, by its identifier.
        let mut kept: BTreeMap<&str, BTreeSet<IpNet>> = BTreeMap::new();
        for route in &routes {
            let Some(look) = look_of(looks, route) else { continue };
            let view = match &look.view {
                Ok(view) => view,
                Err(error) => {
                    self.unseen(&route.key(), error, now);
                    continue;
                }
            };
            kept.entry(&view.id).or_default().insert(route.destination);
            steps.extend(self.plan_route(route, look, view, now));
        }
        // While a table could not be seen, it may be any of the others: nothing is taken away.
        if looks.iter().any(|look| look.view.is_err()) {
            self.count_failures(looks);
            return steps;
        }
        let mut seen = BTreeSet::new();
        for Look { client, view, .. } in looks {
            let Ok(view) = view else { continue };
            if !seen.insert(&view.id) {
                continue;
            }
            let of_client = |route: &&CloudRoute| route.access == *client.access();
            let leaving = self.leaving.iter().map(|(route, _)| route);
            let own = routes.iter().chain(leaving).filter(of_client);
            let own: BTreeSet<&str> = own.map(|route| route.next_hop.as_str()).collect();
            let wanted = kept.entry(&view.id).or_default();
            for (found, why) in unwanted(view, &self.networks, &own, wanted) {
                let (client, table, found) = (client.clone(), view.id.clone(), found.clone());
                steps.push(Step::Remove { client, table, found, why });
            }
        }
        self.see_off(looks, &steps, &kept);
        steps
    }

    fn plan_route(
        &mut self,
        route: &CloudRoute,
        look: &Look,
        view: &View,
        now: Instant,
    ) -> Option<Step> {
        let key = route.key();
        let own = OwnRoute::new(route, &view.id);
        if let Err(error) = own.write(&self.directory) {
            tracing::warn!(
                "Cannot note below {} that {own} is ours: {error}",
                self.directory.display()
            );
        }
        let existing = match compare(route, view) {
            Ok(()) => {
                self.wanted.seen(&key);
                return None;
            }
            Err(existing) => existing,
        };
        let found = match existing {
            Some(Found { next_hop, state, .. }) => format!("leads to {next_hop} ({state:?})"),
            None => "is gone".to_owned(),
        };
        if self.wanted.is_good(&key) == Some(true) {
            match self.wanted.disturbed(&key, now, &mut self.rng) {
                Repair::Now => tracing::warn!("The {route} {found}: writing it anew"),
                Repair::Later(pause) => tracing::warn!(
                    "The {route} {found}, again: somebody keeps changing it; writing it anew in {pause:.0?}"
                ),
                Repair::AlreadyDue => {}
            }
        }
        self.wanted.is_marked(&key).then(|| Step::Put {
            client: look.client.clone(),
            route: route.clone(),
            table: view.id.clone(),
            existing: existing.cloned(),
        })
    }

    /// Forgets those that were to go and are gone. What is still to be taken away is among the steps.
    fn see_off(&mut self, looks: &[Look], steps: &[Step], kept: &BTreeMap<&str, BTreeSet<IpNet>>) {
        let directory = &self.directory;
        self.leaving.retain(|(route, _)| {
            let view = look_of(looks, route).and_then(|look| look.view.as_ref().ok());
            let Some(view) = view else { return true };
            let goes = |step: &Step| {
                matches!(step, Step::Remove { table, found, .. }
                    if *table == view.id && found.destination == route.destination)
            };
            if steps.iter().any(goes) {
                return true;
            }
            // It may be one that is wanted, in a table that was named before and is detected now.
            let wanted = kept.get(view.id.as_str());
            if wanted.is_none_or(|wanted| !wanted.contains(&route.destination)) {
                record::forget(directory, route.destination, &view.id);
            }
            false
        });
    }

    fn count_failures(&mut self, looks: &[Look]) {
        self.leaving.retain_mut(|(route, tries)| {
            let error = look_of(looks, route).and_then(|look| look.view.as_ref().err());
            error.is_none_or(|error| may_go_on(route, tries, error, &self.directory))
        });
    }

    fn on_step(&mut self, step: Step, result: Result<(), CloudError>, now: Instant) {
        match step {
            Step::Put { route, table, .. } => {
                let key = route.key();
                if self.wanted.get(&key) != Some(&CloudEntry::Route(route.clone())) {
                    self.changed = true;
                    return;
                }
                match result {
                    Ok(()) => {
                        tracing::info!("Wrote the {route}: {table}");
                        self.wanted.succeeded(&key);
                    }
                    Err(error) => self.failed(&key, &error, now),
                }
            }
            Step::Remove { table, found, why, .. } => {
                let Found { destination, next_hop, .. } = &found;
                let what =
                    format!("the route {destination} to {next_hop} of the route table {table}");
                match result {
                    Ok(()) => {
                        tracing::info!("Removed {what}: {why}");
                        if !self.comparing.is_empty() {
                            self.removed.push(what);
                        }
                        record::forget(&self.directory, *destination, &table);
                        self.leaving.retain(|(route, _)| route.destination != *destination);
                    }
                    Err(error) => {
                        let directory = self.directory.clone();
                        let mut known = false;
                        self.leaving.retain_mut(|(route, tries)| {
                            let this = route.destination == *destination;
                            known |= this;
                            !this || may_go_on(route, tries, &error, &directory)
                        });
                        if !known {
                            tracing::warn!("Cannot remove {what} ({why}): {error}");
                        }
                    }
                }
            }
        }
    }

    /// It could not be seen. What was there a minute ago most likely still is: a provider that is away for a
    /// while makes no node unready.
    fn unseen(&mut self, key: &CloudKey, error: &CloudError, now: Instant) {
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

    fn failed(&mut self, key: &CloudKey, error: &CloudError, now: Instant) {
        // What waits for its time has failed before: that it was looked at meanwhile is no new try.
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

/// Whether taking a route away is tried again.
fn may_go_on(route: &CloudRoute, tries: &mut u32, error: &CloudError, directory: &Path) -> bool {
    if error.fault == Fault::Throttled {
        return true;
    }
    *tries += 1;
    let more = *tries < MOST_REMOVING;
    if *tries == 1 || !more {
        let then =
            if more { "trying again" } else { "take it away by hand, or by flannelctl cleanup" };
        tracing::error!("Cannot remove the {route}, which is wanted no more: {error}; {then}");
    }
    if !more && error.fault == Fault::NotFound {
        // The table itself is gone.
        if let Table::Named(table) = &route.table {
            record::forget(directory, route.destination, table);
        }
    }
    more
}

fn look_of<'a>(looks: &'a [Look], route: &CloudRoute) -> Option<&'a Look> {
    looks.iter().find(|look| *look.client.access() == route.access && look.table == route.table)
}

fn throttling<T>(result: &Result<T, CloudError>) -> Option<CloudError> {
    result.as_ref().err().filter(|error| error.fault == Fault::Throttled).cloned()
}

fn write(steps: Vec<Step>) -> Part {
    Box::pin(async move {
        let mut done = Vec::new();
        let mut refusal: Option<CloudError> = None;
        for step in steps {
            let result = match (&refusal, &step) {
                (Some(error), _) => Err(error.clone()),
                (None, Step::Put { client, route, table, existing }) => {
                    client.put(table, route, existing.as_ref()).await
                }
                (None, Step::Remove { client, table, found, .. }) => {
                    client.remove(table, found).await
                }
            };
            refusal = refusal.or_else(|| throttling(&result));
            done.push((step, result));
        }
        Ended::Written(done)
    })
}

async fn end_if_any(part: &mut Option<Part>) -> Ended {
    match part {
        Some(part) => part.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake.into()).await,
        None => std::future::pending().await,
    }
}
