//! The node in one network: what happens from start to stop.
//!
//! One task owns all state and waits for whatever comes: a change in the store (here, and for the config in
//! `config_changes`), a change of the node (`node_changes`), a timer. Each of them ends in the same two
//! questions, answered by pure functions elsewhere: what is this node to announce (`lease`), and what is to
//! be wanted of the kernel and other appliers (`programming`)? Nothing here needs a clean end: the task
//! may be dropped at any await, and the next daemon goes on from store, kernel and subnet file.

mod address_in_use;
mod backend_trial;
mod config_changes;
mod config_check;
mod connectivity;
mod earlier;
mod figures;
mod first_pages;
mod former_config;
mod identity;
mod issues;
mod key_rotation;
mod lease;
pub(crate) mod link_holders;
mod marked_packets;
mod needs;
mod network;
mod network_conflicts;
mod node_changes;
mod peers;
mod pod_bridge;
mod probing;
mod programming;
mod public_addresses;
mod readiness;
mod requests;
mod rules;
mod subnet_file;
mod telling_state;
mod telling_store;
mod timing;
mod trace;
mod uptime;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use flannel_backend::{Answers, Judged, PrivilegePolicy, Stack, Wishes};
use flannel_kernel::Facts;
use flannel_lease::{LeaseTable, NetworkConfig, Previous, Subnet};
use flannel_metrics::Latency;
use flannel_probe::{IncompletePeers, Prober};
use flannel_store::{AnnouncedSince, Snapshot, Store, StoreEvent};
use ipnet::IpNet;
use tokio::sync::{mpsc, watch};

use crate::appliers::Appliers;
use crate::link_holders_file::{LinkHoldersFile, LinkHoldersWriter};
use crate::machine::Machine;
use crate::options::Options;
use crate::readiness::{Readiness, Report};
use crate::stopping::Stopping;
use crate::{checks, memory};

use backend_trial::{BackendTrial, Probation, end_of_trial};
use config_changes::{RefusedConfig, another_config, say_remarks, wait_for_config};
use config_check::ConfigCheck;
use earlier::EarlierNetworks;
pub use figures::{Figures, PoolFigures};
use key_rotation::KeyRotation;
use lease::OwnLease;
use needs::FindingOut;
use network::{JoinedNetwork, NetworkError, OnLan};
pub use network_conflicts::TakenByNetworks;
use peers::Peers;
use requests::{Means, NodeNow};
use rules::TrafficRules;
use telling_state::StoreContact;
use telling_store::keep_telling;
use timing::{PATIENCE_WITH_PEERS, TIDY_AFTER, TIDY_AGAIN, TIDY_EVERY, sleep_until};

/// What the daemon is given to work with.
pub struct Setup {
    pub options: Options,
    pub store: Arc<dyn Store>,
    pub appliers: Appliers,
    pub report: Report,
    /// What this node grants to network configs.
    pub privileges: PrivilegePolicy,
    /// Looks whether peers are reached; `None` if that is not wanted.
    pub prober: Option<Prober>,
    /// What the networks of this node have.
    pub taken: Arc<TakenByNetworks>,
    pub subnet_file: PathBuf,
    pub machine: Machine,
    pub previous: Previous,
    pub seed: u64,
    pub stopping: Stopping,
}

/// Runs until it is dropped or asked to stop, or until something is wrong that only a person can mend.
pub async fn run(setup: Setup) -> anyhow::Result<()> {
    let (appliers, mut stopping) = (setup.appliers.clone(), setup.stopping.clone());
    let (store, said) = (setup.store.clone(), setup.report.said());
    let prober = setup.prober.clone();
    let (now, node) = watch::channel(None);
    let daemon = (setup.report.readings(), setup.report.network().clone());
    let (config_checks, checks) = config_check::channel();
    let means = Means { store: store.clone(), prober: prober.clone(), node, daemon, config_checks };
    tokio::select! {
        result = live(setup, now, checks) => result,
        never = keep_telling(&*store, said) => match never {},
        never = probing::keep_probing(prober) => match never {},
        never = requests::keep_answering(means) => match never {},
        () = stopping.requested() => {
            appliers.stop().await;
            Ok(())
        }
    }
}

