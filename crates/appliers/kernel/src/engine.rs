//! The reconciler's thread, and the handle on it. Netlink is blocking and ordered, so one thread owns all sockets and state;
//! requests arrive through a bounded channel and are answered when the kernel has been written.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_common::{Work, Worker, send_if_changed};
use flannel_entries::facts::{Facts, KernelVersion, Path};
use flannel_entries::kernel::{Entry, Ownership};
use flannel_metrics::Latency;
use flannel_wanted::{
    Applier, COMMAND_QUEUE, Desired, Requester, Status, StatusPublisher, Stopped, Tally,
    WorkerHandle,
};
use tokio::sync::{oneshot, watch};

use crate::hazards::Hazard;
use crate::reconciler::Reconciler;

#[derive(Debug, thiserror::Error)]
#[error("cannot open a netlink socket: {0}; flanneld needs the capability NET_ADMIN")]
pub struct OpenError(#[source] io::Error);

const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

pub struct Lookup(Vec<IpAddr>, oneshot::Sender<Vec<Option<Path>>>);

type Handle<S> = WorkerHandle<S, Entry, Ownership, Lookup>;
type Command<S> = flannel_wanted::Command<S, Entry, Ownership, Lookup>;

#[derive(Clone)]
pub struct Engine<S> {
    handle: Handle<S>,
    /// Facts of the node, and every change of them.
    pub facts: watch::Receiver<Arc<Facts>>,
    pub latencies: Latencies,
}

#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// After a change of single requesters' entries.
    pub change: Latency,
    pub everything: Latency,
}

impl<S: Requester> Engine<S> {
    /// Opens its sockets in the network namespace of the calling thread. The engine ends when the last handle is
    /// dropped, and leaves the kernel as it is: traffic goes on.
    pub fn start(seed: u64) -> Result<Self, OpenError> {
        let mut reconciler = Reconciler::open(running_kernel(), seed).map_err(OpenError)?;
        let facts = Arc::new(reconciler.new_facts().unwrap_or_default());
        let (publish_facts, facts) = watch::channel(facts);
        let latencies = Latencies::default();
        let kept = latencies.clone();
        let handle = WorkerHandle::start("kernel engine", |publish_status| {
            Worker::start("kernel", COMMAND_QUEUE, move || EngineWork {
                reconciler,
                publish_facts,
                publish_status,
                latencies: kept,
            })
        });
        Ok(Self { handle: handle.map_err(OpenError)?, facts, latencies })
    }

    pub async fn lookup(&self, addresses: Vec<IpAddr>) -> Result<Vec<Option<Path>>, Stopped> {
        self.handle.ask(|answer| Command::Other(Lookup(addresses, answer))).await
    }

    /// Begins to write what the next `replace` will declare, as far as it is known, without waiting. If the queue is
    /// full, everything is left to that `replace`.
    pub fn prepare(&self, beginning: Desired<S, Entry>) {
        self.handle.tell(|answer| Command::Update(beginning, answer));
    }
}

/// The kernel goes on by itself when the daemon ends.
impl<S: Requester> Applier for Engine<S> {
    type Requester = S;
    type Entry = Entry;
    type Ownership = Ownership;
    type Other = Lookup;

    fn handle(&self) -> &Handle<S> {
        &self.handle
    }
}

struct EngineWork<S> {
    reconciler: Reconciler<S>,
    publish_facts: watch::Sender<Arc<Facts>>,
    publish_status: StatusPublisher,
    latencies: Latencies,
}

impl<S: Requester> Work for EngineWork<S> {
    type Command = Command<S>;

    /// Answers in any case: what could not be done now is marked, and done later.
    fn carry_out(&mut self, command: Command<S>) {
        let (now, resyncs) = (Instant::now(), self.reconciler.resyncs);
        let (result, answer) = match command {
            Command::Replace(ownership, desired, answer) => {
                (self.reconciler.replace(ownership, desired, now), answer)
            }
            Command::Update(changes, answer) => {
                let updated = self.reconciler.update(changes, now);
                self.latencies.change.since(now);
                (updated, answer)
            }
            Command::Status(answer) => (Ok(()), answer),
            Command::Report(report) => {
                let Reconciler { wanted, resyncs, overflows, .. } = &self.reconciler;
                let (comparisons, overflows) = (*resyncs, *overflows);
                return report.answer(wanted, |tally| Tally { comparisons, overflows, ..tally });
            }
            Command::Compare(answer) => {
                let (comparison, error) = self.reconciler.compare_now(now);
                self.note_comparison(now, resyncs);
                if let Some(error) = error {
                    self.compare_everything(&error);
                }
                let _ = answer.send(comparison);
                return;
            }
            Command::Other(Lookup(addresses, answer)) => {
                let paths = self.reconciler.lookup(&addresses).unwrap_or_else(|error| {
                    self.compare_everything(&error);
                    vec![None; addresses.len()]
                });
                let _ = answer.send(paths);
                return;
            }
        };
        if let Err(error) = result {
            self.compare_everything(&error);
        }
        self.note_comparison(now, resyncs);
        let _ = answer.send(status(&self.reconciler));
    }

    fn tick(&mut self) {
        let (now, resyncs) = (Instant::now(), self.reconciler.resyncs);
        if let Err(error) = self.reconciler.react(now) {
            self.compare_everything(&error);
        }
        self.note_comparison(now, resyncs);
        if let Some(facts) = self.reconciler.new_facts() {
            send_if_changed(&self.publish_facts, Arc::new(facts));
        }
        self.publish_status.publish(status(&self.reconciler));
    }

    fn next_wake(&self) -> Option<Instant> {
        if self.reconciler.has_work() { Some(Instant::now()) } else { self.reconciler.next_wake() }
    }

    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.reconciler.monitor.sockets()
    }
}

impl<S: Requester> EngineWork<S> {
    fn note_comparison(&self, since: Instant, resyncs: u64) {
        if self.reconciler.resyncs != resyncs {
            self.latencies.everything.since(since);
        }
    }

    /// Logs that the state of the kernel is unknown, and compares everything.
    fn compare_everything(&mut self, error: &io::Error) {
        tracing::error!("netlink: {error}; comparing everything");
        self.reconciler.resync_due = true;
        // A persistent error must not become a busy loop.
        std::thread::sleep(PAUSE_AFTER_ERROR);
    }
}

fn status<S: Requester>(reconciler: &Reconciler<S>) -> Status {
    Status {
        overflows: reconciler.overflows,
        hazards: reconciler.hazards().iter().map(Hazard::finding).collect(),
        ..Status::of(&reconciler.wanted)
    }
}

fn running_kernel() -> KernelVersion {
    let uname = rustix::system::uname();
    KernelVersion::parse(&uname.release().to_string_lossy()).unwrap_or_default()
}
