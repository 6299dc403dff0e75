//! An operator asks whether this node could use a config that has not been written yet: what can be tried without harm is
//! tried, and nothing changes.

use flannel_backend::{Answers, ConfigAnswer, ConfigQuestion, Need, Wishes};
use flannel_common::{PrivateKey, random_bytes};
use tokio::sync::{mpsc, oneshot};

use super::Daemon;
use super::backend_trial::TrialPurpose;
use super::config_changes::Refusal;
use super::network::{JoinedNetwork, OnLan};
use super::requests::Asked;
use crate::{secret_file, wireguard_by};

/// Questions that wait for the network's task.
const QUEUE: usize = 4;

/// A config, and who wants to know whether it could be used.
pub(super) struct ConfigCheck {
    text: String,
    answer: oneshot::Sender<Result<(), String>>,
}

pub(super) fn channel() -> (mpsc::Sender<ConfigCheck>, mpsc::Receiver<ConfigCheck>) {
    mpsc::channel(QUEUE)
}

/// Answers one request of an operator's.
pub(super) async fn run(mut asked: Asked) {
    let body = asked.body.borrow_and_update().clone();
    let Ok(ConfigQuestion { config }) = serde_json::from_value(body) else {
        let why = "the request cannot be understood".to_owned();
        return asked.answer(&ConfigAnswer::Unusable(why)).await;
    };
    asked.answer(&ConfigAnswer::Trying).await;
    let (answer, heard) = oneshot::channel();
    let check = ConfigCheck { text: config, answer };
    if asked.means.config_checks.send(check).await.is_err() {
        return;
    }
    match heard.await {
        Ok(Ok(())) => asked.answer(&ConfigAnswer::Usable).await,
        Ok(Err(why)) => asked.answer(&ConfigAnswer::Unusable(why)).await,
        // Another config came in between: what was asked about it is out of date.
        Err(_) => {}
    }
}

impl Daemon {
    pub(super) async fn on_config_check(&mut self, check: ConfigCheck) {
        let ConfigCheck { text, answer } = check;
        match self.trial_without_harm(&text).await {
            Ok(Some((network, wishes))) => {
                self.begin_trial(&network, wishes, TrialPurpose::Answer(answer));
            }
            // Who has asked may have gone.
            Ok(None) => drop(answer.send(Ok(()))),
            Err(why) => drop(answer.send(Err(why))),
        }
    }

    /// What is to be tried of a config; `None` if nothing of it can be tried beforehand.
    async fn trial_without_harm(
        &self,
        text: &str,
    ) -> Result<Option<(JoinedNetwork, Wishes)>, String> {
        if text == self.config_text {
            return Ok(None);
        }
        let judged = self.judge_new(text).map_err(Refusal::into_words)?;
        let Some(answers) = harmless_answers(judged.backend.needs())? else { return Ok(None) };
        let facts = self.facts.borrow().clone();
        let (setup, config) = (&self.setup, judged.config);
        let network = JoinedNetwork::unclaimed(setup, config, answers, &facts, OnLan::Refuse).await;
        let network = network.map_err(|error| error.to_string())?;
        // Commands and clouds are not asked to do anything because of a question.
        let Wishes { kernel, tunnel, .. } = self.trial_of(&network);
        let wishes = Wishes { kernel, tunnel, ..Wishes::default() };
        Ok((!wishes.is_empty()).then_some((network, wishes)))
    }
}

/// What the backend needs to know, as far as it is found out without running or changing anything.
fn harmless_answers(needs: Vec<Need>) -> Result<Option<Answers>, String> {
    let mut answers = Answers::default();
    for need in needs {
        match need {
            Need::Output(_) | Need::CloudNode(_) => return Ok(None),
            // Nobody hears of this one, and it is not kept.
            Need::WireguardKey => {
                let bytes = random_bytes().map_err(|error| error.to_string())?;
                answers.set_private_key(PrivateKey::from_random(bytes));
            }
            Need::SecretFile(file) => {
                let secret = secret_file::read(&file)?;
                answers.set_secret(file, secret);
            }
            Need::WireguardBy => {
                answers.set_wireguard_by(wireguard_by::find_out()?);
                answers.set_public_port(wireguard_by::public_port()?);
            }
        }
    }
    Ok(Some(answers))
}