async fn live(
    mut setup: Setup,
    now: watch::Sender<Option<Arc<NodeNow>>>,
    config_checks: mpsc::Receiver<ConfigCheck>,
) -> anyhow::Result<()> {
    // Before the rules of any other network are written, so that ours are not taken for leftovers.
    let rules = TrafficRules::new(&setup.options.traffic, &earlier_networks(&setup.previous))?;
    public_addresses::take_from_store(&mut setup).await;
    let (text, used, place) = loop {
        let (text, config) = wait_for_config(&setup).await;
        tracing::info!("Found network config - Backend type: {}", config.backend.kind);
        let judged = match flannel_backend::judge(&text, setup.store.subnets()) {
            Ok(judged) => judged,
            Err(error) => bail!("{error}"),
        };
        say_remarks(&judged);
        let asked = judged.backend.privileges();
        let granted = setup.privileges.check(&asked);
        setup.privileges.start_with(asked);
        if let Err(withheld) = granted {
            let why = format!("The network config {withheld}");
            tracing::error!("{why}; waiting, nothing on this node is changed");
            setup.report.say(Readiness::NotReady(why));
            another_config(&setup, &text).await;
            continue;
        }
        // With a config that is wrong there may be no place until somebody has written another.
        tokio::select! {
            found = find_place(&setup, &text, judged) => {
                let (used, place) = found?;
                break (text, used, place);
            }
            () = another_config(&setup, &text) => {
                tracing::info!("The network config has changed: starting with the new one");
            }
        }
    };
    let mut daemon = Daemon::join(setup, rules, used, place, now).await?;
    // If it goes on with what a former daemon left, it changes from there.
    daemon.on_config(text).await?;
    daemon.serve(config_checks).await
}

/// This node's place in the network that a config describes, or in the one it had before if only the backend is another;
/// and the config of that network.
async fn find_place(setup: &Setup, text: &str, judged: Judged) -> anyhow::Result<(String, Place)> {
    // At a start a config without a backend means udp, whatever was in use: the Go flannel has it so.
    if judged.names_backend
        && let Some(before) = former_config::join_as_before(setup, text, &judged.config).await
    {
        return Ok(before);
    }
    Ok((text.to_owned(), Place::find(setup, judged).await?))
}

/// This node's place in a network: how it takes part in it, and its subnet.
struct Place {
    answers: Answers,
    facts: watch::Receiver<Arc<Facts>>,
    network: JoinedNetwork,
    own: OwnLease,
    others: Snapshot,
}

impl Place {
    /// Takes as long as it takes to get a subnet.
    async fn find(setup: &Setup, judged: Judged) -> anyhow::Result<Self> {
        let config = judged.config;
        checks::bridge_filter(Stack::of(&config), config.nftables)?;
        let answers = needs::find_out_at_last(setup, judged.backend.needs()).await;
        match Self::try_in(setup, config, answers).await {
            Ok(place) => Ok(place),
            Err(error) => bail!("{error}"),
        }
    }

    /// The same when it is known what the backend needs to know.
    async fn try_in(
        setup: &Setup,
        config: NetworkConfig,
        answers: Answers,
    ) -> Result<Self, NetworkError> {
        let mut facts = setup.appliers.kernel().facts();
        let now = facts.borrow_and_update().clone();
        let on_lan = match identity::was_in(setup, &config, &now) {
            true => OnLan::Warn,
            false => OnLan::RefuseInside,
        };
        let network = JoinedNetwork::new(setup, config, answers.clone(), &now, on_lan).await?;
        network.say_underlay();
        let (own, others) = OwnLease::acquire(setup, &network, now).await;
        Ok(Self { answers, facts, network, own, others })
    }
}

fn earlier_networks(previous: &Previous) -> Vec<IpNet> {
    let v4 = previous.network.map(IpNet::V4);
    v4.into_iter().chain(previous.ipv6_network.map(IpNet::V6)).collect()
}

struct Daemon {
    setup: Setup,
    config_text: String,
    /// A config that was written since and cannot be used here.
    refused: Option<RefusedConfig>,
    /// What was found out for the backend of the config that came last.
    answers: Answers,
    /// That being found out for a config that is refused until then.
    finding_out: Option<FindingOut>,
    /// Another config that is tried beside the one in use.
    trial: Option<BackendTrial>,
    /// What is wanted for that; and for a moment longer when the node changes over.
    tried: Wishes,
    /// The network has not yet been seen to work.
    probation: Option<Probation>,
    network: JoinedNetwork,
    own: OwnLease,
    table: LeaseTable,
    peers: Peers,
    holders_writer: LinkHoldersWriter,
    rules: TrafficRules,
    events: mpsc::Receiver<StoreEvent>,
    contact: StoreContact,
    /// From hearing of changes to their having been written.
    store_to_kernel: Latency,
    facts: watch::Receiver<Arc<Facts>>,
    earlier: EarlierNetworks,
    /// What has been said of how the network is taken, so that it is said once.
    remarks: Vec<String>,
    /// When it is next looked at, or tried again.
    subnet_file_due: Instant,
    /// Why it cannot be written.
    subnet_file_error: Option<String>,
    /// When it is next looked at who of the peers lacks something, while anything is missing.
    incomplete_due: Option<Instant>,
    /// Who of them does.
    incomplete: IncompletePeers,
    /// Nothing is missing at the moment.
    is_complete: bool,
    key_rotation: KeyRotation,
    /// When memory and pages of the program that are not needed any more are given back.
    tidy_due: Instant,
    /// The pause after that.
    tidy_pause: Duration,
    /// Until when peers that cannot be programmed keep the node from being ready.
    patience: Instant,
    ready: bool,
    /// This node as it is now, for those who do as operators ask.
    now: watch::Sender<Option<Arc<NodeNow>>>,
}

