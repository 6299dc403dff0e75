//! Whether pods of this node reach those of others: in each network it has joined, and so in all.

use std::collections::BTreeMap;
use std::sync::Arc;

use flannel_common::send_if_changed;
use flannel_lease::NetworkName;
use flannel_state::Verdict;
use flannel_store::NodeNetwork;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::door::Question;
use crate::notify;

/// Questions that wait for the daemon of a network; more wait for a place in the queue.
const QUEUED_QUESTIONS: usize = 16;

/// How good it is, and why for people. May change either way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    pub verdict: Verdict,
    /// What is wrong or worth knowing; empty if there is nothing to say.
    pub why: String,
}

impl Readiness {
    pub fn new(verdict: Verdict, why: impl Into<String>) -> Self {
        Self { verdict, why: why.into() }
    }

    pub fn not_ready(why: impl Into<String>) -> Self {
        Self::new(Verdict::NotReady, why)
    }

    /// Whether a service manager may start others: it need not wait for what the host does, which those may fix.
    pub fn has_begun(&self) -> bool {
        self.verdict < Verdict::NotReady
    }

    /// The same for a store, which asks no more than whether pods reach each other.
    pub fn node_network(&self) -> NodeNetwork {
        match self.verdict.is_healthy() {
            true => NodeNetwork::Works,
            false => NodeNetwork::Fails(self.why.clone()),
        }
    }

    pub fn remark(&self) -> Option<String> {
        Some(self.why.clone()).filter(|why| !why.is_empty())
    }
}

#[derive(Clone)]
pub struct Report {
    pub network: NetworkName,
    own: watch::Sender<Readiness>,
    board: Arc<Board>,
}

struct Board {
    networks: Mutex<BTreeMap<NetworkName, Reading>>,
    all: watch::Sender<Readiness>,
}

#[derive(Clone)]
pub struct Reading {
    pub network: NetworkName,
    pub readiness: Readiness,
    /// Whom to ask for more, if its daemon has come so far.
    pub ask: Option<mpsc::Sender<Question>>,
}

pub fn reports(
    networks: impl Iterator<Item = NetworkName>,
) -> (Vec<Report>, watch::Receiver<Readiness>) {
    let starting = Readiness::not_ready("starting");
    let (all, overall) = watch::channel(starting.clone());
    let reading = |network: NetworkName| {
        let readiness = starting.clone();
        (network.clone(), Reading { network, readiness, ask: None })
    };
    let names: Vec<_> = networks.collect();
    let networks = Mutex::new(names.iter().cloned().map(reading).collect());
    let board = Arc::new(Board { networks, all });
    let own = || watch::Sender::new(starting.clone());
    let report = |network| Report { network, own: own(), board: board.clone() };
    (names.into_iter().map(report).collect(), overall)
}

impl Report {
    /// All networks, for whoever asks for more than whether they are ready.
    pub fn of_each_network(&self) -> Vec<Reading> {
        self.board.networks.lock().values().cloned().collect()
    }

    /// Where the daemon of this network takes questions, if it has come so far.
    pub fn asking(&self) -> Option<mpsc::Sender<Question>> {
        self.board.networks.lock().get(&self.network)?.ask.clone()
    }

    /// From now on the daemon of this network answers questions, as long as it keeps what is returned.
    pub fn take_questions(&self) -> mpsc::Receiver<Question> {
        let (ask, questions) = mpsc::channel(QUEUED_QUESTIONS);
        if let Some(reading) = self.board.networks.lock().get_mut(&self.network) {
            reading.ask = Some(ask);
        }
        questions
    }

    pub fn watch_readiness(&self) -> watch::Receiver<Readiness> {
        self.own.subscribe()
    }

    pub fn say(&self, readiness: Readiness) {
        send_if_changed(&self.own, readiness.clone());
        let mut networks = self.board.networks.lock();
        if let Some(reading) = networks.get_mut(&self.network) {
            reading.readiness = readiness;
        }
        let overall = overall(&networks);
        // Still under the lock: what is said last is what is heard last.
        if overall.has_begun() && !self.board.all.borrow().has_begun() {
            notify::ready();
        }
        send_if_changed(&self.board.all, overall);
    }
}

/// As the worst of the networks; with what is wrong or, where nothing is, worth knowing, and with which.
fn overall(networks: &BTreeMap<NetworkName, Reading>) -> Readiness {
    let worst = networks.values().map(|it| it.readiness.verdict).max();
    let verdict = worst.unwrap_or(Verdict::Ready);
    let counts = |it: &&Reading| verdict.is_healthy() || !it.readiness.verdict.is_healthy();
    let remarks = networks.values().filter(counts).filter_map(|it| {
        let remark = it.readiness.remark()?;
        let is_alone = networks.len() == 1;
        Some(if is_alone { remark } else { format!("network {}: {remark}", it.network) })
    });
    Readiness::new(verdict, remarks.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> impl Iterator<Item = NetworkName> {
        names.iter().map(|name| name.parse().expect("a name"))
    }

    #[test]
    fn the_node_is_ready_when_every_network_is() {
        let (reports, overall) = reports(names(&["blue", "green"]));
        let [blue, green] = reports.as_slice() else { panic!("two") };
        blue.say(Readiness::new(Verdict::Ready, ""));
        assert_eq!(
            *overall.borrow(),
            Readiness::not_ready("network green: starting"),
            "one of two is not enough"
        );
        green.say(Readiness::new(Verdict::Ready, ""));
        assert_eq!(*overall.borrow(), Readiness::new(Verdict::Ready, ""));
        blue.say(Readiness::not_ready("no lease"));
        assert_eq!(*overall.borrow(), Readiness::not_ready("network blue: no lease"));
    }

    #[test]
    fn what_the_host_does_to_one_network_is_said_of_all() {
        let (reports, overall) = reports(names(&["blue", "green"]));
        let [blue, green] = reports.as_slice() else { panic!("two") };
        blue.say(Readiness::new(Verdict::CutOff, "no forwarding"));
        let both = "network blue: no forwarding; network green: starting".to_owned();
        assert_eq!(*overall.borrow(), Readiness::not_ready(both));
        green.say(Readiness::new(Verdict::Ready, ""));
        let one = "network blue: no forwarding".to_owned();
        assert_eq!(*overall.borrow(), Readiness::new(Verdict::CutOff, one));
    }

    #[test]
    fn one_network_alone_need_not_be_named() {
        let (reports, overall) = reports(names(&["_"]));
        reports[0].say(Readiness::not_ready("no lease"));
        assert_eq!(*overall.borrow(), Readiness::not_ready("no lease"));
    }
}
