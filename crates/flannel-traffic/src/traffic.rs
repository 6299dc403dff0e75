//! The keeper on a thread of its own, and the handle others talk to it by.
//!
//! Running `nft` or `iptables` takes milliseconds and may have to wait for a lock, so no task of the
//! daemon does it.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};

use crate::claims::Claims;
use crate::keeper::Keeper;
use crate::programs::SearchPath;
use crate::system::Node;
use crate::{Rules, TrafficError};

/// Wishes that wait to be carried out.
const QUEUE: usize = 16;

/// Whether the rules are as wished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Ok,
    /// They are not, and why.
    Broken(String),
}

type Wish = (Rules, oneshot::Sender<Result<(), TrafficError>>);

/// Keeps traffic rules. Dropping it ends that and leaves the rules in place: traffic goes on.
pub struct Traffic {
    /// `None` only while being dropped.
    wishes: Option<mpsc::Sender<Wish>>,
    wake: Arc<OwnedFd>,
    health: watch::Receiver<Health>,
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
        let mut claims = Claims::default();
        claims.set(earlier);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| TrafficError::Start(error.into()))?;
        let wake = Arc::new(wake);
        let waker = wake.clone();
        let (wishes, mut queue) = mpsc::channel(QUEUE);
        let (publish, health) = watch::channel(Health::Ok);
        std::thread::Builder::new()
            .name("traffic".to_owned())
            .spawn(move || {
                // Opened here, because the thread that uses it decides whose network it is.
                let node = Box::new(Node::new(path, claims));
                let mut keeper = Keeper::new(node, resync, fastrand::u64(..));
                run(&mut keeper, &mut queue, &waker, &publish);
            })
            .map_err(TrafficError::Start)?;
        Ok(Self { wishes: Some(wishes), wake, health })
    }

    /// Makes these the rules to keep. Returns when they are in force, or why they are not; in that
    /// case, too, they are tried again until they are, or until others are set.
    pub async fn set(&self, rules: Rules) -> Result<(), TrafficError> {
        let (answer, receive) = oneshot::channel();
        let wishes = self.wishes.as_ref().ok_or(TrafficError::Stopped)?;
        wishes.send((rules, answer)).await.map_err(|_| TrafficError::Stopped)?;
        self.ring();
        receive.await.map_err(|_| TrafficError::Stopped)?
    }

    /// Whether the rules are as wished, and every change of that.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    fn ring(&self) {
        // Full means it has been rung already.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        drop(self.wishes.take());
        self.ring();
    }
}

fn run(
    keeper: &mut Keeper,
    queue: &mut mpsc::Receiver<Wish>,
    wake: &OwnedFd,
    publish: &watch::Sender<Health>,
) {
    loop {
        match queue.try_recv() {
            Ok((rules, answer)) => {
                let result = keeper.set(rules, Instant::now());
                say(publish, keeper.health());
                // Who asked may have gone; the rules are kept all the same.
                let _ = answer.send(result);
                continue;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        keeper.tick(Instant::now());
        say(publish, keeper.health());
        wait(keeper, wake);
    }
}

fn say(publish: &watch::Sender<Health>, health: Health) {
    publish.send_if_modified(|old| {
        let changed = *old != health;
        *old = health;
        changed
    });
}

fn wait(keeper: &Keeper, wake: &OwnedFd) {
    let timeout = keeper.next_wake().map(|due| {
        let left = due.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
    });
    let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
    fds.extend(keeper.ear().map(|ear| PollFd::from_borrowed_fd(ear, PollFlags::IN)));
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, timeout.as_ref());
    let mut count = [0; 8];
    let _ = rustix::io::read(wake, &mut count);
}