impl Daemon {
    /// Programs the kernel for all peers known now, and says so.
    async fn join(
        setup: Setup,
        rules: TrafficRules,
        text: String,
        place: Place,
        now: watch::Sender<Option<Arc<NodeNow>>>,
    ) -> anyhow::Result<Self> {
        let Place { answers, facts, network, own, others } = place;
        let mut table = LeaseTable::new();
        table.set_own(Some(own.subnet()));
        let arrived: Vec<(Subnet, Option<AnnouncedSince>)> =
            others.leases.iter().map(|stored| (stored.lease.subnet, stored.since)).collect();
        table.snapshot(others.leases.into_iter().map(|stored| stored.lease));
        let events = setup.store.watch(others.cursor);
        let holders_file = LinkHoldersFile::new(&setup.options.data_dir, &setup.subnet_file);
        let mut peers = Peers::new(holders_file.read());
        peers.take_order(&network, own.lease(), &table, &arrived);
        let mut earlier = EarlierNetworks::default();
        earlier.remember(earlier_networks(&setup.previous));
        let mut daemon = Self {
            setup,
            config_text: text,
            refused: None,
            answers,
            finding_out: None,
            trial: None,
            tried: Wishes::default(),
            probation: Some(Probation::of_first_network()),
            network,
            own,
            table,
            peers,
            holders_writer: LinkHoldersWriter::new(holders_file),
            rules,
            events,
            contact: StoreContact::found(),
            store_to_kernel: Latency::default(),
            facts,
            earlier,
            remarks: Vec::new(),
            subnet_file_due: Instant::now(),
            subnet_file_error: None,
            incomplete_due: None,
            incomplete: IncompletePeers::Nobody,
            is_complete: true,
            key_rotation: KeyRotation::default(),
            tidy_due: Instant::now() + TIDY_AFTER,
            tidy_pause: TIDY_AGAIN,
            patience: Instant::now() + PATIENCE_WITH_PEERS,
            ready: false,
            now,
        };
        daemon.program().await?;
        let facts = daemon.facts.borrow().clone();
        daemon.rules.follow(&daemon.network, daemon.own.subnet(), &facts).await?;
        daemon.write_subnet_file();
        tracing::info!("Running backend.");
        Ok(daemon)
    }

    async fn serve(
        &mut self,
        mut config_checks: mpsc::Receiver<ConfigCheck>,
    ) -> anyhow::Result<()> {
        let mut status = self.setup.appliers.watch_status();
        let mut rules = self.rules.health();
        let mut taken = self.setup.taken.changes();
        let mut checksum = self.setup.prober.as_ref().map(Prober::checksum_is_broken);
        let mut questions = self.setup.report.take_questions();
        // Something may have been taken from us while we joined.
        self.on_taken().await?;
        let at_first = self.without_trial(status.now());
        self.judge(&at_first);
        loop {
            let wake = self.next_wake();
            tokio::select! {
                event = self.events.recv() => {
                    let event = event.context("the store's watch has ended")?;
                    self.on_store(event).await?;
                }
                changed = self.facts.changed() => {
                    changed.context("the kernel engine has stopped")?;
                    self.on_facts().await?;
                    self.reconsider().await?;
                }
                changed = status.changed() => {
                    changed.context("an applier has stopped")?;
                }
                // One is tried at a time.
                Some(check) = config_checks.recv(), if self.trial.is_none() => {
                    self.on_config_check(check).await;
                }
                tried = end_of_trial(&mut self.trial) => self.on_trial_end(tried).await?,
                found = end_if_any(&mut self.finding_out) => self.on_found_out(found).await?,
                () = changed_if_any(&mut rules) => {}
                () = taken.next() => self.on_taken().await?,
                () = changed_if_any(&mut checksum) => self.on_broken_checksum().await?,
                () = sleep_until(wake) => self.on_timer().await?,
                Some(question) = questions.recv() => {
                    let now = self.without_trial(status.now());
                    self.answer(question, &now);
                    continue;
                }
            }
            let status = self.without_trial(status.now());
            self.end_probation(&status).await?;
            self.judge(&status);
            self.note_incomplete(&status);
        }
    }

