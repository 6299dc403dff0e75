//! The loop around a node: waits for the next event, reads the clocks once, lets the node decide, and carries out what it
//! wants done. It is the rim of the node: no other part of its task waits, acts or reads a clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;

use anyhow::{Context, bail};
use flannel_backend::{Answers, DesiredState};
use flannel_common::{Task, send_if_changed, sleep_until};
use flannel_entries::facts::Facts;
use flannel_entries::kernel::Ownership;
use flannel_lease::NetworkName;
use flannel_metrics::Latency;
use flannel_probe::Prober;
use flannel_store::StoreEvent;
use flannel_wanted::Importance;
use tokio::sync::{mpsc, watch};

use super::config_check::ConfigCheck;
use super::event::{Action, Event};
use super::key_rotation::KeyEvent;
use super::lease_task::LeaseTask;
use super::network_conflicts::NetworkClaim;
use super::now::Now;
use super::requests::NodeNow;
use super::starting::{Membership, read_host};
use super::{Daemon, Setup, former_config, identity, needs};
use crate::appliers::{Appliers, RULES, WatchedStatus};
use crate::door::Question;
use crate::link_holders_file::{LinkHoldersFile, LinkHoldersWriter};
use crate::{heap, subnet_file, wireguard_key};

pub(super) struct EventLoop {
    node: Daemon,
    sources: Sources,
    lease_task: LeaseTask,
    /// Entries of another config that are being made beside those in use.
    trial: Option<Task<Result<(), String>>>,
    needs: Option<Task<Result<Answers, String>>>,
    appliers: Appliers,
    holders_writer: LinkHoldersWriter,
    show_node: watch::Sender<Option<Arc<NodeNow>>>,
    store_to_kernel: Latency,
}

/// Where events come from that the loop has not asked for.
struct Sources {
    store: mpsc::Receiver<StoreEvent>,
    facts: watch::Receiver<Arc<Facts>>,
    status: WatchedStatus,
    config_checks: mpsc::Receiver<ConfigCheck>,
    networks: watch::Receiver<BTreeMap<NetworkName, NetworkClaim>>,
    checksum: Option<watch::Receiver<bool>>,
}

impl EventLoop {
    pub(super) fn new(
        setup: Arc<Setup>,
        appliers: Appliers,
        membership: Membership,
        show_node: watch::Sender<Option<Arc<NodeNow>>>,
        config_checks: mpsc::Receiver<ConfigCheck>,
    ) -> Self {
        let Membership { joined, facts, lease_task, cursor } = membership;
        let holders_file = LinkHoldersFile::new(&setup.options.data_dir, &setup.subnet_file);
        let sources = Sources {
            store: setup.store.watch(cursor),
            facts,
            status: appliers.watch_status(),
            config_checks,
            networks: setup.claims.taken.subscribe(),
            checksum: setup.prober.as_ref().map(Prober::checksum_is_broken),
        };
        Self {
            node: Daemon::new(setup, joined, find_spare_port, &Now::read()),
            sources,
            lease_task,
            trial: None,
            needs: None,
            appliers,
            holders_writer: LinkHoldersWriter::start(holders_file),
            show_node,
            store_to_kernel: Latency::default(),
        }
    }

    /// Runs until something is wrong that only a person can fix. `text`: the config that the store has.
    pub(super) async fn run(mut self, text: String) -> anyhow::Result<()> {
        self.handle(Event::Joined).await?;
        tracing::info!("Running backend.");
        // If it goes on with what a former daemon left, it changes from there.
        self.handle(Event::Store(vec![StoreEvent::Config(text)])).await?;
        // Something may have been taken from us while we joined.
        self.handle(Event::NetworksChanged).await?;
        let mut questions = self.node.setup.report.take_questions();
        loop {
            let status = self.sources.status.now();
            self.handle(Event::Status(status)).await?;
            if let Some(event) = self.next_event(&mut questions).await? {
                self.handle(event).await?;
            }
        }
    }

    /// Waits for the next event, and answers questions meanwhile; `None` if the appliers' status is all that has changed.
    async fn next_event(
        &mut self,
        questions: &mut mpsc::Receiver<Question>,
    ) -> anyhow::Result<Option<Event>> {
        loop {
            let wake = self.node.next_wake(&Now::read());
            let sources = &mut self.sources;
            let event = tokio::select! {
                event = sources.store.recv() => {
                    let mut events = vec![event.context("the store's watch has ended")?];
                    events.extend(std::iter::from_fn(|| sources.store.try_recv().ok()));
                    Event::Store(events)
                }
                outcome = self.lease_task.outcomes.recv() => {
                    Event::Lease(outcome.context("the task of this node's lease has stopped")?)
                }
                changed = sources.facts.changed() => {
                    changed.context("the kernel engine has stopped")?;
                    let facts = sources.facts.borrow_and_update().clone();
                    Event::Facts(read_host(&self.node.setup, &self.appliers, facts).await?)
                }
                changed = sources.status.changed() => {
                    changed.context("an applier has stopped")?;
                    return Ok(None);
                }
                // One is tried at a time.
                Some(check) = sources.config_checks.recv(), if self.node.config.trial.is_none() => {
                    Event::ConfigCheck(check)
                }
                result = end_if_any(&mut self.trial) => Event::TrialEnded(result),
                found = end_if_any(&mut self.needs) => Event::NeedsResolved(found),
                Ok(()) = sources.networks.changed() => Event::NetworksChanged,
                () = changed_if_any(&mut sources.checksum) => Event::ChecksumsBroken,
                () = sleep_until(wake) => Event::Timer,
                Some(question) = questions.recv() => {
                    self.answer(question);
                    continue;
                }
            };
            return Ok(Some(event));
        }
    }

