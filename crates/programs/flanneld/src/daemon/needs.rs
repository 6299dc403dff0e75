//! Finds out what the backend needs to know beforehand: the rim of the daemon towards commands, clouds and files.

use std::time::Duration;

use flannel_backend::{Answers, Need};
use flannel_common::{Backoff, PrivateKey, Task, random_bytes};

use super::Setup;
use crate::readiness::Readiness;
use crate::{secret_file, wireguard_by, wireguard_key};

pub(super) const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// What is needed, or why it cannot be had now; for people.
pub(super) async fn find_out(needs: Vec<Need>) -> Result<Answers, String> {
    let mut answers = Answers::default();
    for need in needs {
        match need {
            Need::Output(command) => {
                let name = command.name;
                // A command takes its time, up to its limit. Others go on meanwhile.
                let run = Task::spawn_blocking("command", move || {
                    (flannel_commands::run(&command), command)
                });
                let (result, command) = run.await.map_err(|error| error.to_string())?;
                let output = result.map_err(|error| format!("{name}: {error}"))?;
                tracing::info!("Ran {name}: {} bytes of output", output.len());
                answers.outputs.push((command, output));
            }
            Need::WireguardKey => {
                answers.private_key = Some(wireguard_key::read_or_make(&wireguard_key::path())?)
            }
            Need::CloudNode(query) => {
                let node =
                    flannel_cloud::query_node(&query).await.map_err(|error| error.to_string())?;
                tracing::info!(
                    "This machine is {} in {} ({})",
                    node.instance,
                    node.region,
                    node.provider
                );
                answers.cloud_node = Some((query, node));
            }
            Need::WireguardBy => {
                answers.wireguard_by = Some(wireguard_by::find_out()?);
                answers.public_port = wireguard_by::public_port()?;
            }
            Need::SecretFile(file) => {
                answers.secret = Some((file.clone(), secret_file::read(&file)?));
            }
        }
    }
    Ok(answers)
}

/// What the backend needs to know, if all of it can be found out without running or changing anything.
pub(super) fn find_out_harmlessly(needs: Vec<Need>) -> Result<Option<Answers>, String> {
    let mut answers = Answers::default();
    for need in needs {
        match need {
            Need::Output(_) | Need::CloudNode(_) => return Ok(None),
            // Nobody hears of this one, and it is not kept.
            Need::WireguardKey => {
                let bytes = random_bytes().map_err(|error| error.to_string())?;
                answers.private_key = Some(PrivateKey::from_random(bytes));
            }
            Need::SecretFile(file) => {
                answers.secret = Some((file.clone(), secret_file::read(&file)?));
            }
            Need::WireguardBy => {
                answers.wireguard_by = Some(wireguard_by::find_out()?);
                answers.public_port = wireguard_by::public_port()?;
            }
        }
    }
    Ok(Some(answers))
}

pub(super) async fn resolve_needs_with_retry(setup: &Setup, needs: Vec<Need>) -> Answers {
    let mut tries = RETRY.tries(fastrand::Rng::with_seed(setup.seed));
    loop {
        match find_out(needs.clone()).await {
            Ok(answers) => return answers,
            Err(why) => {
                let pause = tries.pause();
                tracing::error!("{why}; next try in {pause:.0?}");
                setup.report.say(Readiness::not_ready(why));
                tokio::time::sleep(pause).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flannel_common::Secret;
    use flannel_entries::commands::{Command, Form};

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
