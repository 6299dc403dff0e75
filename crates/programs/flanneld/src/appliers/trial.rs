//! Entries of a backend that is tried beside the one in use, wanted by [`WantedBy::Trial`]: do they come to be?

use std::time::{Duration, Instant};

use flannel_backend::{DesiredState, WantedBy, Wishes};
use flannel_state::EntryCondition;
use flannel_wanted::{Applier as _, EntryQuery, EntryReport, Requesters, Status, Stopped};
use ipnet::IpNet;

use super::Appliers;

/// What is refused for so long is not about to be made: one entry may wait for another of the same trial.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// A trial lasts no longer, whatever it waits for: commands and clouds take their time.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Appliers {
    /// Makes these entries beside all that is wanted. `networks`: the pod networks that they are for. `Ok` when all of them
    /// are seen to be there; else why not, for people.
    pub async fn make_beside(&self, networks: Vec<IpNet>, wishes: Wishes) -> Result<(), String> {
        let begun = self.want_for_trial(networks, wishes).await;
        begun.map_err(|stopped| stopped.to_string())?;
        let begin = Instant::now();
        let mut refused_since: Option<Instant> = None;
        loop {
            let missing = self.missing_of_trial().await.map_err(|stopped| stopped.to_string())?;
            let Some(first) = missing.first() else { return Ok(()) };
            let is_refused = missing.iter().any(|it| it.condition == EntryCondition::Refused);
            refused_since = is_refused.then(|| refused_since.unwrap_or_else(Instant::now));
            let is_given_up = refused_since.is_some_and(|since| since.elapsed() >= REFUSED_FOR);
            if is_given_up || begin.elapsed() >= TRIAL_TIMEOUT {
                let told = missing.iter().find(|it| it.condition == EntryCondition::Refused);
                return Err(in_words(told.unwrap_or(first)));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn want_for_trial(
        &self,
        networks: Vec<IpNet>,
        wishes: Wishes,
    ) -> Result<Status, Stopped> {
        // It learns only from the whole which networks its process is for. The update wants the same again: without it, it
        // would be wanted no more.
        if !wishes.ipsec.is_empty() {
            self.ipsec.replace(networks, vec![(WantedBy::Trial, wishes.ipsec.clone())]).await?;
        }
        self.update(trial(wishes)).await
    }

    /// Takes back what of a trial is not part of `kept`. `in_use`: what the network of this node wants by now.
    pub async fn end_trial(
        &self,
        networks: Vec<IpNet>,
        tried: &Wishes,
        kept: Wishes,
        in_use: &Wishes,
    ) -> Result<(), Stopped> {
        let ends_ipsec =
            !tried.ipsec.is_empty() && kept.ipsec.is_empty() && in_use.ipsec.is_empty();
        self.update(trial(kept)).await?;
        if ends_ipsec {
            self.ipsec.replace(networks, Vec::new()).await?;
        }
        Ok(())
    }

    async fn missing_of_trial(&self) -> Result<Vec<EntryReport<WantedBy>>, Stopped> {
        let query = EntryQuery { of: Requesters::These(vec![WantedBy::Trial]), wrong_only: true };
        let mut missing = Vec::new();
        for (_, applier) in self.each() {
            missing.extend(applier.entries(query.clone()).await?);
        }
        Ok(missing)
    }
}

fn in_words(report: &EntryReport<WantedBy>) -> String {
    let why = report.why.as_deref().unwrap_or("it does not come to be");
    format!("{}: {why}", report.entry)
}

fn trial(wishes: Wishes) -> DesiredState {
    let mut changes = DesiredState::default();
    changes.change(WantedBy::Trial, wishes);
    changes
}
