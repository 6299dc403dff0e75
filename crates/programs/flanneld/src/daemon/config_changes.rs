//! The network config: followed when it changes, refused when it cannot be used here.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Instant;

use flannel_backend::{Answers, UsableConfig, Wishes};
use flannel_common::{IfName, Tries};
use flannel_lease::{NetworkConfig, NetworkMove};

use super::Daemon;
use super::backend_trial::{Probation, TrialPurpose};
use super::event::Action;
use super::needs;
use super::network::{JoinedNetwork, OnLan};
use super::now::Now;

pub(super) fn say_remarks(judged: &UsableConfig) {
    for remark in &judged.remarks {
        tracing::warn!("The network config: {remark}");
    }
}

pub(super) struct ConfigState {
    pub(super) text: String,
    pub(super) refused: Option<RefusedConfig>,
    pub(super) answers: Answers,
    /// What the backend of a refused config needs to know is being found out.
    is_resolving_needs: bool,
    /// Another config is tried beside the one in use, for this purpose.
    pub(super) trial: Option<TrialPurpose>,
    /// What is wanted for that; and for a moment longer when the node changes over.
    pub(super) tried: Wishes,
    /// Devices that trials have made here so far: one that is still there is left by an earlier trial, and no stranger's.
    pub(super) trial_devices: BTreeSet<IfName>,
    pub(super) probation: Option<Probation>,
    seed: u64,
}

impl ConfigState {
    pub(super) fn new(text: String, answers: Answers, seed: u64, now: &Now) -> Self {
        Self {
            text,
            refused: None,
            answers,
            is_resolving_needs: false,
            trial: None,
            tried: Wishes::default(),
            trial_devices: BTreeSet::new(),
            probation: Some(Probation::new(None, now)),
            seed,
        }
    }

    /// Refuses a config for now. Where that may pass, it is tried again after a pause that grows.
    pub(super) fn refuse(&mut self, text: String, refusal: Refusal, now: &Now) {
        let former = self.refused.take().filter(|former| former.text == text);
        let (why, is_transient) = match (refusal, &former) {
            (Refusal::Unfit(why), _) => (why, false),
            (Refusal::NotKnown(why), _) => {
                (format!("The new network config cannot be used yet: {why}"), true)
            }
            (Refusal::CannotBeMade(why), _) => {
                (format!("The new network config cannot be used here: {why}"), true)
            }
            // Keep the reason why it failed before; it is more useful than "trying again".
            (Refusal::NotKnownYet, Some(former)) => (former.why.clone(), false),
            (Refusal::NotKnownYet, None) => {
                let waits = "waits for what its backend must know beforehand";
                (format!("The new network config {waits}"), false)
            }
        };
        if former.as_ref().is_none_or(|former| former.why != why) {
            tracing::error!("{why}; keeping the network as it was");
        }
        let new_tries = || needs::RETRY.tries(fastrand::Rng::with_seed(self.seed));
        let mut tries = former.map_or_else(new_tries, |former| former.tries);
        let again = is_transient.then(|| now.instant + tries.pause());
        self.refused = Some(RefusedConfig { text, why, again, tries });
    }

    /// The refused config whose time to be tried again has come.
    pub(super) fn due(&self, now: &Now) -> Option<String> {
        let refused = self.refused.as_ref()?;
        refused.again.is_some_and(|due| due <= now.instant).then(|| refused.text.clone())
    }

    /// The refused config that waits for a change of this node, or of its other networks.
    fn waiting_for_node(&self) -> Option<String> {
        let refused = self.refused.as_ref()?;
        let is_waiting =
            refused.again.is_none() && !self.is_resolving_needs && self.trial.is_none();
        is_waiting.then(|| refused.text.clone())
    }

    /// When something is to be tried again, or has been tried for long enough.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let refused = self.refused.as_ref().and_then(|refused| refused.again);
        refused.into_iter().chain(self.probation.as_ref().map(|it| it.until)).min()
    }
}

pub(super) struct RefusedConfig {
    text: String,
    pub(super) why: String,
    /// When to try it again, where that need not wait for another event.
    pub(super) again: Option<Instant>,
    tries: Tries,
}

pub(super) enum Refusal {
    /// Until the config, or this node, is another.
    Unfit(String),
    /// What its backend needs to know could not be found out; it may be another time.
    NotKnown(String),
    /// It was tried, and could not be made on this node; it may be another time.
    CannotBeMade(String),
    NotKnownYet,
}

fn unfit(why: &str, error: &dyn Display) -> Refusal {
    Refusal::Unfit(format!("The new network config {why}: {error}"))
}

impl Refusal {
    pub(super) fn into_words(self) -> String {
        match self {
            Self::Unfit(why) | Self::NotKnown(why) | Self::CannotBeMade(why) => why,
            Self::NotKnownYet => "it is not known yet whether it can be used".to_owned(),
        }
    }
}

impl Daemon {
    pub(super) fn on_config(&mut self, text: String, now: &Now) {
        // Whatever it was for, it is for an older one.
        if std::mem::take(&mut self.config.is_resolving_needs) {
            self.act(Action::CancelNeeds);
        }
        self.abandon_trial();
        if text == self.config.text {
            if self.config.refused.take().is_some() {
                tracing::info!("The network config is the one in use again");
                self.network.retake(&self.setup);
            }
            return;
        }
        match self.network_of(&text) {
            Ok(network) => self.change_network(text, network, now),
            Err(refusal) => self.config.refuse(text, refusal, now),
        }
    }

