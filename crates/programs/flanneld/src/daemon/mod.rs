//! The node in one network: what happens from start to stop.
//!
//! [`Daemon`] owns all state and decides: its `step` takes an event and the present, and returns what to do. Each of its
//! parts has a file here (`own_lease`, `config_changes`, `key_rotation`, `peers`, …) and knows no clock but the `now` that it
//! is handed, so that a whole node can be run by a clock, a store and appliers of a test. Around it stands the rim: the loop
//! that waits for the next event, reads the clocks and carries out actions (`event_loop`), what comes before the first lease
//! (`starting`), the task that asks the store for the node's lease (`lease_task`), and the tasks of operators' requests
//! (`requests`). Nothing here needs a clean end: everything may be dropped at any await, and the next daemon goes on
//! from store, kernel and subnet file.

mod address_in_use;
mod backend_trial;
#[cfg(test)]
mod clock_tests;
mod config_changes;
mod config_check;
mod connectivity;
mod earlier;
mod event;
mod event_loop;
mod figures;
mod first_pages;
mod former_config;
mod heap_trims;
mod identity;
mod issues;
mod key_rotation;
mod lease_task;
pub(crate) mod link_holders;
mod marked_packets;
mod needs;
mod network;
mod network_conflicts;
mod node_changes;
#[cfg(test)]
mod node_tests;
mod now;
mod own_lease;
mod peers;
mod pod_bridge;
mod probing;
mod programming;
mod readiness;
mod requests;
mod starting;
mod state_report;
mod store_report;
mod subnet_file;
mod trace;
mod unusable_peers;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use flannel_backend::PrivilegePolicy;
use flannel_common::{IfName, run_if_any};
use flannel_lease::{LeaseTable, Subnet, SubnetFile};
use flannel_node::options::Options;
use flannel_probe::Prober;
use flannel_store::{AnnouncedSince, NodeStore, StoreEvent, StoredLease};
use flannel_wanted::Status;
use tokio::sync::{mpsc, watch};

use crate::appliers::Appliers;
use crate::readiness::Report;
use crate::stopping::Stopping;

use config_changes::ConfigState;
use earlier::EarlierNetworks;
use event::{Action, Event};
pub use figures::Figures;
use heap_trims::HeapTrims;
use key_rotation::{KeyEvent, KeyRotation};
use link_holders::HolderMap;
use network::{HostFacts, JoinedNetwork};
pub use network_conflicts::NetworkClaims;
use now::Now;
use own_lease::OwnLease;
use peers::{PeerContext, Peers};
use probing::PeerCompleteness;
use readiness::StartupReadiness;
use requests::RequestContext;
use state_report::StoreContact;
pub(crate) use state_report::moment;
use store_report::keep_telling;
use subnet_file::SubnetFileSchedule;

pub struct Setup {
    pub options: Options,
    pub store: Arc<dyn NodeStore>,
    pub report: Report,
    pub privileges: PrivilegePolicy,
    /// Looks whether peers are reached; `None` if that is not wanted.
    pub prober: Option<Prober>,
    pub claims: Arc<NetworkClaims>,
    pub subnet_file: PathBuf,
    /// What its leases say of the id of this machine. A machine that has none says nothing.
    pub machine_hash: Option<NonZeroU64>,
    pub previous: SubnetFile,
    pub seed: u64,
}

/// Runs until it is dropped or asked to stop, or until something is wrong that only a person can fix.
pub async fn run(setup: Setup, appliers: Appliers, mut stopping: Stopping) -> anyhow::Result<()> {
    let (store, readiness) = (setup.store.clone(), setup.report.watch_readiness());
    let prober = setup.prober.clone();
    let (show_node, node) = watch::channel(None);
    let (config_checks, checks) = mpsc::channel(config_check::PENDING_CHECKS);
    let context = RequestContext {
        store: store.clone(),
        prober: prober.clone(),
        node,
        report: setup.report.clone(),
        config_checks,
        seed: setup.seed,
    };
    tokio::select! {
        result = starting::run(setup, appliers.clone(), show_node, checks) => result,
        never = keep_telling(&*store, readiness) => match never {},
        never = run_if_any(prober.map(Prober::run)) => match never {},
        never = requests::keep_answering(context) => match never {},
        () = stopping.requested() => {
            appliers.stop().await;
            Ok(())
        }
    }
}

