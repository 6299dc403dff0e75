//! The applier: keeps charon running, with everything that is wanted loaded.
//!
//! charon negotiates with other nodes by itself, and retries for ever. What it does not notice is noticed here: that
//! it has itself ended, that somebody removed a connection, that the kernel has lost a tunnel or holds one that
//! nobody knows. The kernel reports a packet that finds no tunnel; the rest is checked every few seconds.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use flannel_common::{Backoff, RepairPolicy, Work, Worker};
use flannel_entries::ipsec::{ConnectionName, IpsecEntry, IpsecKey};
use flannel_netlink::{Protocol, Socket, messages, xfrm};
use flannel_wanted::{
    Applier, COMMAND_QUEUE, KeyedEntry, Repair, Requester, Status, StatusPublisher, Wanted,
    WorkerHandle,
};
use ipnet::IpNet;
use tokio::sync::oneshot;

use crate::charon::{self, Record};
use crate::messages::{connection_message, secret_message};
use crate::tunnels::{self, IkeSession, TunnelActions, TunnelHistory};
use crate::vici::{Message, Result, Vici};

const POLICY: RepairPolicy = RepairPolicy {
    at_once: 3,
    calm: Duration::from_secs(60),
    undone: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
};
/// Time for charon to start: it loads its plugins first.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const START_POLL: Duration = Duration::from_millis(50);
/// Interval between two checks; longer if a check takes long.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(30);
const PAUSE_PER_WORK: u32 = 50;
/// Interval after something that is likely to have changed.
const CHECK_SOON_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Ipsec<S> {
    worker: WorkerHandle<S, IpsecEntry, Vec<IpNet>, Stop>,
    directory: PathBuf,
}

/// Request to do at once what is to be done.
type Stop = oneshot::Sender<()>;
type Job<S> = flannel_wanted::Command<S, IpsecEntry, Vec<IpNet>, Stop>;

impl<S: Requester> Ipsec<S> {
    /// Makes the applier. `directory` holds the record of flannel's charon.
    pub fn new(directory: PathBuf, seed: u64) -> Self {
        let of = directory.clone();
        let worker = WorkerHandle::lazy("keeper of charon", move |status| {
            Worker::start("ipsec", COMMAND_QUEUE, move || CharonWork::new(of, status, seed))
        });
        Self { worker, directory }
    }
}

impl<S: Requester> Applier for Ipsec<S> {
    type Requester = S;
    type Entry = IpsecEntry;
    /// The pod networks that are ours: connections between their subnets that nobody wants are removed.
    type Ownership = Vec<IpNet>;
    type Other = Stop;

    fn handle(&self) -> &WorkerHandle<S, IpsecEntry, Vec<IpNet>, Stop> {
        &self.worker
    }

    fn has_leftovers(&self, networks: &Vec<IpNet>) -> bool {
        Record::read(&self.directory).is_some_and(|record| record.is_of(networks))
    }

    /// charon goes on by itself; everything unwanted has been removed when this returns.
    async fn stop(&self) {
        let _ = self.worker.ask(Job::Other).await;
    }
}

struct CharonWork<S> {
    directory: PathBuf,
    networks: Vec<IpNet>,
    wanted: Wanted<S, IpsecEntry>,
    gone: BTreeSet<IpsecKey>,
    /// Nothing is wanted any more: everything of ours is to go.
    remove_everything: bool,
    charon: Option<Vici>,
    /// The process, if it was started by this one: it must be waited for.
    child: Option<Child>,
    starting: Option<Instant>,
    acquires: Option<Socket>,
    history: TunnelHistory,
    last_check: Option<Instant>,
    next_check: Option<Instant>,
    status: StatusPublisher,
    rng: fastrand::Rng,
}

impl<S: Requester> Work for CharonWork<S> {
    type Command = Job<S>;

