//! No network is taken down for one that is not known to work here.
//!
//! What a new config needs of this node is first made beside what is in use, which goes on carrying packets. Only when all of
//! it is there does the node change over. What cannot stand beside, because both want one name or one port, is replaced then;
//! should it turn out within a moment that the new one does not work, the former network is put back. Either way the config
//! is refused like one that cannot be read, and tried again after a pause. See decision 17.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use flannel_backend::{Wishes, trial_wishes, without_trial_devices};
use flannel_lease::Lease;
use flannel_wanted::{FailureKind, Status};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::Daemon;
use super::config_changes::Refusal;
use super::network::JoinedNetwork;

/// So long a network that has just been taken over may lack a device before the former one is put back.
const PROBATION: Duration = Duration::from_secs(2);

/// Entries of another config that are being made beside those in use.
pub(super) struct BackendTrial {
    purpose: TrialPurpose,
    task: JoinHandle<Result<(), String>>,
}

pub(super) enum TrialPurpose {
    /// The node is to change to this config.
    ChangeTo(String),
    /// An operator asks whether it could.
    Answer(oneshot::Sender<Result<(), String>>),
}

impl BackendTrial {
    async fn end(&mut self) -> Result<(), String> {
        (&mut self.task).await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

impl Drop for BackendTrial {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends with the trial, if there is one.
pub(super) async fn end_of_trial(trial: &mut Option<BackendTrial>) -> Result<(), String> {
    match trial {
        Some(trial) => trial.end().await,
        None => std::future::pending().await,
    }
}

/// A network that has been taken over and has yet to be seen to work.
pub(super) struct Probation {
    /// What this node had before, if it is the daemon that had it.
    former: Option<FormerNetwork>,
    until: Instant,
}

struct FormerNetwork {
    config_text: String,
    network: JoinedNetwork,
}

impl Probation {
    pub(super) fn of_first_network() -> Self {
        Self { former: None, until: Instant::now() + PROBATION }
    }

    pub(super) fn next_wake(&self) -> Instant {
        self.until
    }
}

impl Daemon {
    /// Changes to another network, as soon as it is seen that this node can.
    pub(super) async fn change_network(
        &mut self,
        text: String,
        network: JoinedNetwork,
    ) -> anyhow::Result<()> {
        let wishes = self.trial_of(&network);
        if wishes.is_empty() {
            return self.adopt_network(text, network).await;
        }
        // Until it is known, what this node has taken of other networks is what it uses.
        self.network.retake(&self.setup);
        if let Some(refused) = &mut self.refused {
            refused.wait_for_trial();
        }
        self.begin_trial(&network, wishes, TrialPurpose::ChangeTo(text));
        Ok(())
    }

    /// What of another network can be made beside the one in use.
    pub(super) fn trial_of(&self, network: &JoinedNetwork) -> Wishes {
        let facts = self.facts.borrow();
        let current = self.network.base(self.own.lease(), &self.setup.options);
        let next = network.base(&self.lease_in(network), &self.setup.options);
        let exists = |name| facts.interface(name).is_some();
        trial_wishes(&current, &next, exists, spare_port())
    }

    /// This node's lease, as it would be announced in another network.
    fn lease_in(&self, network: &JoinedNetwork) -> Lease {
        let (own, facts) = (self.own.lease(), self.facts.borrow().clone());
        let attrs = network.attrs(Some(&own.attrs), &facts, &self.setup);
        Lease { subnet: own.subnet, attrs }
    }

    pub(super) fn begin_trial(
        &mut self,
        network: &JoinedNetwork,
        wishes: Wishes,
        purpose: TrialPurpose,
    ) {
        self.tried = wishes.clone();
        let (appliers, networks) = (self.setup.appliers.clone(), network.networks());
        let making = async move { appliers.make_beside(networks, wishes).await };
        let task = tokio::spawn(making.in_current_span());
        self.trial = Some(BackendTrial { purpose, task });
    }

    /// Ends a trial that nobody waits for any more.
    pub(super) async fn abandon_trial(&mut self) -> anyhow::Result<()> {
        match self.trial.take() {
            Some(_) => self.take_back_trial(Wishes::default()).await,
            None => Ok(()),
        }
    }

    /// Takes back what was tried and is not to stay.
    async fn take_back_trial(&mut self, kept: Wishes) -> anyhow::Result<()> {
        let tried = std::mem::replace(&mut self.tried, kept.clone());
        let networks = self.network.networks();
        let in_use = self.network.base(self.own.lease(), &self.setup.options);
        Ok(self.setup.appliers.end_trial(networks, &tried, kept, &in_use).await?)
    }

    pub(super) async fn on_trial_end(&mut self, result: Result<(), String>) -> anyhow::Result<()> {
        let Some(mut trial) = self.trial.take() else { return Ok(()) };
        let nobody = TrialPurpose::ChangeTo(String::new());
        let text = match std::mem::replace(&mut trial.purpose, nobody) {
            TrialPurpose::ChangeTo(text) => text,
            TrialPurpose::Answer(answer) => {
                self.take_back_trial(Wishes::default()).await?;
                // Who has asked may have gone.
                let _ = answer.send(result);
                return Ok(());
            }
        };
        if let Err(why) = result {
            self.take_back_trial(Wishes::default()).await?;
            self.refuse(text, Refusal::CannotBeMade(why));
            return Ok(());
        }
        // The node may have changed meanwhile.
        let network = match self.network_of(&text).await {
            Ok(network) => network,
            Err(refusal) => {
                self.take_back_trial(Wishes::default()).await?;
                self.refuse(text, refusal);
                return Ok(());
            }
        };
        let next = network.base(&self.lease_in(&network), &self.setup.options);
        let kept = without_trial_devices(&next, self.tried.clone());
        self.take_back_trial(kept).await?;
        self.adopt_network(text, network).await?;
        // What was tried is part of the network by now.
        self.take_back_trial(Wishes::default()).await
    }

    async fn adopt_network(&mut self, text: String, network: JoinedNetwork) -> anyhow::Result<()> {
        tracing::info!(
            event = "config-changed",
            "The network config has changed - Backend type: {}",
            network.config().backend.kind
        );
        self.refused = None;
        self.earlier.remember(self.network.networks());
        let replaced = FormerNetwork {
            config_text: std::mem::replace(&mut self.config_text, text),
            network: std::mem::replace(&mut self.network, network),
        };
        // One that was itself not yet seen to work is nothing to go back to.
        let former = self.probation.take().and_then(|probation| probation.former);
        let former = Some(former.unwrap_or(replaced));
        self.announce().await?;
        self.probation = Some(Probation { former, until: Instant::now() + PROBATION });
        Ok(())
    }

    /// When its time has come: keeps a network that works, and puts back the former one if it does not.
    pub(super) async fn end_probation(&mut self, status: &Status) -> anyhow::Result<()> {
        let Some(mut probation) = self.probation.take_if(|it| it.until <= Instant::now()) else {
            return Ok(());
        };
        let broken = broken_foundation(status);
        match (broken, probation.former.take()) {
            (None, _) => {
                self.remember_config();
                Ok(())
            }
            (Some(_), None) => {
                self.probation = Some(Self::again(probation));
                Ok(())
            }
            (Some(why), Some(former)) => self.put_back(former, why).await,
        }
    }

    fn again(probation: Probation) -> Probation {
        Probation { until: Instant::now() + PROBATION, ..probation }
    }

    async fn put_back(&mut self, former: FormerNetwork, why: String) -> anyhow::Result<()> {
        let FormerNetwork { config_text, network } = former;
        let refused = std::mem::replace(&mut self.config_text, config_text);
        self.earlier.remember(self.network.networks());
        self.network = network;
        self.network.retake(&self.setup);
        self.refuse(refused, Refusal::CannotBeMade(why));
        self.announce().await
    }

    /// The status of what is in use, without what is tried beside it.
    pub(super) fn without_trial(&self, mut status: Status) -> Status {
        if self.tried.is_empty() {
            return status;
        }
        let tried: Vec<String> = self.tried.descriptions().collect();
        let before = status.problems.len();
        status.problems.retain(|problem| !tried.contains(&problem.entry));
        status.bad = status.bad.saturating_sub(before - status.problems.len());
        status.wanted = status.wanted.saturating_sub(tried.len());
        status
    }
}

/// Why no peer can be reached, if the appliers were refused what all else depends on.
fn broken_foundation(status: &Status) -> Option<String> {
    let is_broken = |problem: &&flannel_wanted::Problem| {
        problem.is_foundation && problem.failure == Some(FailureKind::Refused)
    };
    status.problems.iter().find(is_broken).map(ToString::to_string)
}

/// A UDP port that nobody uses at the moment.
fn spare_port() -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let port = socket.and_then(|socket| socket.local_addr()).map(|address| address.port());
    // Whoever has none to spare is told by what is tried with this one.
    port.unwrap_or(u16::MAX)
}
