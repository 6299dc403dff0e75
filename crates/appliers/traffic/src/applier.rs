//! The applier of traffic rules: a handle on the thread that keeps them.
//!
//! Running `iptables` takes milliseconds and may have to wait for a lock, so no task of the daemon does it.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use flannel_common::{SearchPath, Work, Worker};
use flannel_entries::rules::TrafficRules;
use flannel_wanted::{
    Applier, COMMAND_QUEUE, Command, Requester, Status, StatusPublisher, Stopped, WorkerHandle,
};
use ipnet::IpNet;
use tokio::sync::oneshot;

use crate::rule_reconciler::RuleReconciler;
use crate::served_networks::ServedNetworks;
use crate::system::Node;

/// Keeps traffic rules. A handle; the rules stay in place when the last one is dropped: traffic goes on.
pub struct TrafficApplier<S>(Handle<S>);

type Handle<S> = WorkerHandle<S, TrafficRules, (), CountRestored>;
type Job<S> = Command<S, TrafficRules, (), CountRestored>;

/// Asks how often the rules of each family were restored.
pub struct CountRestored(oneshot::Sender<[u64; 2]>);

impl<S> Clone for TrafficApplier<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Requester> TrafficApplier<S> {
    /// Keeps rules in the network namespace of the thread that first wants some. `resync`: how often to look at
    /// rules whose changes the kernel does not announce, those of iptables-legacy. `earlier`: networks whose rules
    /// nobody else is to remove from now on, until others are wanted. `path`: where the programs of iptables are.
    pub fn new(resync: Duration, path: SearchPath, earlier: &[IpNet], seed: u64) -> Self {
        let mut served = ServedNetworks::default();
        served.set(earlier);
        Self(WorkerHandle::lazy("applier of traffic rules", move |status| {
            Worker::start("traffic", COMMAND_QUEUE, move || {
                let node = Box::new(Node::new(path, served));
                RuleWork { rules: RuleReconciler::new(node, resync, seed), status }
            })
        }))
    }

    /// How often each family's rules, in the order of [`flannel_common::Family::BOTH`], were restored.
    pub async fn restored(&self) -> Result<[u64; 2], Stopped> {
        self.0.ask(|answer| Job::Other(CountRestored(answer))).await
    }
}

impl<S: Requester> Applier for TrafficApplier<S> {
    type Requester = S;
    type Entry = TrafficRules;
    /// Tables and chains are ours by their names.
    type Ownership = ();
    type Other = CountRestored;

    fn handle(&self) -> &Handle<S> {
        &self.0
    }

    /// Whoever wants no rules is rid of those of a former run; the thread looks for them.
    fn has_leftovers(&self, (): &()) -> bool {
        true
    }
}

struct RuleWork<S> {
    rules: RuleReconciler<S>,
    status: StatusPublisher,
}

impl<S: Requester> Work for RuleWork<S> {
    type Command = Job<S>;

    // Who asked may have gone; the rules are kept all the same.
    fn carry_out(&mut self, job: Job<S>) {
        let now = Instant::now();
        match job {
            Job::Replace((), desired, answer) => {
                self.rules.replace(desired, now);
                let _ = answer.send(self.publish());
            }
            Job::Update(changes, answer) => {
                self.rules.update(changes, now);
                let _ = answer.send(self.publish());
            }
            Job::Status(answer) => drop(answer.send(self.publish())),
            Job::Report(report) => report.answer(self.rules.wanted(), |tally| tally),
            Job::Compare(answer) => {
                let comparison = self.rules.compare(now);
                self.publish();
                let _ = answer.send(comparison);
            }
            Job::Other(CountRestored(answer)) => drop(answer.send(self.rules.restored())),
        }
    }

    fn tick(&mut self) {
        self.rules.tick(Instant::now());
        self.publish();
    }

    fn next_wake(&self) -> Option<Instant> {
        self.rules.next_wake()
    }

    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.rules.announcements().into_iter().collect()
    }
}

impl<S: Requester> RuleWork<S> {
    fn publish(&self) -> Status {
        let status = Status::of(self.rules.wanted());
        self.status.publish(status.clone());
        status
    }
}