    pub(super) fn judge_new(&self, text: &str) -> Result<UsableConfig, Refusal> {
        let judged = flannel_backend::judge_config(text, self.setup.store.subnets());
        let judged = judged.map_err(|error| unfit("is unusable", &error))?;
        if !judged.names_backend && judged.config.backend.kind != self.network.config().backend.kind
        {
            return Err(Refusal::Unfit(format!(
                "The new network config is not followed: Backend is missing, which means {}, and this network uses {}: \
                 write Backend with the Type that is meant",
                judged.config.backend.kind,
                self.network.config().backend.kind
            )));
        }
        let granted = self.setup.privileges.check(&judged.backend.privileges());
        granted.map_err(|withheld| Refusal::Unfit(format!("The new network config {withheld}")))?;
        self.check_move(&judged.config).map_err(|error| unfit("is not followed", &error))?;
        Ok(judged)
    }

    pub(super) fn network_of(&mut self, text: &str) -> Result<JoinedNetwork, Refusal> {
        let judged = self.judge_new(text)?;
        let needs = judged.backend.needs();
        if needs.is_empty() {
            self.config.answers = Answers::default();
        } else if !self.config.answers.are_of(&needs) {
            self.config.is_resolving_needs = true;
            self.act(Action::ResolveNeeds(needs));
            return Err(Refusal::NotKnownYet);
        }
        let (config, answers) = (judged.config.clone(), self.config.answers.clone());
        let network = JoinedNetwork::new(&self.setup, config, answers, &self.host, OnLan::Refuse);
        let network = network.map_err(|error| unfit("cannot be used here", &error))?;
        say_remarks(&judged);
        Ok(network)
    }

    /// Refuses a config that would cost this node its subnet or all its peers, without an operator's word.
    fn check_move(&self, next: &NetworkConfig) -> Result<(), NetworkMove> {
        let (own, peers) = (self.own.subnet(), self.table.iter().map(|(subnet, _)| subnet));
        flannel_lease::check_move(self.network.config(), next, &own, &self.own.former, peers)
    }

    /// Tries a refused config again after this node, or another network of it, has changed.
    pub(super) fn reconsider_config(&mut self, now: &Now) {
        if let Some(text) = self.config.waiting_for_node() {
            self.on_config(text, now);
        }
    }

    /// What the backend of a new config needs to know has been found out, or could not be.
    pub(super) fn on_needs_resolved(&mut self, found: Result<Answers, String>, now: &Now) {
        self.config.is_resolving_needs = false;
        let Some(refused) = &self.config.refused else { return };
        let text = refused.text.clone();
        match found {
            Ok(answers) => {
                self.config.answers = answers;
                self.on_config(text, now);
            }
            Err(why) => self.config.refuse(text, Refusal::NotKnown(why), now),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn in_use(now: &Now) -> ConfigState {
        ConfigState::new("in use".to_owned(), Answers::default(), 7, now)
    }

    #[test]
    fn a_config_that_cannot_be_made_now_is_tried_again_after_pauses_that_grow() {
        let mut now = Now::for_test();
        let mut config = in_use(&now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            config.refuse("new".to_owned(), Refusal::CannotBeMade("no".to_owned()), &now);
            assert_eq!(config.waiting_for_node(), None, "it is tried by the clock");
            let again = config.refused.as_ref().and_then(|it| it.again).expect("a time");
            let pause = again - now.instant;
            assert_eq!(config.due(&now.later(pause - Duration::from_millis(1))), None);
            now = now.later(pause);
            assert_eq!(config.due(&now).as_deref(), Some("new"));
            pauses.push(pause);
        }
        assert!(pauses[0] < 2 * SECOND && pauses[4] > 8 * SECOND, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= 75 * SECOND), "{pauses:?}");
        // Another one is news, and begins with a short pause.
        config.refuse("newer".to_owned(), Refusal::CannotBeMade("no".to_owned()), &now);
        assert_eq!(config.due(&now.later(2 * SECOND)).as_deref(), Some("newer"));
    }

    #[test]
    fn an_unfit_config_waits_for_a_change_of_the_node_and_not_for_the_clock() {
        let now = Now::for_test();
        let mut config = in_use(&now);
        config.refuse("new".to_owned(), Refusal::Unfit("no".to_owned()), &now);
        assert_eq!(config.due(&now.later(3_600 * SECOND)), None);
        assert_eq!(config.waiting_for_node().as_deref(), Some("new"));
        config.is_resolving_needs = true;
        assert_eq!(config.waiting_for_node(), None, "an answer is awaited");
    }

    #[test]
    fn the_reason_of_a_failure_stays_while_it_is_looked_into_again() {
        let now = Now::for_test();
        let mut config = in_use(&now);
        let mut refuse = |refusal| {
            config.refuse("new".to_owned(), refusal, &now);
            config.refused.as_ref().map(|it| it.why.clone()).expect("it is refused")
        };
        assert!(refuse(Refusal::NotKnownYet).contains("waits for"));
        let failed = refuse(Refusal::NotKnown("the command failed".to_owned()));
        assert!(failed.contains("the command failed"));
        assert_eq!(refuse(Refusal::NotKnownYet), failed);
    }
}