    /// Lets the node decide about an event, and acts. What comes of an action is handed to the node before the next.
    async fn handle(&mut self, event: Event) -> anyhow::Result<()> {
        let mut to_do = VecDeque::from(self.node.step(event, &Now::read()));
        while let Some(action) = to_do.pop_front() {
            if let Some(answer) = self.carry_out(action).await? {
                let next = self.node.step(answer, &Now::read());
                next.into_iter().rev().for_each(|action| to_do.push_front(action));
            }
        }
        Ok(())
    }

    async fn carry_out(&mut self, action: Action) -> anyhow::Result<Option<Event>> {
        let setup = &self.node.setup;
        match action {
            Action::LookUpPaths { addresses, then } => {
                let paths = self.appliers.kernel.lookup(addresses.clone()).await?;
                return Ok(Some(Event::Paths(addresses.into_iter().zip(paths).collect(), then)));
            }
            Action::Replace { ownership, desired, peers } => {
                let status = self.appliers.replace(*ownership, desired).await?;
                tracing::info!("Programmed {peers} peers: {status}");
            }
            Action::Update(changes) => drop(self.appliers.update(changes).await?),
            Action::RequireRules => {
                let problems = self.appliers.rules_status().problems;
                let required = problems.iter().find(|it| it.importance == Importance::Required);
                required.map_or(Ok(()), |problem| bail!("{problem}"))?;
            }
            Action::BeginTrial { networks, wishes } => {
                let appliers = self.appliers.clone();
                let making = async move { appliers.make_beside(networks, wishes).await };
                self.trial = Some(Task::spawn("backend-trial", making));
            }
            Action::CancelTrial => self.trial = None,
            Action::EndTrial { networks, tried, kept, in_use } => {
                self.appliers.end_trial(networks, &tried, kept, &in_use).await?;
            }
            Action::ResolveNeeds(needs) => {
                self.needs = Some(Task::spawn("backend-needs", needs::find_out(needs)));
            }
            Action::CancelNeeds => self.needs = None,
            Action::ResolveHarmlessNeeds(needs, check) => {
                let answers = needs::find_out_harmlessly(needs);
                return Ok(Some(Event::HarmlessNeeds(check, answers)));
            }
            // Were the task gone, waiting for the outcome would tell.
            Action::AskStore(job) => drop(self.lease_task.requests.send(job)),
            Action::ReconnectStore => setup.store.node_moved(),
            Action::WriteSubnetFile { content, is_expected } => {
                let written = subnet_file::restore(&setup.subnet_file, &content, is_expected);
                let written = written.map_err(|error| error.to_string());
                return Ok(Some(Event::SubnetFileWritten(written)));
            }
            Action::WithdrawSubnetFile => identity::withdraw_subnet_file(setup),
            Action::KeepHolders(holders) => drop(self.holders_writer.latest.send_replace(holders)),
            Action::KeepConfig(text) => former_config::keep(&setup.subnet_file, &text),
            Action::ReadNextKey => {
                return Ok(Some(Event::Key(KeyEvent::Next(wireguard_key::read_next(
                    &wireguard_key::path(),
                )))));
            }
            Action::AdoptNextKey => {
                let adopted = wireguard_key::adopt_next(&wireguard_key::path())
                    .map_err(|error| error.to_string());
                return Ok(Some(Event::Key(KeyEvent::Adopted(adopted))));
            }
            Action::FindIncompletePeers => {
                let mut incomplete = BTreeSet::new();
                // No rule leads to a peer, and whoever writes them may have to wait for others.
                let each = self.appliers.each().into_iter().filter(|(name, _)| *name != RULES);
                for (_, applier) in each {
                    incomplete.extend(applier.tally().await.unwrap_or_default().incomplete);
                }
                return Ok(Some(Event::IncompletePeers(incomplete)));
            }
            Action::Probe(change) => {
                if let Some(prober) = &setup.prober {
                    change.tell(prober);
                }
            }
            Action::ShowNode(node) => {
                send_if_changed(&self.show_node, Some(Arc::from(node)));
            }
            Action::NoteLatency(begin) => self.store_to_kernel.since(begin),
            Action::TrimHeap => heap::trim(),
            Action::GiveUp { networks, rules, conflict } => {
                let ownership = Ownership { networks, ..Ownership::default() };
                let desired = DesiredState { rules, ..DesiredState::default() };
                self.appliers.replace(ownership, desired).await?;
                self.appliers.stop().await;
                return Err(conflict.into());
            }
        }
        Ok(None)
    }

    fn answer(&mut self, question: Question) {
        let status = self.node.without_trial(self.sources.status.now());
        let (appliers, latency) = (self.appliers.clone(), &self.store_to_kernel);
        self.node.answer(question, appliers, latency, &status, &Now::read());
    }
}

async fn end_if_any<T>(task: &mut Option<Task<Result<T, String>>>) -> Result<T, String>
where
    T: Send + 'static,
{
    let Some(running) = task else { return std::future::pending().await };
    let result = running.await;
    *task = None;
    result.unwrap_or_else(|error| Err(error.to_string()))
}

async fn changed_if_any<T>(watched: &mut Option<watch::Receiver<T>>) {
    if let Some(watched) = watched
        && watched.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

fn find_spare_port() -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let port = socket.and_then(|socket| socket.local_addr()).map(|address| address.port());
    // Whoever has none to spare is told by what is tried with this one.
    port.unwrap_or(u16::MAX)
}