    /// Takes everything the store has to say at once, so that a burst becomes one batch.
    async fn on_store(&mut self, first: StoreEvent) -> anyhow::Result<()> {
        let heard = Instant::now();
        let mut changes = Vec::new();
        let mut next = Some(first);
        while let Some(event) = next {
            match event {
                StoreEvent::Put(stored) => {
                    self.own.on_put(&stored);
                    changes.extend(self.table.put(stored.lease));
                }
                StoreEvent::Gone(subnet) => {
                    self.own.on_gone(&subnet);
                    changes.extend(self.table.remove(&subnet));
                }
                StoreEvent::Snapshot(leases) => {
                    self.own.on_snapshot(&leases);
                    let leases = leases.into_iter().map(|stored| stored.lease);
                    let differences = self.table.snapshot(leases);
                    changes.extend(self.peers.spare_the_vanished(differences, Instant::now()));
                }
                StoreEvent::Assigned(subnet) => self.own.on_assigned(subnet),
                StoreEvent::Config(text) => {
                    peers::tell(&changes);
                    self.apply(std::mem::take(&mut changes)).await?;
                    self.on_config(text).await?;
                }
                StoreEvent::ConfigGone => {
                    self.refused = None;
                    tracing::error!(
                        "The network config was deleted: this node keeps the network it has; write it \
                         anew with {}",
                        self.setup.store.how_to_write_config()
                    );
                }
                StoreEvent::Down(why) => {
                    tracing::error!(
                        event = "store-lost",
                        "The store is away: {why}; traffic goes on with the peers known so far"
                    );
                    self.contact = StoreContact::lost(why);
                }
                StoreEvent::Up => {
                    tracing::info!(event = "store-found", "The store is back");
                    self.contact = StoreContact::found();
                }
            }
            next = self.events.try_recv().ok();
        }
        if !changes.is_empty() {
            peers::tell(&changes);
            self.apply(changes).await?;
            self.store_to_kernel.since(heard);
        }
        if self.own.is_in_question() {
            self.reclaim().await?;
        }
        Ok(())
    }

    fn next_wake(&self) -> Option<Instant> {
        let refused = self.refused.as_ref().and_then(RefusedConfig::next_wake);
        let key = self.network.answers().private_key().map(|_| self.key_rotation.next_look());
        let peers = self.peers.next_wake();
        let probation = self.probation.as_ref().map(Probation::next_wake);
        let tidy = Some(self.tidy_due);
        let holders = self.peers.next_holder_write().filter(|_| !self.holders_writer.is_busy());
        [self.own.next_wake(), peers, self.incomplete_due, tidy, refused, key, probation, holders]
            .into_iter()
            .flatten()
            .chain([self.subnet_file_due])
            .chain((!self.ready).then_some(self.patience).filter(|due| *due > Instant::now()))
            .min()
    }

    async fn on_timer(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let departed = self.peers.departed(now);
        if !departed.is_empty() {
            self.setup.appliers.update(departed).await?;
            // Those that the departed had been before get what they announce.
            let waiting = self.peers.waiting(&self.table);
            self.apply(waiting).await?;
            self.probe_all();
        }
        if self.tidy_due <= now {
            self.tidy_due = now + std::mem::replace(&mut self.tidy_pause, TIDY_EVERY);
            memory::give_back();
        }
        self.keep_holders();
        if self.subnet_file_due <= now {
            self.look_at_subnet_file();
        }
        if self.incomplete_due.is_some_and(|due| due <= now) {
            self.look_for_incomplete_peers().await;
        }
        self.reconsider_in_time(now).await?;
        self.rotate_key_in_time(now).await?;
        if self.own.is_renewal_due() {
            let facts = self.facts.borrow().clone();
            self.own.renew(&self.setup, &self.network, &facts).await;
        }
        if self.own.is_in_question() {
            self.reclaim().await?;
        }
        Ok(())
    }
}

async fn end_if_any(finding_out: &mut Option<FindingOut>) -> Result<Answers, String> {
    match finding_out {
        Some(finding_out) => finding_out.end().await,
        None => std::future::pending().await,
    }
}

async fn changed_if_any<T>(watched: &mut Option<watch::Receiver<T>>) {
    if let Some(watched) = watched
        && watched.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
