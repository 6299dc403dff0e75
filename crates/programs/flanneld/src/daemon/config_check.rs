//! An operator asks whether this node could use a config that is not written yet: it is tried as far as that changes nothing.

use flannel_backend::{Answers, ConfigAnswer, ConfigQuestion, Wishes};
use tokio::sync::oneshot;

use super::Daemon;
use super::backend_trial::TrialPurpose;
use super::config_changes::Refusal;
use super::event::Action;
use super::network::{JoinedNetwork, OnLan};
use super::requests::NodeRequest;

/// Questions that wait for the network's task.
pub(super) const PENDING_CHECKS: usize = 4;

pub(super) struct ConfigCheck {
    text: String,
    answer: oneshot::Sender<Result<(), String>>,
}

pub(super) async fn run(mut request: NodeRequest) {
    let Some(ConfigQuestion { config }) = request.read() else {
        let why = "the request cannot be understood".to_owned();
        return request.answer(&ConfigAnswer::Unusable(why)).await;
    };
    request.answer(&ConfigAnswer::Trying).await;
    let (answer, heard) = oneshot::channel();
    let check = ConfigCheck { text: config, answer };
    if request.context.config_checks.send(check).await.is_err() {
        return;
    }
    match heard.await {
        Ok(Ok(())) => request.answer(&ConfigAnswer::Usable).await,
        Ok(Err(why)) => request.answer(&ConfigAnswer::Unusable(why)).await,
        // Another config came in between: what was asked about it is out of date.
        Err(_) => {}
    }
}

impl ConfigCheck {
    fn answer(self, result: Result<(), String>) {
        // Who has asked may have gone.
        let _ = self.answer.send(result);
    }
}

impl Daemon {
    pub(super) fn on_config_check(&mut self, check: ConfigCheck) {
        if check.text == self.config.text {
            return check.answer(Ok(()));
        }
        match self.judge_new(&check.text) {
            Ok(judged) => self.act(Action::ResolveHarmlessNeeds(judged.backend.needs(), check)),
            Err(refusal) => check.answer(Err(refusal.into_words())),
        }
    }

    /// Tries what can be tried beforehand, now that it is known what the backend needs to know.
    pub(super) fn on_harmless_needs(
        &mut self,
        check: ConfigCheck,
        answers: Result<Option<Answers>, String>,
    ) {
        match answers.and_then(|answers| self.trial_without_harm(&check.text, answers)) {
            Ok(Some((network, wishes))) => {
                self.begin_trial(&network, wishes, TrialPurpose::Answer(check.answer));
            }
            Ok(None) => check.answer(Ok(())),
            Err(why) => check.answer(Err(why)),
        }
    }

    /// What is to be tried of a config; `None` if nothing of it can be tried beforehand.
    fn trial_without_harm(
        &self,
        text: &str,
        answers: Option<Answers>,
    ) -> Result<Option<(JoinedNetwork, Wishes)>, String> {
        let Some(answers) = answers else { return Ok(None) };
        let config = self.judge_new(text).map_err(Refusal::into_words)?.config;
        let (setup, host) = (&self.setup, &self.host);
        let network = JoinedNetwork::unclaimed(setup, config, answers, host, OnLan::Refuse);
        let network = network.map_err(|error| error.to_string())?;
        // Commands and clouds are not asked to do anything because of a question.
        let Wishes { kernel, tunnel, .. } = self.trial_of(&network);
        let wishes = Wishes { kernel, tunnel, ..Wishes::default() };
        Ok((!wishes.is_empty()).then_some((network, wishes)))
    }
}
