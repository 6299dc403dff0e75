//! The network config: waited for at first, followed when it changes, refused when it cannot be used here.

use std::fmt::Display;
use std::time::Instant;

use flannel_backend::{Answers, Judged};
use flannel_common::Tries;
use flannel_lease::{NetworkConfig, NetworkMove};

use super::needs::FindingOut;
use super::network::{JoinedNetwork, OnLan};
use super::timing::{CONFIG_POLL, CONFIG_REMINDER};
use super::{Daemon, Setup, needs};
use crate::logging::Throttle;
use crate::readiness::Readiness;

/// The network config, waited for as long as it takes: nodes are often started before it is written.
pub(super) async fn wait_for_config(setup: &Setup) -> (String, NetworkConfig) {
    let mut reminder = Throttle::new(CONFIG_REMINDER);
    loop {
        let problem = match setup.store.config().await {
            Ok(Some(text)) => match NetworkConfig::read(&text, setup.store.subnets()) {
                Ok(config) => return (text, config),
                Err(error) => format!("the network config is unusable: {error}"),
            },
            Ok(None) => format!(
                "there is no network config yet: write one with {}",
                setup.store.how_to_write_config()
            ),
            Err(error) => error.to_string(),
        };
        setup.report.say(Readiness::NotReady(problem.clone()));
        if reminder.pass(Instant::now()).is_some() {
            tracing::error!("Couldn't fetch network config: {problem}; trying every second");
        }
        tokio::time::sleep(CONFIG_POLL).await;
    }
}

/// Waits until the store has a config that is other than this one, and can be read.
pub(super) async fn another_config(setup: &Setup, text: &str) {
    loop {
        tokio::time::sleep(CONFIG_POLL).await;
        if let Ok(Some(now)) = setup.store.config().await
            && now != text
            && flannel_backend::judge(&now, setup.store.subnets()).is_ok()
        {
            return;
        }
    }
}

pub(super) fn say_remarks(judged: &Judged) {
    for remark in &judged.remarks {
        tracing::warn!("The network config: {remark}");
    }
}

/// A config that was written since and cannot be used here.
pub(super) struct RefusedConfig {
    text: String,
    why: String,
    /// What its backend needs to know could not be found out: when to try again.
    again: Option<Instant>,
    tries: Tries,
}

impl RefusedConfig {
    /// For people.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.again
    }

    /// It is being tried: what becomes of that decides when it is tried again.
    pub(super) fn wait_for_trial(&mut self) {
        self.again = None;
    }
}

/// Why a config cannot be used now.
pub(super) enum Refusal {
    /// Until the config, or this node, is another.
    Unfit(String),
    /// What its backend needs to know could not be found out; it may be another time.
    NotKnown(String),
    /// It was tried, and could not be made on this node; it may be another time.
    CannotBeMade(String),
    /// It is being found out.
    NotKnownYet,
}

fn unfit(why: &str, error: &dyn Display) -> Refusal {
    Refusal::Unfit(format!("The new network config {why}: {error}"))
}

impl Refusal {
    /// For people.
    pub(super) fn into_words(self) -> String {
        match self {
            Self::Unfit(why) | Self::NotKnown(why) | Self::CannotBeMade(why) => why,
            Self::NotKnownYet => "it is not known yet whether it can be used".to_owned(),
        }
    }
}

impl Daemon {
    pub(super) async fn on_config(&mut self, text: String) -> anyhow::Result<()> {
        // Whatever it was for, it is for an older one.
        self.finding_out = None;
        self.abandon_trial().await?;
        if text == self.config_text {
            if self.refused.take().is_some() {
                tracing::info!("The network config is the one in use again");
                self.network.retake(&self.setup);
            }
            return Ok(());
        }
        let network = match self.network_of(&text).await {
            Ok(network) => network,
            Err(refusal) => {
                self.refuse(text, refusal);
                return Ok(());
            }
        };
        self.change_network(text, network).await
    }

    pub(super) fn refuse(&mut self, text: String, refusal: Refusal) {
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
        let new_tries = || needs::RETRY.tries(fastrand::Rng::with_seed(self.setup.seed));
        let mut tries = former.map_or_else(new_tries, |former| former.tries);
        let again = is_transient.then(|| Instant::now() + tries.pause());
        self.refused = Some(RefusedConfig { text, why, again, tries });
    }

    /// A new config, if it is one that this node follows.
    pub(super) fn judge_new(&self, text: &str) -> Result<Judged, Refusal> {
        let judged = flannel_backend::judge(text, self.setup.store.subnets());
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

    /// The network that a new config describes, or why there can be none.
    pub(super) async fn network_of(&mut self, text: &str) -> Result<JoinedNetwork, Refusal> {
        let judged = self.judge_new(text)?;
        let needs = judged.backend.needs();
        if needs.is_empty() {
            self.answers = Answers::default();
        } else if !self.answers.are_of(&needs) {
            self.finding_out = Some(FindingOut::start(needs));
            return Err(Refusal::NotKnownYet);
        }
        let (config, answers) = (judged.config.clone(), self.answers.clone());
        let facts = self.facts.borrow().clone();
        let network = JoinedNetwork::new(&self.setup, config, answers, &facts, OnLan::Refuse).await;
        let network = network.map_err(|error| unfit("cannot be used here", &error))?;
        say_remarks(&judged);
        Ok(network)
    }

    /// Refuses a config that would cost this node its subnet or all its peers, without an operator's word.
    fn check_move(&self, next: &NetworkConfig) -> Result<(), NetworkMove> {
        let (own, peers) = (self.own.subnet(), self.table.iter().map(|(subnet, _)| subnet));
        flannel_lease::check_move(self.network.config(), next, &own, self.own.former(), peers)
    }

    /// What stood in the way of a new config may be gone: the node is another, or another network is.
    pub(super) async fn reconsider(&mut self) -> anyhow::Result<()> {
        match &self.refused {
            Some(refused)
                if refused.again.is_none()
                    && self.finding_out.is_none()
                    && self.trial.is_none() =>
            {
                self.on_config(refused.text.clone()).await
            }
            _ => Ok(()),
        }
    }

    /// What the backend of a new config needs to know has been found out, or could not be.
    pub(super) async fn on_found_out(
        &mut self,
        found: Result<Answers, String>,
    ) -> anyhow::Result<()> {
        self.finding_out = None;
        let Some(text) = self.refused.as_ref().map(|refused| refused.text.clone()) else {
            return Ok(());
        };
        match found {
            Ok(answers) => {
                self.answers = answers;
                self.on_config(text).await
            }
            Err(why) => {
                self.refuse(text, Refusal::NotKnown(why));
                Ok(())
            }
        }
    }

    /// What its backend needs to know may be found out by now.
    pub(super) async fn reconsider_in_time(&mut self, now: Instant) -> anyhow::Result<()> {
        match &self.refused {
            Some(refused) if refused.again.is_some_and(|due| due <= now) => {
                self.on_config(refused.text.clone()).await
            }
            _ => Ok(()),
        }
    }
}