/// Leases with the store's evidence for since when they announce what they do.
fn announced_since(leases: &[StoredLease]) -> Vec<(Subnet, Option<AnnouncedSince>)> {
    leases.iter().map(|stored| (stored.lease.subnet, stored.since)).collect()
}

/// A node that has joined its network. It decides, and leaves it to the loop around it to wait and to act.
struct Daemon {
    setup: Arc<Setup>,
    config: ConfigState,
    network: JoinedNetwork,
    host: HostFacts,
    own: OwnLease,
    table: LeaseTable,
    peers: Peers,
    /// Interfaces that pods were behind when the traffic rules were made.
    pod_links: Vec<IfName>,
    store_contact: StoreContact,
    earlier: EarlierNetworks,
    /// What the log has said of how this node takes the network, so that it is said once.
    remarks: Vec<String>,
    subnet_file: SubnetFileSchedule,
    completeness: PeerCompleteness,
    key_rotation: KeyRotation,
    heap_trims: HeapTrims,
    readiness: StartupReadiness,
    spare_port: fn() -> u16,
    actions: Vec<Action>,
}

struct Joined {
    text: String,
    host: HostFacts,
    network: JoinedNetwork,
    own: OwnLease,
    others: Vec<StoredLease>,
    /// Who is known from earlier runs to have had which MAC or key first.
    holders: HolderMap,
}

impl Daemon {
    fn new(setup: Arc<Setup>, joined: Joined, spare_port: fn() -> u16, now: &Now) -> Self {
        let Joined { text, host, network, own, others, holders } = joined;
        let mut table = LeaseTable::new();
        table.set_own(Some(own.subnet()));
        let arrived = announced_since(&others);
        table.snapshot(others.into_iter().map(|stored| stored.lease));
        let mut peers = Peers::new(holders);
        let context = PeerContext { network: &network, own: own.lease(), table: &table };
        peers.settle_disputes(context, &arrived);
        let mut earlier = EarlierNetworks::default();
        earlier.remember(setup.previous.all_networks());
        Self {
            config: ConfigState::new(text, network.node.answers.clone(), setup.seed, now),
            network,
            host,
            own,
            table,
            peers,
            pod_links: Vec::new(),
            store_contact: StoreContact { since: now.time, lost: None },
            earlier,
            remarks: Vec::new(),
            subnet_file: SubnetFileSchedule::new(now),
            completeness: PeerCompleteness::default(),
            key_rotation: KeyRotation::default(),
            heap_trims: HeapTrims::new(now.instant),
            readiness: StartupReadiness::new(now),
            spare_port,
            actions: Vec::new(),
            setup,
        }
    }

