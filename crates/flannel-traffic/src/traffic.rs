//! The reconciler of the rules on a thread of its own, and the handle others talk to it by.
//!
//! Running `nft` or `iptables` takes milliseconds and may have to wait for a lock, so no task of the
//! daemon does it.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flannel_common::{Work, Worker};
use ipnet::IpNet;
use tokio::sync::{oneshot, watch};

use crate::programs::SearchPath;
use crate::rule_reconciler::RuleReconciler;
use crate::served_networks::ServedNetworks;
use crate::system::Node;
use crate::{Rules, TrafficError};

/// Rules that wait to be put in force.
const QUEUE: usize = 16;

/// Whether the rules are as wished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Ok,
    /// They are not, and why.
    Broken(String),
}

enum Command {
    Set(Box<Rules>, oneshot::Sender<Result<(), TrafficError>>),
    Look(oneshot::Sender<Result<u64, TrafficError>>),
}

/// Keeps traffic rules. Dropping the last of its handles ends that and leaves the rules in place: traffic goes on.
#[derive(Clone)]
pub struct Traffic {
    worker: Worker<Command>,
    health: watch::Receiver<Health>,
    restored: Arc<[AtomicU64; 2]>,
}

impl Traffic {
    /// Keeps rules in the network namespace of the calling thread. `resync`: how often to look at
    /// rules whose changes the kernel does not announce, those of iptables-legacy. `earlier`: networks
    /// whose rules nobody else is to remove from now on, until others are set.
    pub fn start(resync: Duration, earlier: &[IpNet]) -> Result<Self, TrafficError> {
        Self::start_in(resync, SearchPath::of_environment(), earlier)
    }

    /// As [`Self::start`], with the programs in these directories alone, separated as in `PATH`.
    pub fn start_with_programs(resync: Duration, path: &OsStr) -> Result<Self, TrafficError> {
        Self::start_in(resync, SearchPath::exactly(path), &[])
    }

    fn start_in(
        resync: Duration,
        path: SearchPath,
        earlier: &[IpNet],
    ) -> Result<Self, TrafficError> {
        let mut served = ServedNetworks::default();
        served.set(earlier);
        let (publish, health) = watch::channel(Health::Ok);
        let restored = Arc::<[AtomicU64; 2]>::default();
        let counts = restored.clone();
        let worker = Worker::start("traffic", QUEUE, move || {
            let node = Box::new(Node::new(path, served));
            let rules = RuleReconciler::new(node, resync, fastrand::u64(..));
            TrafficWork { rules, publish, restored: counts }
        });
        Ok(Self { worker: worker.map_err(TrafficError::Start)?, health, restored })
    }

    /// Makes these the rules to keep. Returns when they are in force, or why they are not; in that
    /// case, too, they are tried again until they are, or until others are set.
    pub async fn set(&self, rules: Rules) -> Result<(), TrafficError> {
        let answer = self.worker.ask(|answer| Command::Set(Box::new(rules), answer)).await;
        answer.map_err(|_| TrafficError::Stopped)?
    }

    /// Looks at all rules now and puts right what differs. Returns for how many families there was something to
    /// put right.
    pub async fn look(&self) -> Result<u64, TrafficError> {
        self.worker.ask(Command::Look).await.map_err(|_| TrafficError::Stopped)?
    }

    /// How often the rules of each family, in the order of [`crate::Family::BOTH`], were put right after somebody
    /// had changed them.
    pub fn restored(&self) -> [u64; 2] {
        [0, 1].map(|family: usize| self.restored[family].load(Ordering::Relaxed))
    }

    /// Whether the rules are as wished, and every change of that.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

struct TrafficWork {
    rules: RuleReconciler,
    publish: watch::Sender<Health>,
    restored: Arc<[AtomicU64; 2]>,
}

impl Work for TrafficWork {
    type Command = Command;

    // Who asked may have gone; the rules are kept all the same.
    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Set(rules, answer) => {
                let result = self.rules.set(*rules, Instant::now());
                self.publish_health();
                let _ = answer.send(result);
            }
            Command::Look(answer) => {
                let result = self.rules.look_now(Instant::now());
                self.publish_health();
                let _ = answer.send(result);
            }
        }
    }

    fn tick(&mut self) {
        self.rules.tick(Instant::now());
        self.publish_health();
    }

    fn next_wake(&self) -> Option<Instant> {
        self.rules.next_wake()
    }

    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.rules.announcements().into_iter().collect()
    }
}

impl TrafficWork {
    fn publish_health(&self) {
        for (count, restored) in self.restored.iter().zip(self.rules.restored()) {
            count.store(restored, Ordering::Relaxed);
        }
        let health = self.rules.health();
        self.publish.send_if_modified(|old| {
            let changed = *old != health;
            *old = health;
            changed
        });
    }
}
