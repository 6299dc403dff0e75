//! Keeps charon running, and told of all that is wanted.
//!
//! charon speaks with other nodes by itself, and tries for ever. What it does not see is seen here: that it has
//! itself ended, that somebody took a connection away, that the kernel has lost a tunnel or holds one that nobody
//! knows. The kernel tells of a packet that finds no tunnel; the rest is looked at every few seconds.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use flannel_common::{Backoff, RepairPolicy, Work, Worker};
use flannel_netlink::{Protocol, Socket, messages, xfrm};
use flannel_wanted::{
    KeyedEntry, Repair, Requester, Status, StatusPublisher, Wanted, WorkerApplier, WorkerHandle,
};
use ipnet::IpNet;
use tokio::sync::oneshot;

use crate::charon::{self, CharonError, Record};
use crate::entry::{ConnectionName, IpsecEntry, IpsecKey, SharedSecret};
use crate::tunnels::{self, Conversation, Memory, Verdict};
use crate::vici::{Message, Vici, ViciError};

const QUEUE: usize = 256;
const POLICY: RepairPolicy = RepairPolicy {
    at_once: 3,
    calm: Duration::from_secs(60),
    undone: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
};
/// charon loads its plugins first.
const START_LIMIT: Duration = Duration::from_secs(30);
const START_POLL: Duration = Duration::from_millis(50);
/// How often all is looked at, and less often if that takes long.
const LOOK: Duration = Duration::from_secs(5);
const PAUSE_PER_WORK: u32 = 50;
/// After something that is likely to change what there is to see.
const LOOK_SOON: Duration = Duration::from_secs(1);

/// A handle.
pub struct Ipsec<S> {
    worker: WorkerHandle<S, IpsecEntry, Vec<IpNet>, Stop>,
    directory: PathBuf,
}

impl<S> Clone for Ipsec<S> {
    fn clone(&self) -> Self {
        Self { worker: self.worker.clone(), directory: self.directory.clone() }
    }
}

type Job<S> = flannel_wanted::Command<S, IpsecEntry, Vec<IpNet>, Stop>;

/// Do now what is to be done.
pub struct Stop(oneshot::Sender<()>);

impl<S: Requester> Ipsec<S> {
    /// `directory`: where the process id of flannel's charon is recorded.
    pub fn new(directory: PathBuf, seed: u64) -> Self {
        let of = directory.clone();
        let worker = WorkerHandle::late("keeper of charon", move |status| {
            Worker::start("ipsec", QUEUE, move || CharonWork::new(of, status, seed))
        });
        Self { worker, directory }
    }
}

impl<S: Requester> WorkerApplier for Ipsec<S> {
    type Requester = S;
    type Entry = IpsecEntry;
    /// The pod networks that are ours: connections between their subnets that nobody wants are taken back.
    type Ownership = Vec<IpNet>;
    type Other = Stop;

    fn handle(&self) -> &WorkerHandle<S, IpsecEntry, Vec<IpNet>, Stop> {
        &self.worker
    }

    fn has_leftovers(&self, networks: &Vec<IpNet>) -> bool {
        Record::read(&self.directory).is_some_and(|record| record.is_of(networks))
    }

    /// charon goes on by itself; what was to be taken back has been when this returns.
    async fn wind_up(&self) {
        let _ = self.worker.ask(|answer| Job::Other(Stop(answer))).await;
    }
}

struct CharonWork<S> {
    directory: PathBuf,
    networks: Vec<IpNet>,
    wanted: Wanted<S, IpsecEntry>,
    /// Wanted no more, and to be taken back.
    gone: BTreeSet<IpsecKey>,
    /// Nothing is wanted any more: all that is ours is to go.
    wind_down: bool,
    charon: Option<Vici>,
    /// Started by this process, and to be waited for when it ends.
    child: Option<Child>,
    /// Since when it has been starting.
    starting: Option<Instant>,
    /// Hears of packets that find no tunnel.
    acquires: Option<Socket>,
    memory: Memory,
    last_look: Option<Instant>,
    next_look: Option<Instant>,
    status: StatusPublisher,
    rng: fastrand::Rng,
}

impl<S: Requester> Work for CharonWork<S> {
    type Command = Job<S>;