    /// Takes what happened, and returns what is to be done about it, in this order.
    fn step(&mut self, event: Event, now: &Now) -> Vec<Action> {
        match event {
            Event::Joined => {
                self.program(now);
                self.act(Action::RequireRules);
                self.write_subnet_file(now);
            }
            Event::Store(events) => self.on_store(events, now),
            Event::Lease(outcome) => self.on_lease_outcome(outcome, now),
            Event::Facts(host) => {
                self.on_facts(host, now);
                self.reconsider_config(now);
            }
            Event::Status(status) => self.on_status(status, now),
            Event::ConfigCheck(check) => self.on_config_check(check),
            Event::TrialEnded(result) => self.on_trial_end(result, now),
            Event::NeedsResolved(found) => self.on_needs_resolved(found, now),
            Event::NetworksChanged => self.on_networks_changed(now),
            Event::ChecksumsBroken => self.on_broken_checksum(now),
            Event::Timer => self.on_timer(now),
            Event::Paths(paths, declaration) => self.on_paths(paths, declaration, now),
            Event::IncompletePeers(incomplete) => self.on_incomplete_peers(&incomplete, now),
            Event::SubnetFileWritten(result) => self.subnet_file.on_written(result, now),
            Event::Key(event) => self.rotate_key(event, now),
            Event::HarmlessNeeds(check, answers) => self.on_harmless_needs(check, answers),
        }
        std::mem::take(&mut self.actions)
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn next_wake(&self, now: &Now) -> Option<Instant> {
        let key = self.network.node.answers.private_key.as_ref();
        let wakes = [
            self.own.next_wake(now),
            self.peers.next_wake(),
            self.config.next_wake(),
            self.completeness.due,
            self.readiness.next_wake(now),
            self.heap_trims.next_wake(),
            Some(self.subnet_file.due),
            key.and_then(|_| self.key_rotation.next_wake(now)),
            self.peers.link_holders.next_write(),
        ];
        wakes.into_iter().flatten().min()
    }

    fn on_timer(&mut self, now: &Now) {
        let departed = self.peers.departed(now.instant);
        if !departed.is_empty() {
            self.act(Action::Update(departed));
            self.probe_all();
            // Those that the departed had been before get what they announce.
            let waiting = self.peers.waiting(&self.table);
            self.apply(waiting, now);
        }
        if self.heap_trims.take_due(now.instant) {
            self.act(Action::TrimHeap);
        }
        self.keep_holders(now);
        self.check_subnet_file(now);
        self.look_for_incomplete_peers(now);
        if let Some(text) = self.config.due(now) {
            self.on_config(text, now);
        }
        self.rotate_key(KeyEvent::Timer, now);
    }

    /// Everything that was asked for has been done, and so the appliers are.
    fn on_status(&mut self, status: Status, now: &Now) {
        let status = self.without_trial(status);
        self.end_probation(&status, now);
        self.ask_for_lease(now);
        self.judge(&status, now);
        if self.setup.prober.is_some() {
            self.completeness.note(&status, now.instant);
        }
    }

    /// Takes everything the store had to say at once, so that a burst becomes one batch.
    fn on_store(&mut self, events: Vec<StoreEvent>, now: &Now) {
        let mut changes = Vec::new();
        for event in events {
            match event {
                StoreEvent::Put(stored) => {
                    self.own.on_put(&stored, now);
                    changes.extend(self.table.put(stored.lease));
                }
                StoreEvent::Gone(subnet) => {
                    self.own.on_gone(&subnet, now);
                    changes.extend(self.table.remove(&subnet));
                }
                StoreEvent::Snapshot(leases) => {
                    self.own.on_snapshot(&leases, now);
                    let arrived = announced_since(&leases);
                    let leases = leases.into_iter().map(|stored| stored.lease);
                    let differences = self.table.snapshot(leases);
                    changes.extend(self.peers.defer_removals(differences, now.instant));
                    let (network, own, table) = (&self.network, self.own.lease(), &self.table);
                    self.peers.settle_disputes(PeerContext { network, own, table }, &arrived);
                }
                StoreEvent::Assigned(subnet) => self.own.on_assigned(subnet, now),
                StoreEvent::Config(text) => {
                    peers::tell(&changes);
                    self.apply(std::mem::take(&mut changes), now);
                    self.on_config(text, now);
                }
                StoreEvent::ConfigGone => {
                    self.config.refused = None;
                    tracing::error!(
                        "The network config was deleted: this node keeps the network it has; write it \
                         again with {}",
                        self.setup.store.how_to_write_config()
                    );
                }
                StoreEvent::Down(why) => {
                    tracing::error!(
                        event = "store-lost",
                        "The store is unreachable: {why}; traffic goes on with the peers known so far"
                    );
                    self.store_contact = StoreContact { since: now.time, lost: Some(why) };
                }
                StoreEvent::Up => {
                    tracing::info!(event = "store-found", "The store is reachable again");
                    self.store_contact = StoreContact { since: now.time, lost: None };
                }
            }
        }
        if !changes.is_empty() {
            peers::tell(&changes);
            self.apply(changes, now);
            self.act(Action::NoteLatency(now.instant));
        }
    }
}
