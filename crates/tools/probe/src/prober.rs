//! The task that goes from peer to peer, for one network.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flannel_common::{Throttle, sleep_until};
use flannel_state::Finding;
use ipnet::IpNet;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::examine::examine;
use crate::finding::finding;
use crate::net::Listeners;
use crate::peers::{IncompletePeers, Peers, ProbingNode, SharedPeers, Target, VerdictChange};
use crate::verdict::{Evidence, ProbeVerdict};

/// A handle; probing ends with the last.
#[derive(Clone)]
pub struct Prober(Arc<Shared>);

struct Shared {
    network: String,
    listeners: Arc<Listeners>,
    peers: SharedPeers,
    started: Instant,
    changed: Arc<Notify>,
    checksum: watch::Sender<bool>,
}

/// So many lines a minute; the history has the rest.
const MAX_LOGGED: u32 = 10;

impl Prober {
    pub fn new(network: &str, listeners: Arc<Listeners>) -> Self {
        let peers = Peers::default();
        Self(Arc::new(Shared {
            network: network.to_owned(),
            listeners,
            started: Instant::now(),
            changed: peers.changed.clone(),
            peers: Arc::new(Mutex::new(peers)),
            checksum: watch::Sender::new(false),
        }))
    }

    pub fn port(&self) -> u16 {
        self.0.listeners.port()
    }

    /// Turns true, once, when packets of this node are found to have wrong checksums.
    pub fn checksum_is_broken(&self) -> watch::Receiver<bool> {
        self.0.checksum.subscribe()
    }

    pub fn peers(&self) -> MutexGuard<'_, Peers> {
        self.0.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn replace(&self, own: ProbingNode, targets: impl IntoIterator<Item = (IpNet, Target)>) {
        let addresses = own.addresses(self.port());
        self.peers().replace(own, targets, self.now(), &mut fastrand::Rng::new());
        self.0.listeners.listen(&self.0.network, addresses, &self.0.peers);
        self.0.changed.notify_one();
    }

    /// Peers that ask are told of it.
    pub fn set_incomplete(&self, incomplete: IncompletePeers) {
        let now = self.now();
        self.peers().set_incomplete(incomplete, now, &mut fastrand::Rng::new());
        self.0.changed.notify_one();
    }

    /// Has these peers asked next: somebody waits to know how they are.
    pub fn hasten(&self, subnets: &[IpNet]) {
        let now = self.now();
        self.peers().hasten(subnets, now);
        self.0.changed.notify_one();
    }

    /// `None`: it is gone, or does not answer any more.
    pub fn change(&self, changes: impl IntoIterator<Item = (IpNet, Option<Target>)>) {
        let (now, mut rng) = (self.now(), fastrand::Rng::new());
        let mut peers = self.peers();
        for (subnet, target) in changes {
            match target {
                Some(target) => peers.put(subnet, target, now, &mut rng),
                None => peers.remove(&subnet),
            }
        }
        drop(peers);
        self.0.changed.notify_one();
    }

    /// Goes on until it is dropped.
    pub async fn run(self) -> std::convert::Infallible {
        let mut turns = JoinSet::new();
        let mut talk = Talk(Throttle::with_burst(MAX_LOGGED, Duration::from_secs(60)));
        loop {
            let begun = self.peers().turns(self.now());
            for (subnet, plan) in begun {
                turns.spawn(async move { (subnet, examine(plan).await) });
            }
            let look = self.peers().next_look();
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = sleep_until(look.map(|look| self.0.started + look)) => {}
                Some(ended) = turns.join_next() => {
                    if let Ok((subnet, (found, cookies))) = ended {
                        self.conclude(&subnet, found, cookies, &mut talk);
                    }
                }
            }
        }
    }

    fn conclude(
        &self,
        subnet: &IpNet,
        found: Vec<(usize, Evidence)>,
        cookies: [u64; 4],
        talk: &mut Talk,
    ) {
        let (now, mut rng) = (self.now(), fastrand::Rng::new());
        let mut peers = self.peers();
        let news = peers.conclude(subnet, cookies, found, now, &mut rng);
        let Some(news) = news else { return };
        if news.known.verdict == ProbeVerdict::ChecksumHere {
            self.0.checksum.send_replace(true);
        }
        let ends = peers.own().zip(peers.target(subnet));
        let found = ends.map(|(own, target)| finding(&news.known, own, subnet, target));
        drop(peers);
        if let Some(found) = found {
            talk.say(subnet, &news, found.as_ref());
        }
    }

    fn now(&self) -> Duration {
        self.0.started.elapsed()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.listeners.leave(&self.network);
    }
}

/// What is told, and how loud: a cut underlay is told of each peer behind it.
struct Talk(Throttle);

impl Talk {
    fn say(&mut self, subnet: &IpNet, news: &VerdictChange, found: Option<&Finding>) {
        let was_bad = news.former.as_ref().is_some_and(|former| !former.traffic_flows());
        let what =
            found.map(|Finding { cause, fix, .. }| format!("{cause}; {fix}")).unwrap_or_default();
        match &news.known.verdict {
            ProbeVerdict::Reached if news.former.is_none() => {
                tracing::debug!(event = "peer-reached", "Peer {subnet} is reached");
            }
            ProbeVerdict::Reached => {
                tracing::info!(event = "peer-reached", "Peer {subnet} is reached again");
            }
            verdict if verdict.traffic_flows() && was_bad => {
                tracing::info!(event = "peer-reached", "Peer {subnet}: {what}");
            }
            verdict if verdict.traffic_flows() => {
                tracing::info!(event = "peer-silent", "Peer {subnet}: {what}");
            }
            _ if self.0.pass(Instant::now()).is_some() => {
                tracing::warn!(event = "peer-unreachable", "Peer {subnet}: {what}");
            }
            _ => tracing::debug!(event = "peer-unreachable", "Peer {subnet}: {what}"),
        }
    }
}