    fn carry_out(&mut self, job: Job<S>) {
        let (unwanted, answer) = match job {
            Job::Replace(networks, desired, answer) => {
                self.networks = networks;
                self.wind_down = desired.is_empty();
                (self.wanted.replace(desired), answer)
            }
            Job::Update(changes, answer) => (self.wanted.update(changes), answer),
            Job::Status(answer) => (Vec::new(), answer),
            Job::Report(report) => return report.answer(&self.wanted, |tally| tally),
            Job::Compare(answer) => {
                self.wanted.begin_comparison();
                self.next_look = self.next_look.map(|_| Instant::now());
                // The first tick looks; the second adds what was missing.
                self.tick();
                self.tick();
                let _ = answer.send(self.wanted.end_comparison(Instant::now()));
                return;
            }
            Job::Other(Stop(answer)) => {
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
        if self.hears_an_acquire() {
            let soonest = self.last_look.map_or(now, |last| last + LOOK_SOON);
            self.next_look = self.next_look.map(|next| next.min(soonest));
        }
        if std::mem::take(&mut self.wind_down) {
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
        let look = self.next_look.filter(|_| self.charon.is_some());
        [starting, lost, look, self.wanted.next_wake()].into_iter().flatten().min()
    }

    /// When charon has ended, or a packet finds no tunnel.
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
            wind_down: false,
            charon: None,
            child: None,
            starting: None,
            acquires: None,
            memory: Memory::default(),
            last_look: None,
            next_look: None,
            status,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    fn keep(&mut self, now: Instant) {
        if self.charon.as_ref().is_some_and(Vici::has_ended) {
            self.lost("it has ended", false, now);
        }
        let anew = self.charon.is_none();
        if anew && !self.is_running(now) {
            return;
        }
        let mut kept = self.tell(anew, now);
        if kept.is_ok() && self.next_look.is_some_and(|due| due <= now) {
            kept = self.look(now);
        }
        if let Err(error) = kept {
            let hangs = error.is_silence();
            self.lost(error, hangs, now);
        }
    }

    /// Finds charon, or starts it. Returns whether it can be spoken to.
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
                    Some(status) => CharonError::Ended(status),
                    None if since.elapsed() > START_LIMIT => CharonError::Silent(START_LIMIT),
                    None => return false,
                };
                self.kill_child();
                self.starting = None;
                self.failed(&error, now);
            }
            (Err(_), None) if self.wanted.is_marked(&IpsecKey::Daemon) => {
                self.reap();
                // One that runs and cannot be spoken to keeps another from starting: somebody has removed its
                // socket, as a second charon does before it finds that there is a first.
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
                    Err(error) => self.failed(&error, now),
                }
            }
            // It waits for its time.
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
        self.next_look = Some(now);
        if self.acquires.is_none() {
            self.acquires = self
                .hear_acquires()
                .inspect_err(|error| {
                    tracing::warn!("cannot listen for packets that have no tunnel: {error}");
                })
                .ok();
        }
    }

    fn hear_acquires(&self) -> std::io::Result<Socket> {
        let socket = Socket::open(Protocol::Xfrm)?;
        socket.join(xfrm::ACQUIRE_GROUP)?;
        Ok(socket)
    }

    /// charon cannot be spoken to any more. `hangs`: it has not ended.
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
        tracing::warn!("charon: {why}{status}; it is started anew {pause}");
    }

    /// Waits for a child that has ended, so that nothing is left of it.
    fn reap(&mut self) -> Option<std::process::ExitStatus> {
        // It closes its socket a moment before it ends.
        for _ in 0..20 {
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

    /// However long a busy machine takes for it: one that nobody waits for stays as a zombie.
    fn kill_child(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn failed(&mut self, error: &CharonError, now: Instant) {
        let text = error.to_string();
        let retry = self.wanted.failed(&IpsecKey::Daemon, text.clone(), now, &mut self.rng);
        if let Some((pause, true)) = retry {
            tracing::error!("{text}; next try in {pause:.0?}");
        }
    }

    /// Tells charon what is wanted, and what no more. `anew`: it knows of nothing.
    fn tell(&mut self, anew: bool, now: Instant) -> Result<(), ViciError> {
        let Some(vici) = &mut self.charon else { return Ok(()) };
        while let Some(key) = self.gone.pop_first() {
            if self.wanted.get(&key).is_none() {
                take_back(vici, &key)?;
            }
        }
        let keys: Vec<IpsecKey> = if anew {
            self.wanted.iter().map(KeyedEntry::key).collect()
        } else {
            let batch = self.wanted.batch();
            self.wanted.entries(&batch).map(KeyedEntry::key).collect()
        };
        for key in &keys {
            let result = match self.wanted.get(key) {
                None | Some(IpsecEntry::Daemon) => continue,
                Some(IpsecEntry::Secret(secret)) => vici.command("load-shared", &secret.message()),
                Some(IpsecEntry::Connection(it)) => vici.command("load-conn", &it.message()),
            };
            match result {
                Ok(_) => {
                    self.wanted.succeeded(key);
                    if let IpsecKey::Connection(name) = key {
                        self.memory.asked_for(name, now);
                    }
                }
                Err(error) if error.is_refusal() => {
                    let text = error.to_string();
                    let retry = self.wanted.failed(key, text.clone(), now, &mut self.rng);
                    let entry = self.wanted.get(key).map(KeyedEntry::describe);
                    if let (Some(entry), Some((pause, true))) = (entry, retry) {
                        tracing::error!("{entry}: {text}; next try in {pause:.0?}");
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn hears_an_acquire(&mut self) -> bool {
        let mut heard = false;
        let Some(socket) = &mut self.acquires else { return false };
        // An overflow says that there were many.
        while let Ok(datagram) = socket.receive_now() {
            heard |= messages(datagram).flatten().any(|it| xfrm::read_acquire(it).is_some());
        }
        heard
    }

    /// Compares what charon and the kernel have with what is wanted.
    fn look(&mut self, now: Instant) -> Result<(), ViciError> {
        let Some(vici) = &mut self.charon else { return Ok(()) };
        let begin = Instant::now();
        self.last_look = Some(now);
        let loaded: BTreeSet<ConnectionName> = charon::connections(vici)?.into_iter().collect();
        let owners: BTreeSet<_> = charon::secrets(vici)?.into_iter().collect();
        let ours = |name: &ConnectionName| {
            self.networks.iter().any(|network| network.contains(&name.local_subnet))
        };
        for name in loaded.iter().filter(|name| ours(name)) {
            let key = IpsecKey::Connection(name.clone());
            if self.wanted.get(&key).is_none() {
                tracing::info!("the ipsec connection {name} is no longer needed: removed");
                take_back(vici, &key)?;
            }
        }
        for owner in &owners {
            let key = IpsecKey::Secret(*owner);
            let foreign = |name: &ConnectionName| !ours(name) && name.remote == *owner;
            if self.wanted.get(&key).is_none() && !loaded.iter().any(foreign) {
                take_back(vici, &key)?;
            }
        }
        let conversations = Conversation::list(vici)?;
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
        self.mend(&loaded, &conversations, now)?;
        let pause = (begin.elapsed() * PAUSE_PER_WORK).max(LOOK);
        self.next_look = Some(now + if self.wanted.is_dirty() { Duration::ZERO } else { pause });
        Ok(())
    }

    /// Asks for tunnels that are not there, and removes those that nobody knows.
    fn mend(
        &mut self,
        loaded: &BTreeSet<ConnectionName>,
        conversations: &[Conversation],
        now: Instant,
    ) -> Result<(), ViciError> {
        let Some(vici) = &mut self.charon else { return Ok(()) };
        // Without knowing what the kernel has, nothing can be said of it.
        let Ok(states) = tunnels::states() else { return Ok(()) };
        let wanted: BTreeSet<ConnectionName> = self
            .wanted
            .iter()
            .filter_map(|entry| match entry.key() {
                IpsecKey::Connection(name) => Some(name),
                _ => None,
            })
            // charon asks for one by itself when it is told of it.
            .filter(|name| loaded.contains(name))
            .collect();
        let Verdict { missing, lost, stale } =
            self.memory.judge(&wanted, conversations, states, now);
        for id in lost {
            tracing::warn!(
                "the kernel has lost a tunnel that charon still has ({id}): making it again"
            );
            let child =
                Message::default().text("child-id", id).text("force", "yes").text("timeout", "-1");
            forgive(vici.command("terminate", &child))?;
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
            forgive(vici.command("initiate", &child))?;
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

    /// Nothing is wanted any more.
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
            // Somebody else's goes on without us, and with tunnels of its own.
            let ours = |name: &ConnectionName| {
                self.networks.iter().any(|network| network.contains(&name.local_subnet))
            };
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

fn take_back(vici: &mut Vici, key: &IpsecKey) -> Result<(), ViciError> {
    match key {
        IpsecKey::Daemon => Ok(()),
        IpsecKey::Secret(owner) => charon::unload_secret(vici, &SharedSecret::id(owner)),
        IpsecKey::Connection(name) => charon::unload_connection(vici, &name.to_string()),
    }
}

/// What is refused now is looked at again.
fn forgive(result: Result<Message, ViciError>) -> Result<(), ViciError> {
    match result {
        Err(error) if error.is_refusal() => {
            tracing::debug!("{error}");
            Ok(())
        }
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}
