//! Whether pods of this node reach those of others: in each network it has joined, and so in all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use flannel_lease::NetworkName;
use flannel_state::Verdict;
use flannel_store::NodeNetwork;
use tokio::sync::{mpsc, watch};

use crate::door::Question;
use crate::notify;

/// Questions that wait for the daemon of a network; more wait for a place in the queue.
const QUEUED_QUESTIONS: usize = 16;

/// May change either way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// Ready, and something is worth knowing.
    ReadyBut(String),
    /// All that is flannel's to do is done, and yet pods are cut off: by what, for people.
    Hindered(String),
    /// Why not, for people.
    NotReady(String),
}

impl Readiness {
    /// Nothing keeps pods from each other, as far as this node can tell.
    fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::ReadyBut(_))
    }

    /// A service manager that starts others after this one need not wait for what the host does: it may
    /// be one of those that fix it, as Docker does by switching forwarding on.
    pub fn has_begun(&self) -> bool {
        !matches!(self, Self::NotReady(_))
    }

    /// The same for a store, which asks no more than whether pods reach each other.
    pub fn node_network(&self) -> NodeNetwork {
        match self {
            Self::Ready | Self::ReadyBut(_) => NodeNetwork::Works,
            Self::Hindered(why) | Self::NotReady(why) => NodeNetwork::Fails(why.clone()),
        }
    }

    /// The same for whoever reads the daemon's state, with what is to be said of it.
    pub fn verdict(&self) -> (Verdict, Option<String>) {
        let verdict = match self {
            Self::Ready => Verdict::Ready,
            Self::ReadyBut(_) => Verdict::ReadyBut,
            Self::Hindered(_) => Verdict::CutOff,
            Self::NotReady(_) => Verdict::NotReady,
        };
        (verdict, self.remark().filter(|why| !why.is_empty()).map(ToOwned::to_owned))
    }

    fn remark(&self) -> Option<&str> {
        match self {
            Self::Ready => None,
            Self::ReadyBut(what) | Self::Hindered(what) | Self::NotReady(what) => Some(what),
        }
    }
}

/// Where the daemon of one network says how it is.
#[derive(Clone)]
pub struct Report {
    network: NetworkName,
    /// Readiness of this network alone.
    own: watch::Sender<Readiness>,
    board: Arc<Board>,
}

struct Board {
    networks: Mutex<BTreeMap<NetworkName, Readiness>>,
    /// Whom to ask for more, of each network whose daemon has come so far.
    askable: Mutex<BTreeMap<NetworkName, mpsc::Sender<Question>>>,
    all: watch::Sender<Readiness>,
}

/// One report for each network, and what they come to.
pub fn reports(
    networks: impl Iterator<Item = NetworkName>,
) -> (Vec<Report>, watch::Receiver<Readiness>) {
    let starting = Readiness::NotReady("starting".to_owned());
    let (all, overall) = watch::channel(starting.clone());
    let names: Vec<_> = networks.collect();
    let networks = names.iter().map(|name| (name.clone(), starting.clone())).collect();
    let askable = Mutex::new(BTreeMap::new());
    let board = Arc::new(Board { networks: Mutex::new(networks), askable, all });
    let own = || watch::Sender::new(starting.clone());
    let report = |network| Report { network, own: own(), board: board.clone() };
    (names.into_iter().map(report).collect(), overall)
}

impl Report {
    pub fn network(&self) -> &NetworkName {
        &self.network
    }

    /// All networks, for whoever asks for more than whether they are ready.
    pub fn readings(&self) -> Readings {
        Readings(self.board.clone())
    }

    /// From now on the daemon of this network answers questions, as long as it keeps what is returned.
    pub fn take_questions(&self) -> mpsc::Receiver<Question> {
        let (ask, questions) = mpsc::channel(QUEUED_QUESTIONS);
        let mut askable = self.board.askable.lock().unwrap_or_else(PoisonError::into_inner);
        askable.insert(self.network.clone(), ask);
        questions
    }

    /// Readiness of this network, and a way to wait for its next change.
    pub fn watch_readiness(&self) -> watch::Receiver<Readiness> {
        self.own.subscribe()
    }