    fn carry_out(&mut self, job: Job<S>) {
        let (unwanted, answer) = match job {
            Job::Replace(networks, desired, answer) => {
                self.networks = networks;
                self.remove_everything = desired.is_empty();
                (self.wanted.replace(desired), answer)
            }
            Job::Update(changes, answer) => (self.wanted.update(changes), answer),
            Job::Status(answer) => (Vec::new(), answer),
            Job::Report(report) => return report.answer(&self.wanted, |tally| tally),
            Job::Compare(answer) => {
                self.wanted.begin_comparison();
                self.next_check = self.next_check.map(|_| Instant::now());
                // The first tick checks; the second adds what was missing.
                self.tick();
                self.tick();
                let _ = answer.send(self.wanted.end_comparison(Instant::now()));
                return;
            }
            Job::Other(answer) => {
                self.tick();
                let _ = answer.send(());
                return;
            }
        };
        self.gone.extend(unwanted.iter().map(KeyedEntry::key));
        let _ = answer.send(Status::of(&self.wanted));
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.wanted.wake(now);
        if self.received_acquire() {
            let soonest = self.last_check.map_or(now, |last| last + CHECK_SOON_INTERVAL);
            self.next_check = self.next_check.map(|next| next.min(soonest));
        }
        if std::mem::take(&mut self.remove_everything) {
            self.end();
        } else if self.wanted.get(&IpsecKey::Daemon).is_some() {
            self.keep(now);
        }
        self.status.publish(Status::of(&self.wanted));
    }

    fn next_wake(&self) -> Option<Instant> {
        let starting = self.starting.map(|_| Instant::now() + START_POLL);
        let lost = self.charon.is_none() && self.wanted.is_marked(&IpsecKey::Daemon);
        let lost = lost.then(Instant::now).filter(|_| starting.is_none());
        let check = self.next_check.filter(|_| self.charon.is_some());
        [starting, lost, check, self.wanted.next_wake()].into_iter().flatten().min()
    }

    /// Readable when charon has ended, or a packet finds no tunnel.
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        let charon = self.charon.as_ref().map(|charon| charon.as_fd());
        charon.into_iter().chain(self.acquires.as_ref().map(|socket| socket.as_fd())).collect()
    }
}

