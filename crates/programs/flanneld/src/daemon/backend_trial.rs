//! No network is taken down for one that is not known to work here.
//!
//! What a new config needs of this node is first made beside what is in use, which goes on carrying packets. Only when all of
//! it is there does the node change over. What cannot stand beside, because both want one name or one port, is replaced then;
//! should it turn out within a moment that the new one does not work, the former network is put back. Either way the config
//! is refused like one that cannot be read, and tried again after a pause. See decision 17.

use std::time::{Duration, Instant};

use flannel_backend::{Wishes, trial_wishes, without_trial_devices};
use flannel_lease::Lease;
use flannel_wanted::{FailureKind, Importance, Status};
use tokio::sync::oneshot;

use super::Daemon;
use super::config_changes::Refusal;
use super::event::Action;
use super::network::JoinedNetwork;
use super::now::Now;

/// How long a network that has just been taken over may lack a device before the former one is put back.
const PROBATION: Duration = Duration::from_secs(2);

pub(super) enum TrialPurpose {
    ChangeTo(String),
    Answer(oneshot::Sender<Result<(), String>>),
}

/// A network that has been taken over and has yet to be seen to work.
pub(super) struct Probation {
    /// What this node had before, if it is the daemon that had it.
    former: Option<FormerNetwork>,
    pub(super) until: Instant,
}

pub(super) struct FormerNetwork {
    config_text: String,
    network: JoinedNetwork,
}

impl Probation {
    pub(super) fn new(former: Option<FormerNetwork>, now: &Now) -> Self {
        Self { former, until: now.instant + PROBATION }
    }
}

impl Daemon {
    /// Changes to another network, as soon as it is seen that this node can.
    pub(super) fn change_network(&mut self, text: String, network: JoinedNetwork, now: &Now) {
        let wishes = self.trial_of(&network);
        if wishes.is_empty() {
            return self.adopt_network(text, network, now);
        }
        // Until it is known, what this node has taken of other networks is what it uses.
        self.network.retake(&self.setup);
        if let Some(refused) = &mut self.config.refused {
            // What becomes of the trial decides when it is tried again.
            refused.again = None;
        }
        self.begin_trial(&network, wishes, TrialPurpose::ChangeTo(text));
    }

    pub(super) fn trial_of(&self, network: &JoinedNetwork) -> Wishes {
        let facts = &self.host.facts;
        let current = self.network.base(self.own.lease(), &self.setup.options);
        let next = network.base(&self.lease_in(network), &self.setup.options);
        let is_strangers = |name| !self.config.trial_devices.contains(&name);
        let exists = |name| facts.interface(name).is_some() && is_strangers(name);
        trial_wishes(&current, &next, exists, (self.spare_port)())
    }

    fn lease_in(&self, network: &JoinedNetwork) -> Lease {
        let own = self.own.lease();
        let attrs = network.attrs(Some(&own.attrs), &self.host.facts, &self.setup);
        Lease { subnet: own.subnet, attrs }
    }

    pub(super) fn begin_trial(
        &mut self,
        network: &JoinedNetwork,
        wishes: Wishes,
        purpose: TrialPurpose,
    ) {
        self.config.trial_devices.extend(wishes.device_names());
        self.config.tried = wishes.clone();
        self.config.trial = Some(purpose);
        self.act(Action::BeginTrial { networks: network.networks(), wishes });
    }

    pub(super) fn abandon_trial(&mut self) {
        if self.config.trial.take().is_some() {
            self.act(Action::CancelTrial);
            self.take_back_trial(Wishes::default());
        }
    }

    fn take_back_trial(&mut self, kept: Wishes) {
        let tried = std::mem::replace(&mut self.config.tried, kept.clone());
        let networks = self.network.networks();
        let in_use = self.network.base(self.own.lease(), &self.setup.options).into();
        self.act(Action::EndTrial { networks, tried, kept, in_use });
    }

    pub(super) fn on_trial_end(&mut self, result: Result<(), String>, now: &Now) {
        let Some(purpose) = self.config.trial.take() else { return };
        let text = match purpose {
            TrialPurpose::ChangeTo(text) => text,
            TrialPurpose::Answer(answer) => {
                self.take_back_trial(Wishes::default());
                // Who has asked may have gone.
                let _ = answer.send(result);
                return;
            }
        };
        // The node may have changed meanwhile.
        let network = match result {
            Ok(()) => self.network_of(&text),
            Err(why) => Err(Refusal::CannotBeMade(why)),
        };
        let network = match network {
            Ok(network) => network,
            Err(refusal) => {
                self.take_back_trial(Wishes::default());
                return self.config.refuse(text, refusal, now);
            }
        };
        let next = network.base(&self.lease_in(&network), &self.setup.options);
        let kept = without_trial_devices(&next, self.config.tried.clone());
        self.take_back_trial(kept);
        self.adopt_network(text, network, now);
        // What was tried is part of the network by now.
        self.take_back_trial(Wishes::default());
    }

    fn adopt_network(&mut self, text: String, network: JoinedNetwork, now: &Now) {
        tracing::info!(
            event = "config-changed",
            "The network config has changed - Backend type: {}",
            network.config().backend.kind
        );
        self.config.refused = None;
        self.earlier.remember(self.network.networks());
        let replaced = FormerNetwork {
            config_text: std::mem::replace(&mut self.config.text, text),
            network: std::mem::replace(&mut self.network, network),
        };
        // One that was itself not yet seen to work is nothing to go back to.
        let former = self.config.probation.take().and_then(|probation| probation.former);
        let former = Some(former.unwrap_or(replaced));
        self.announce(now);
        self.config.probation = Some(Probation::new(former, now));
    }

    /// When its time has come: keeps a network that works, and puts back the former one if it does not.
    pub(super) fn end_probation(&mut self, status: &Status, now: &Now) {
        let is_over = |it: &mut Probation| it.until <= now.instant;
        let Some(probation) = self.config.probation.take_if(is_over) else { return };
        match (broken_foundation(status), probation.former) {
            (None, _) => self.act(Action::KeepConfig(self.config.text.clone())),
            (Some(_), None) => self.config.probation = Some(Probation::new(None, now)),
            (Some(why), Some(former)) => self.put_back(former, why, now),
        }
    }

    fn put_back(&mut self, former: FormerNetwork, why: String, now: &Now) {
        let FormerNetwork { config_text, network } = former;
        let refused = std::mem::replace(&mut self.config.text, config_text);
        self.earlier.remember(self.network.networks());
        self.network = network;
        self.network.retake(&self.setup);
        self.config.refuse(refused, Refusal::CannotBeMade(why), now);
        self.announce(now);
    }

    /// The status of what is in use, without what is tried beside it.
    pub(super) fn without_trial(&self, mut status: Status) -> Status {
        if self.config.tried.is_empty() {
            return status;
        }
        let tried: Vec<String> = self.config.tried.descriptions().collect();
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
        problem.importance == Importance::Foundation
            && problem.failure == Some(FailureKind::Refused)
    };
    status.problems.iter().find(is_broken).map(ToString::to_string)
}