    pub fn say(&self, readiness: Readiness) {
        self.own.send_if_modified(|former| {
            let changed = *former != readiness;
            *former = readiness.clone();
            changed
        });
        let mut networks = self.board.networks.lock().unwrap_or_else(PoisonError::into_inner);
        networks.insert(self.network.clone(), readiness);
        let overall = overall(&networks);
        // Still under the lock: what is said last is what is heard last.
        self.board.all.send_if_modified(|former| {
            let changed = *former != overall;
            if overall.has_begun() && !former.has_begun() {
                notify::ready();
            }
            *former = overall;
            changed
        });
    }
}

/// What the networks say of themselves.
#[derive(Clone)]
pub struct Readings(Arc<Board>);

/// A network as it was said to be, and whom to ask for more if there is anybody.
pub struct Reading {
    pub network: NetworkName,
    pub readiness: Readiness,
    pub ask: Option<mpsc::Sender<Question>>,
}

impl Readings {
    pub fn of_each_network(&self) -> Vec<Reading> {
        let networks = self.0.networks.lock().unwrap_or_else(PoisonError::into_inner);
        let askable = self.0.askable.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = |(network, readiness): (&NetworkName, &Readiness)| Reading {
            network: network.clone(),
            readiness: readiness.clone(),
            ask: askable.get(network).cloned(),
        };
        networks.iter().map(reading).collect()
    }

    /// Where the daemon of a network takes questions, if it has come so far.
    pub fn asking(&self, network: &NetworkName) -> Option<mpsc::Sender<Question>> {
        self.0.askable.lock().unwrap_or_else(PoisonError::into_inner).get(network).cloned()
    }
}

/// Ready when every network is; else what is wrong, and with which.
fn overall(networks: &BTreeMap<NetworkName, Readiness>) -> Readiness {
    let ready = networks.values().all(Readiness::is_ready);
    // Of networks that are not ready, and else of those that are with a remark.
    let said = networks.iter().filter(|(_, readiness)| ready || !readiness.is_ready());
    let said: Vec<String> = said
        .filter_map(|(network, readiness)| {
            let what = readiness.remark()?;
            let alone = networks.len() == 1;
            Some(if alone { what.to_owned() } else { format!("network {network}: {what}") })
        })
        .collect();
    let said_in_all = said.join("; ");
    match (ready, said.is_empty()) {
        (true, true) => Readiness::Ready,
        (true, false) => Readiness::ReadyBut(said_in_all),
        (false, _) if networks.values().all(Readiness::has_begun) => {
            Readiness::Hindered(said_in_all)
        }
        (false, _) => Readiness::NotReady(said_in_all),
    }
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
        blue.say(Readiness::Ready);
        assert_eq!(
            *overall.borrow(),
            Readiness::NotReady("network green: starting".to_owned()),
            "one of two is not enough"
        );
        green.say(Readiness::Ready);
        assert_eq!(*overall.borrow(), Readiness::Ready);
        blue.say(Readiness::NotReady("no lease".to_owned()));
        assert_eq!(*overall.borrow(), Readiness::NotReady("network blue: no lease".to_owned()));
    }

    #[test]
    fn what_the_host_does_to_one_network_is_said_of_all() {
        let (reports, overall) = reports(names(&["blue", "green"]));
        let [blue, green] = reports.as_slice() else { panic!("two") };
        blue.say(Readiness::Hindered("no forwarding".to_owned()));
        let both = "network blue: no forwarding; network green: starting".to_owned();
        assert_eq!(*overall.borrow(), Readiness::NotReady(both));
        green.say(Readiness::Ready);
        let one = "network blue: no forwarding".to_owned();
        assert_eq!(*overall.borrow(), Readiness::Hindered(one));
    }

    #[test]
    fn one_network_alone_need_not_be_named() {
        let (reports, overall) = reports(names(&["_"]));
        reports[0].say(Readiness::NotReady("no lease".to_owned()));
        assert_eq!(*overall.borrow(), Readiness::NotReady("no lease".to_owned()));
    }
}