impl<S: Requester> CharonWork<S> {
    fn new(directory: PathBuf, status: StatusPublisher, seed: u64) -> Self {
        Self {
            directory,
            networks: Vec::new(),
            wanted: Wanted::new(POLICY),
            gone: BTreeSet::new(),
            remove_everything: false,
            charon: None,
            child: None,
            starting: None,
            acquires: None,
            history: TunnelHistory::default(),
            last_check: None,
            next_check: None,
            status,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    fn keep(&mut self, now: Instant) {
        if self.charon.as_ref().is_some_and(Vici::has_ended) {
            self.lost("it has ended", false, now);
        }
        let is_new = self.charon.is_none();
        if is_new && !self.is_running(now) {
            return;
        }
        let mut kept = self.load(is_new, now);
        if kept.is_ok() && self.next_check.is_some_and(|due| due <= now) {
            kept = self.check(now);
        }
        if let Err(error) = kept {
            let hangs = error.is_silence();
            self.lost(error, hangs, now);
        }
    }

    /// Finds charon, or starts it. Returns whether it answers.
    fn is_running(&mut self, now: Instant) -> bool {
        match (charon::connect(), self.starting) {
            (Ok(vici), starting) => {
                self.starting = None;
                self.connected(vici, starting.is_some(), now);
                return true;
            }
            (Err(_), Some(since)) => {
                let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
                let error = match ended {
                    Some(status) => charon::ended_at_once(status),
                    None if since.elapsed() > START_TIMEOUT => {
                        charon::does_not_listen(START_TIMEOUT)
                    }
                    None => return false,
                };
                self.kill_child();
                self.starting = None;
                self.failed(&IpsecKey::Daemon, error, now);
            }
            (Err(_), None) if self.wanted.is_marked(&IpsecKey::Daemon) => {
                self.reap();
                // One that runs and does not answer keeps another from starting: somebody has removed its socket, as
                // a second charon does before it finds that there is a first.
                if let Some(record) = Record::read(&self.directory) {
                    tracing::warn!("charon is running but does not listen: restarting it");
                    record.end();
                }
                match charon::start() {
                    Ok(child) => {
                        if let Err(error) = Record::write(&self.directory, &child, &self.networks) {
                            tracing::warn!("cannot note that charon was started: {error}");
                        }
                        self.child = Some(child);
                        self.starting = Some(now);
                    }
                    Err(error) => self.failed(&IpsecKey::Daemon, error, now),
                }
            }
            // It waits for its next attempt.
            (Err(_), None) => {}
        }
        false
    }

    fn connected(&mut self, vici: Vici, started: bool, now: Instant) {
        if started {
            let pid = self.child.as_ref().map(Child::id).unwrap_or_default();
            tracing::info!("charon runs (process {pid})");
        } else {
            tracing::info!("charon runs already");
        }
        self.charon = Some(vici);
        self.wanted.succeeded(&IpsecKey::Daemon);
        self.next_check = Some(now);
        if self.acquires.is_none() {
            let opened = Socket::open(Protocol::Xfrm);
            match opened.and_then(|it| it.join(xfrm::ACQUIRE_GROUP).map(|()| it)) {
                Ok(socket) => self.acquires = Some(socket),
                Err(error) => {
                    tracing::warn!("cannot listen for packets that have no tunnel: {error}");
                }
            }
        }
    }

    /// Notes that charon does not answer any more. `hangs` tells that it has not ended.
    fn lost(&mut self, why: impl Display, hangs: bool, now: Instant) {
        if self.charon.take().is_none() {
            return;
        }
        if let Some(record) = Record::read(&self.directory).filter(|_| hangs) {
            record.end();
        }
        let ended = self.reap();
        let pause = match self.wanted.disturbed(&IpsecKey::Daemon, now, &mut self.rng) {
            Repair::Later(pause) => format!("in {pause:.0?}, because it did so before"),
            Repair::Now | Repair::AlreadyDue => "now".to_owned(),
        };
        let status = ended.map(|status| format!(" ({status})")).unwrap_or_default();
        tracing::warn!("charon: {why}{status}; starting it again {pause}");
    }

    fn reap(&mut self) -> Option<std::process::ExitStatus> {
        // It closes its socket a moment before it ends, and on a busy machine that moment is long.
        for _ in 0..200 {
            match self.child.as_mut()?.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Ok(Some(status)) => {
                    self.child = None;
                    return Some(status);
                }
                Err(_) => break,
            }
        }
        None
    }

    /// Kills the child and waits for it, however long a busy machine takes: without that it stays as a zombie.
    fn kill_child(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn failed(&mut self, key: &IpsecKey, error: impl Display, now: Instant) {
        let retry = self.wanted.failed(key, error.to_string(), now, &mut self.rng);
        match (self.wanted.get(key), retry) {
            (Some(IpsecEntry::Daemon), Some((pause, true))) => {
                tracing::error!("{error}; next try in {pause:.0?}");
            }
            (Some(entry), Some((pause, true))) => {
                tracing::error!("{}: {error}; next try in {pause:.0?}", entry.describe());
            }
            _ => {}
        }
    }

    /// Loads what is wanted into charon, and removes what is not. `is_new` tells that it has nothing loaded.
    fn load(&mut self, is_new: bool, now: Instant) -> Result<()> {
        let Some(vici) = &mut self.charon else { return Ok(()) };
        while let Some(key) = self.gone.pop_first() {
            if self.wanted.get(&key).is_none() {
                charon::unload(vici, &key)?;
            }
        }
        let keys: Vec<IpsecKey> = if is_new {
            self.wanted.iter().map(KeyedEntry::key).collect()
        } else {
            let batch = self.wanted.batch();
            self.wanted.entries(&batch).map(KeyedEntry::key).collect()
        };
        for key in &keys {
            let Some(vici) = &mut self.charon else { return Ok(()) };
            let (name, message) = match self.wanted.get(key) {
                None | Some(IpsecEntry::Daemon) => continue,
                Some(IpsecEntry::Secret(secret)) => ("load-shared", secret_message(secret)),
                Some(IpsecEntry::Connection(it)) => ("load-conn", connection_message(it)),
            };
            match vici.command(name, &message) {
                Ok(_) => {
                    self.wanted.succeeded(key);
                    if let IpsecKey::Connection(name) = key {
                        self.history.requested(name, now);
                    }
                }
                Err(error) if error.is_refusal() => self.failed(key, error, now),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn received_acquire(&mut self) -> bool {
        let mut heard = false;
        let Some(socket) = &mut self.acquires else { return false };
        // An overflow means that there were many.
        while let Ok(datagram) = socket.receive_now() {
            heard |= messages(datagram).flatten().any(xfrm::is_acquire);
        }
        heard
    }

    fn check(&mut self, now: Instant) -> Result<()> {
        let Some(vici) = &mut self.charon else { return Ok(()) };
        let begin = Instant::now();
        self.last_check = Some(now);
        let loaded: BTreeSet<ConnectionName> = charon::connections(vici)?.into_iter().collect();
        let owners: BTreeSet<_> = charon::secrets(vici)?.into_iter().collect();
        let ours = |name: &ConnectionName| is_within(&self.networks, name);
        for name in loaded.iter().filter(|name| ours(name)) {
            let key = IpsecKey::Connection(name.clone());
            if self.wanted.get(&key).is_none() {
                tracing::info!("the ipsec connection {name} is no longer needed: removed");
                charon::unload(vici, &key)?;
            }
        }
        for owner in &owners {
            let key = IpsecKey::Secret(*owner);
            let foreign = |name: &ConnectionName| !ours(name) && name.remote == *owner;
            if self.wanted.get(&key).is_none() && !loaded.iter().any(foreign) {
                charon::unload(vici, &key)?;
            }
        }
        let sessions = IkeSession::list(vici)?;
        let missing: Vec<IpsecKey> = self
            .wanted
            .iter()
            .map(KeyedEntry::key)
            .filter(|key| match key {
                IpsecKey::Daemon => false,
                IpsecKey::Secret(owner) => !owners.contains(owner),
                IpsecKey::Connection(name) => !loaded.contains(name),
            })
            .collect();
        for key in missing {
            if self.wanted.disturbed(&key, now, &mut self.rng) == Repair::Now
                && let Some(entry) = self.wanted.get(&key)
            {
                tracing::info!(
                    "{}: somebody removed it from charon; added again",
                    entry.describe()
                );
            }
        }
        self.repair_tunnels(&loaded, &sessions, now)?;
        let pause = begin.elapsed() * PAUSE_PER_WORK;
        let pause = pause.clamp(CHECK_INTERVAL, MAX_CHECK_INTERVAL);
        self.next_check = Some(now + if self.wanted.is_dirty() { Duration::ZERO } else { pause });
        Ok(())
    }

    /// Requests tunnels that are missing, and removes those that nobody knows.
    fn repair_tunnels(
        &mut self,
        loaded: &BTreeSet<ConnectionName>,
        sessions: &[IkeSession],
        now: Instant,
    ) -> Result<()> {
        let Some(vici) = &mut self.charon else { return Ok(()) };
        // Without the kernel's state nothing can be decided.
        let Ok(states) = tunnels::states() else { return Ok(()) };
        // charon requests one by itself when it is loaded.
        let is_wanted = |name: &&ConnectionName| {
            self.wanted.get(&IpsecKey::Connection((*name).clone())).is_some()
        };
        let wanted: BTreeSet<ConnectionName> = loaded.iter().filter(is_wanted).cloned().collect();
        let TunnelActions { missing, lost, stale } =
            self.history.decide(&wanted, sessions, states, now);
        for id in lost {
            tracing::warn!(
                "the kernel has lost a tunnel that charon still has ({id}): making it again"
            );
            let child =
                Message::default().text("child-id", id).text("force", "yes").text("timeout", "-1");
            vici.try_command("terminate", &child)?;
        }
        for name in missing {
            tracing::info!(
                "there is no tunnel to {} at {}: asking for one",
                name.remote_subnet,
                name.remote
            );
            let child = Message::default()
                .text("child", name.child())
                .text("ike", name.to_string())
                .text("timeout", "-1");
            vici.try_command("initiate", &child)?;
        }
        if !stale.is_empty() {
            tracing::info!(
                "removing {} tunnels from the kernel that nobody knows any more",
                stale.len()
            );
            if let Err(error) = tunnels::remove(&stale) {
                tracing::warn!("cannot remove them: {error}");
            }
        }
        Ok(())
    }

    fn end(&mut self) {
        self.gone.clear();
        self.starting = None;
        self.acquires = None;
        let vici = self.charon.take();
        if let Some(record) =
            Record::read(&self.directory).filter(|record| record.is_of(&self.networks))
        {
            tracing::info!("charon is no longer wanted: ended");
            drop(vici);
            record.end();
            self.kill_child();
        } else if let Some(vici) = vici.or_else(|| charon::connect().ok()) {
            // Somebody else's charon goes on without us, and with tunnels of its own.
            let ours = |name: &ConnectionName| is_within(&self.networks, name);
            if let Err(error) = charon::unload_all(vici, ours) {
                tracing::warn!("cannot remove flannel's connections from charon: {error}");
            }
            return;
        }
        let left = tunnels::states().and_then(|states| tunnels::remove(&states));
        if let Err(error) = left {
            tracing::debug!("what tunnels are left is not known: {error}");
        }
    }
}

fn is_within(networks: &[IpNet], name: &ConnectionName) -> bool {
    networks.iter().any(|network| network.contains(&name.local_subnet))
}
