//! Finds out what the backend needs to know beforehand.

use std::time::Duration;

use flannel_backend::{Answers, Need};
use flannel_common::Backoff;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::Setup;
use crate::readiness::Readiness;
use crate::{secret_file, wireguard_by, wireguard_key};

/// Between tries to find out what could not be found out.
pub(super) const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// What is needed, or why it cannot be had now; for people.
pub(super) async fn find_out(needs: Vec<Need>) -> Result<Answers, String> {
    let mut answers = Answers::default();
    for need in needs {
        match need {
            Need::Output(command) => {
                let name = command.name;
                // A command takes its time, up to its limit. Others go on meanwhile.
                let run = tokio::task::spawn_blocking(move || (command.run(), command));
                let (result, command) = run.await.map_err(|error| error.to_string())?;
                let output = result.map_err(|error| format!("{name}: {error}"))?;
                tracing::info!("Ran {name}: {} bytes of output", output.len());
                answers.add_output(command, output);
            }
            Need::WireguardKey => answers.set_private_key(wireguard_key::read_or_make()?),
            Need::CloudNode(query) => {
                let node = query.ask().await.map_err(|error| error.to_string())?;
                tracing::info!(
                    "This machine is {} in {} ({})",
                    node.instance,
                    node.region,
                    node.provider
                );
                answers.set_cloud_node(query, node);
            }
            Need::WireguardBy => {
                answers.set_wireguard_by(wireguard_by::find_out()?);
                answers.set_public_port(wireguard_by::public_port()?);
            }
            Need::SecretFile(file) => {
                let secret = secret_file::read(&file)?;
                answers.set_secret(file, secret);
            }
        }
    }
    Ok(answers)
}

/// The same while others go on, for it may take as long as a command may.
pub(super) struct FindingOut(JoinHandle<Result<Answers, String>>);

impl FindingOut {
    pub(super) fn start(needs: Vec<Need>) -> Self {
        Self(tokio::spawn(find_out(needs).in_current_span()))
    }

    pub(super) async fn end(&mut self) -> Result<Answers, String> {
        (&mut self.0).await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Tries until all is known.
pub(super) async fn find_out_at_last(setup: &Setup, needs: Vec<Need>) -> Answers {
    let mut tries = RETRY.tries(fastrand::Rng::with_seed(setup.seed));
    loop {
        match find_out(needs.clone()).await {
            Ok(answers) => return answers,
            Err(why) => {
                let pause = tries.pause();
                tracing::error!("{why}; next try in {pause:.0?}");
                setup.report.say(Readiness::NotReady(why));
                tokio::time::sleep(pause).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flannel_commands::{Command, Form};
    use flannel_common::Secret;

    use super::*;

    fn need(line: &str) -> Need {
        Need::Output(Command {
            name: "PreStartupCommand",
            line: line.to_owned(),
            form: Form::Shell,
            variables: Vec::new(),
            input: Secret::new(""),
            limit: Duration::from_secs(60),
        })
    }

    #[test]
    fn every_need_is_answered_or_it_is_told_why_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let needs = vec![need("echo first"), need("echo second")];
        let answers = runtime.block_on(find_out(needs.clone())).expect("they run");
        assert!(answers.are_of(&needs) && !answers.are_of(&needs[..1]));
        assert!(!format!("{answers:?}").contains("first"));
        let outputs = needs.iter().map(|need| match need {
            Need::Output(command) => answers.output(command),
            Need::WireguardKey | Need::CloudNode(_) | Need::WireguardBy | Need::SecretFile(_) => {
                None
            }
        });
        assert_eq!(outputs.collect::<Vec<_>>(), [Some("first"), Some("second")]);
        let why = runtime.block_on(find_out(vec![need("echo no >&2; exit 1")]));
        assert_eq!(why.expect_err("it fails"), "PreStartupCommand: exit status: 1: no");
    }
}
