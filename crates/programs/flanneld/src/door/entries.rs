//! Wanted entries one by one with their state, and repairs on request.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flannel_backend::WantedBy;
use flannel_lease::Subnet;
use flannel_state::{EntryState, PeerCondition, PeerCounts, PeerState, RepairState};
use flannel_wanted::{Comparison, EntryQuery, EntryReport, Requesters};
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::{Door, PeersPage, Question, ask, line};
use crate::appliers::{Appliers, KERNEL};

/// An applier that waits for something is not waited for longer than this.
const LIMIT: Duration = Duration::from_secs(30);
/// Repairs of some wait for a cloud, or for programs.
const REPAIR_LIMIT: Duration = Duration::from_secs(120);

impl Door {
    pub(super) async fn send_entries(self, wrong_only: bool, send: mpsc::Sender<Bytes>) {
        for reading in self.0.report.of_each_network() {
            for place in 0..Appliers::COUNT {
                let mut after = None;
                while let Some(appliers) = ask(&reading, Question::Appliers).await {
                    let (name, applier) = appliers.each()[place];
                    let page = EntryQuery { of: Requesters::After(after), wrong_only };
                    let page = tokio::time::timeout(LIMIT, applier.entries(page)).await;
                    let Ok(Ok(page)) = page else { break };
                    // Not kept while a slow reader is waited for.
                    drop(appliers);
                    let Some(last) = page.last() else { break };
                    after = Some(last.requester);
                    let mut text = Vec::new();
                    for report in page {
                        line(&mut text, &entry_state(reading.network.as_str(), name, report));
                    }
                    if send.send(text.into()).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Goes on to its end, also if nobody listens any more.
    pub(super) async fn repair(self, send: mpsc::Sender<Bytes>) {
        tracing::info!(
            event = "repair-asked",
            "Somebody has asked for a repair: comparing everything"
        );
        for reading in self.0.report.of_each_network() {
            let network = reading.network.as_str();
            let tell = async |applier: &str, compared: Comparison| {
                let mut text = Vec::new();
                let Comparison { wanted, found, entries, removed, failure } = compared;
                let (network, applier) = (network.to_owned(), applier.to_owned());
                let state =
                    RepairState { network, applier, wanted, found, entries, removed, failure };
                line(&mut text, &state);
                let _ = send.send(text.into()).await;
            };
            let mut told = false;
            for place in 0..Appliers::COUNT {
                // Asked for anew each time: they are not kept while a slow reader is waited for.
                let Some(appliers) = ask(&reading, Question::Appliers).await else { break };
                let (name, applier) = appliers.each()[place];
                let compared = match tokio::time::timeout(REPAIR_LIMIT, applier.compare()).await {
                    Ok(compared) => compared.unwrap_or_else(|error| failed(error.to_string())),
                    Err(_) => failed(format!("it has not answered for {REPAIR_LIMIT:?}")),
                };
                drop(appliers);
                if name == KERNEL || compared != Comparison::default() {
                    tell(name, compared).await;
                    told = true;
                }
            }
            if !told {
                let why = "its daemon is starting, or waits for its store: there is nobody to ask";
                tell("", failed(why.to_owned())).await;
            }
        }
    }
}

fn failed(why: String) -> Comparison {
    Comparison { failure: Some(why), ..Comparison::default() }
}

/// How many peers have something missing, in a network where not everything is there.
pub(super) async fn count_incomplete(counts: PeerCounts, appliers: &Appliers) -> PeerCounts {
    let mut incomplete = BTreeSet::new();
    for (_, applier) in appliers.each() {
        let tally = tokio::time::timeout(LIMIT, applier.tally()).await;
        incomplete.extend(tally.ok().and_then(Result::ok).unwrap_or_default().incomplete);
    }
    with_incomplete(counts, &incomplete)
}

pub(super) fn with_incomplete(counts: PeerCounts, incomplete: &BTreeSet<WantedBy>) -> PeerCounts {
    let peers = incomplete.iter().filter(|who| matches!(who, WantedBy::Peer(_))).count();
    // Those who have vanished may lack something, too.
    PeerCounts { incomplete: peers.min(counts.known.saturating_sub(counts.unusable)), ..counts }
}

pub(super) async fn with_what_is_missing(page: PeersPage) -> Vec<(Subnet, PeerState)> {
    let PeersPage { mut peers, appliers } = page;
    let Some(appliers) = appliers else { return peers };
    let of: Vec<WantedBy> = peers.iter().map(|(subnet, _)| WantedBy::Peer(*subnet)).collect();
    let mut missing: BTreeMap<WantedBy, Vec<EntryReport<WantedBy>>> = BTreeMap::new();
    for (_, applier) in appliers.each() {
        let of = Requesters::These(of.clone());
        let query = EntryQuery { of, wrong_only: true };
        let reports = tokio::time::timeout(LIMIT, applier.entries(query)).await;
        for report in reports.ok().and_then(Result::ok).into_iter().flatten() {
            missing.entry(report.requester).or_default().push(report);
        }
    }
    for (subnet, peer) in &mut peers {
        if let Some(reports) = missing.get(&WantedBy::Peer(*subnet))
            && peer.condition == PeerCondition::Programmed
        {
            peer.condition = PeerCondition::Incomplete;
            peer.why = first_of(reports);
        }
    }
    peers
}

/// The first says what is wrong; the others most likely follow from it.
fn first_of(reports: &[EntryReport<WantedBy>]) -> Option<String> {
    let EntryReport { entry, why, .. } = reports.first()?;
    let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let more = match reports.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(format!("{entry}{why}{more}"))
}

fn entry_state(network: &str, applier: &str, report: EntryReport<WantedBy>) -> EntryState {
    let subnet = match report.requester {
        WantedBy::Node | WantedBy::Trial => None,
        WantedBy::Peer(subnet) => Some(subnet),
    };
    EntryState {
        network: network.to_owned(),
        subnet: subnet.and_then(|subnet| subnet.v4()).map(|net| net.to_string()),
        ipv6_subnet: subnet.and_then(|subnet| subnet.v6()).map(|net| net.to_string()),
        applier: applier.to_owned(),
        kind: report.kind.to_owned(),
        entry: report.entry,
        state: report.condition,
        why: report.why,
    }
}
