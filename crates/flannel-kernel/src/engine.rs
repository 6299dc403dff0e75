//! The reconciler on a thread of its own, and the handle others talk to it by.
//!
//! Netlink is blocking and ordered, so one thread owns both sockets and all state; requests come in
//! through a bounded channel and are answered when the kernel has been written.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::{oneshot, watch};

use crate::reconciler::Reconciler;
use crate::{Entry, Facts, KernelVersion, Ownership, Path};

/// Whose wish an entry is: a lease, or the node itself. Ordered: see `wanted`.
pub trait Owner: Ord + Clone + Send + 'static {}
impl<T: Ord + Clone + Send + 'static> Owner for T {}

/// What the kernel looks like against what is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub wanted: usize,
    /// Entries wanted by more than one owner in different versions.
    pub contested: usize,
    /// How many entries are not as wanted.
    pub bad: usize,
    /// The first of them, and why.
    pub troubles: Vec<(Entry, String)>,
    /// How often the kernel had more to tell than could be queued, so that all was compared.
    pub overflows: u64,
}

impl Status {
    pub fn is_settled(&self) -> bool {
        self.bad == 0
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("cannot open a netlink socket: {0}; flanneld needs the capability NET_ADMIN")]
    Open(#[source] io::Error),
    #[error("the kernel engine has stopped")]
    Stopped,
}

/// Requests that wait for the engine; more wait for a place in the queue.
const QUEUE: usize = 256;
/// How many troubles a status lists: an operator reads the first few, the rest is a number.
const LISTED_TROUBLES: usize = 100;

enum Command<S> {
    Replace(Ownership, Vec<(S, Vec<Entry>)>, oneshot::Sender<Status>),
    Update(Vec<(S, Vec<Entry>)>, oneshot::Sender<Status>),
    Lookup(Vec<IpAddr>, oneshot::Sender<Vec<Option<Path>>>),
    Status(oneshot::Sender<Status>),
}

pub struct Engine<S> {
    /// `None` only while being dropped.
    commands: Option<SyncSender<Command<S>>>,
    wake: Arc<OwnedFd>,
    facts: watch::Receiver<Arc<Facts>>,
    status: watch::Receiver<Status>,
}

impl<S> Clone for Engine<S> {
    fn clone(&self) -> Self {
        Self {
            commands: self.commands.clone(),
            wake: self.wake.clone(),
            facts: self.facts.clone(),
            status: self.status.clone(),
        }
    }
}

impl<S: Owner> Engine<S> {
    /// Opens its sockets in the network namespace of the calling thread. The engine ends when the
    /// last handle is dropped, and leaves the kernel as it is: traffic goes on.
    pub fn start(seed: u64) -> Result<Self, EngineError> {
        let mut reconciler = Reconciler::open(running_kernel(), seed).map_err(EngineError::Open)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| EngineError::Open(e.into()))?;
        let wake = Arc::new(wake);
        let (commands, queue) = sync_channel(QUEUE);
        let facts = Arc::new(reconciler.new_facts().unwrap_or_default());
        let (publish_facts, facts) = watch::channel(facts);
        let (publish_status, status) = watch::channel(Status::default());
        let waker = wake.clone();
        std::thread::Builder::new()
            .name("kernel".to_owned())
            .spawn(move || run(&mut reconciler, &queue, &waker, &publish_facts, &publish_status))
            .map_err(EngineError::Open)?;
        Ok(Self { commands: Some(commands), wake, facts, status })
    }

    /// What is true of the node, and every change of it.
    pub fn facts(&self) -> watch::Receiver<Arc<Facts>> {
        self.facts.clone()
    }

    /// How the kernel compares with what is wanted, and every change of that.
    pub fn watch_status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Declares the whole desired state. What is ours and nobody wants is removed.
    pub async fn replace(
        &self,
        ownership: Ownership,
        desired: Vec<(S, Vec<Entry>)>,
    ) -> Result<Status, EngineError> {
        self.ask(|answer| Command::Replace(ownership, desired, answer)).await
    }

    /// Replaces what single owners want; an owner without entries is forgotten.
    pub async fn update(&self, changes: Vec<(S, Vec<Entry>)>) -> Result<Status, EngineError> {
        self.ask(|answer| Command::Update(changes, answer)).await
    }

    /// How the kernel would send to each of these addresses.
    pub async fn lookup(&self, addresses: Vec<IpAddr>) -> Result<Vec<Option<Path>>, EngineError> {
        self.ask(|answer| Command::Lookup(addresses, answer)).await
    }

    pub async fn status(&self) -> Result<Status, EngineError> {
        self.ask(Command::Status).await
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command<S>,
    ) -> Result<T, EngineError> {
        let (answer, receive) = oneshot::channel();
        let commands = self.commands.as_ref().ok_or(EngineError::Stopped)?;
        commands.send(command(answer)).map_err(|_| EngineError::Stopped)?;
        self.ring();
        receive.await.map_err(|_| EngineError::Stopped)
    }

    fn ring(&self) {
        // Full means it has been rung already.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl<S> Drop for Engine<S> {
    fn drop(&mut self) {
        // First the queue, so that who is woken finds it closed.
        drop(self.commands.take());
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

fn run<S: Owner>(
    reconciler: &mut Reconciler<S>,
    queue: &Receiver<Command<S>>,
    wake: &OwnedFd,
    publish_facts: &watch::Sender<Arc<Facts>>,
    publish_status: &watch::Sender<Status>,
) {
    loop {
        if !obey(reconciler, queue) {
            return;
        }
        if let Err(error) = reconciler.react(Instant::now()) {
            distrust(reconciler, &error);
        }
        if let Some(facts) = reconciler.new_facts() {
            send_if_changed(publish_facts, Arc::new(facts));
        }
        send_if_changed(publish_status, status(reconciler));
        if !reconciler.has_work() {
            wait(reconciler, wake);
        }
    }
}

fn send_if_changed<T: PartialEq>(to: &watch::Sender<T>, value: T) {
    to.send_if_modified(|old| {
        let changed = *old != value;
        if changed {
            *old = value;
        }
        changed
    });
}

/// Carries out what has been asked, and answers in any case: what could not be done now is marked, and
/// done later. `false`: nobody is left to ask.
fn obey<S: Owner>(reconciler: &mut Reconciler<S>, queue: &Receiver<Command<S>>) -> bool {
    loop {
        let command = match queue.try_recv() {
            Ok(command) => command,
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => return false,
        };
        let now = Instant::now();
        let (result, answer) = match command {
            Command::Replace(ownership, desired, answer) => {
                (reconciler.replace(ownership, desired, now), answer)
            }
            Command::Update(changes, answer) => (reconciler.update(changes, now), answer),
            Command::Status(answer) => (Ok(()), answer),
            Command::Lookup(addresses, answer) => {
                let paths = reconciler.lookup(&addresses).unwrap_or_else(|error| {
                    distrust(reconciler, &error);
                    vec![None; addresses.len()]
                });
                let _ = answer.send(paths);
                continue;
            }
        };
        if let Err(error) = result {
            distrust(reconciler, &error);
        }
        let _ = answer.send(status(reconciler));
    }
}

fn status<S: Owner>(reconciler: &Reconciler<S>) -> Status {
    Status {
        wanted: reconciler.wanted.len(),
        contested: reconciler.wanted.contested(),
        bad: reconciler.wanted.bad(),
        overflows: reconciler.overflows,
        troubles: reconciler
            .wanted
            .troubles()
            .take(LISTED_TROUBLES)
            .map(|(entry, error)| (entry.clone(), error.to_owned()))
            .collect(),
    }
}

/// What the kernel holds is unknown: say so, and compare everything.
fn distrust<S: Owner>(reconciler: &mut Reconciler<S>, error: &io::Error) {
    tracing::error!("netlink: {error}; comparing everything");
    reconciler.distrust();
    // Whatever it is, it is not to become a busy loop.
    std::thread::sleep(Duration::from_millis(100));
}

fn wait<S: Owner>(reconciler: &Reconciler<S>, wake: &OwnedFd) {
    let timeout = reconciler.next_wake().map(|due| {
        let left = due.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
    });
    let mut fds = [
        PollFd::from_borrowed_fd(reconciler.monitor().as_fd(), PollFlags::IN),
        PollFd::new(wake, PollFlags::IN),
    ];
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, timeout.as_ref());
    let mut count = [0; 8];
    let _ = rustix::io::read(wake, &mut count);
}

fn running_kernel() -> KernelVersion {
    let uname = rustix::system::uname();
    KernelVersion::parse(&uname.release().to_string_lossy()).unwrap_or_default()
}
