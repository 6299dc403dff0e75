//! What comes before a node has its first lease: it waits for a config that it can use and joins the network. A part of the
//! rim: it polls the store and waits as long as it takes.

use std::sync::Arc;
use std::time::Instant;

use anyhow::bail;
use flannel_backend::{Answers, Stack, UsableConfig};
use flannel_common::Throttle;
use flannel_entries::facts::Facts;
use flannel_lease::NetworkConfig;
use flannel_node::host_checks;
use flannel_store::Snapshot;
use flannel_wanted::Stopped;
use tokio::sync::{mpsc, watch};

use super::config_changes::say_remarks;
use super::config_check::ConfigCheck;
use super::event_loop::EventLoop;
use super::lease_task::LeaseTask;
use super::network::{HostFacts, JoinedNetwork, OnLan};
use super::own_lease::OwnLease;
use super::requests::NodeNow;
use super::timing::{CONFIG_POLL, CONFIG_REMINDER};
use super::{Setup, former_config, identity, needs, public_addresses};
use crate::appliers::Appliers;
use crate::readiness::Readiness;

/// Joins the network, and then lives in it.
pub(super) async fn run(
    mut setup: Setup,
    appliers: Appliers,
    show_node: watch::Sender<Option<Arc<NodeNow>>>,
    config_checks: mpsc::Receiver<ConfigCheck>,
) -> anyhow::Result<()> {
    public_addresses::take_from_store(&mut setup).await;
    let setup = Arc::new(setup);
    let (text, used, membership) = loop {
        let (text, config) = wait_for_config(&setup).await;
        tracing::info!("Found network config - Backend type: {}", config.backend.kind);
        let judged = match flannel_backend::judge_config(&text, setup.store.subnets()) {
            Ok(judged) => judged,
            Err(error) => bail!("{error}"),
        };
        say_remarks(&judged);
        let wanted = judged.backend.privileges();
        let granted = setup.privileges.check(&wanted);
        setup.privileges.start_with(wanted);
        if let Err(withheld) = granted {
            let why = format!("The network config {withheld}");
            tracing::error!("{why}; waiting, nothing on this node is changed");
            setup.report.say(Readiness::not_ready(why));
            another_config(&setup, &text).await;
            continue;
        }
        // With a config that is wrong there may be none until somebody has written another.
        tokio::select! {
            found = join_network(&setup, &appliers, &text, judged) => {
                let (used, membership) = found?;
                break (text, used, membership);
            }
            () = another_config(&setup, &text) => {
                tracing::info!("The network config has changed: starting with the new one");
            }
        }
    };
    let node = EventLoop::new(setup, appliers, used, membership, show_node, config_checks);
    node.run(text).await
}

/// Joins the network that a config describes, or the one it had before if only the backend is another. Returns the config
/// of that network, too.
async fn join_network(
    setup: &Arc<Setup>,
    appliers: &Appliers,
    text: &str,
    judged: UsableConfig,
) -> anyhow::Result<(String, Membership)> {
    // At a start a config without a backend means udp, whatever was in use: the Go flannel has it so.
    if judged.names_backend
        && let Some(before) =
            former_config::join_as_before(setup, appliers, text, &judged.config).await
    {
        return Ok(before);
    }
    Ok((text.to_owned(), Membership::join(setup, appliers, judged).await?))
}

/// Membership of this node in a network: how it takes part in it, and its subnet.
pub(super) struct Membership {
    pub(super) answers: Answers,
    /// Where the kernel's facts change.
    pub(super) facts: watch::Receiver<Arc<Facts>>,
    pub(super) host: HostFacts,
    pub(super) network: JoinedNetwork,
    pub(super) own: OwnLease,
    pub(super) lease_task: LeaseTask,
    pub(super) others: Snapshot,
}

impl Membership {
    /// Takes as long as it takes to get a subnet.
    async fn join(
        setup: &Arc<Setup>,
        appliers: &Appliers,
        judged: UsableConfig,
    ) -> anyhow::Result<Self> {
        let config = judged.config;
        host_checks::bridge_filter(Stack::of(&config), config.nftables)
            .map_err(anyhow::Error::msg)?;
        let answers = needs::resolve_needs_with_retry(setup, judged.backend.needs()).await;
        match Self::try_join(setup, appliers, config, answers).await {
            Ok(membership) => Ok(membership),
            Err(error) => bail!("{error}"),
        }
    }

    /// The same when it is known what the backend needs to know.
    pub(super) async fn try_join(
        setup: &Arc<Setup>,
        appliers: &Appliers,
        config: NetworkConfig,
        answers: Answers,
    ) -> anyhow::Result<Self> {
        let mut facts = appliers.kernel().facts();
        let now = facts.borrow_and_update().clone();
        let host = read_host(setup, appliers, now).await?;
        let on_lan = match identity::was_in(setup, &config, &host.facts) {
            true => OnLan::Warn,
            false => OnLan::RefuseInside,
        };
        let network = JoinedNetwork::new(setup, config, answers.clone(), &host, on_lan)?;
        network.say_underlay();
        let (lease_task, own, others) =
            LeaseTask::acquire(setup, appliers, &network, host.facts.clone()).await;
        Ok(Self { answers, facts, host, network, own, lease_task, others })
    }
}

/// Completes the kernel's facts by what has to be asked for.
pub(super) async fn read_host(
    setup: &Setup,
    appliers: &Appliers,
    facts: Arc<Facts>,
) -> Result<HostFacts, Stopped> {
    let path = match setup.options.underlay.can_reach {
        Some(ip) => appliers.kernel().lookup(vec![ip]).await?.into_iter().next().flatten(),
        None => None,
    };
    Ok(HostFacts { facts, path })
}

/// The network config, waited for as long as it takes: nodes are often started before it is written.
async fn wait_for_config(setup: &Setup) -> (String, NetworkConfig) {
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
        setup.report.say(Readiness::not_ready(problem.clone()));
        if reminder.pass(Instant::now()).is_some() {
            tracing::error!("Couldn't fetch network config: {problem}; trying every second");
        }
        tokio::time::sleep(CONFIG_POLL).await;
    }
}

/// Waits until the store has a config that is other than this one, and can be read.
async fn another_config(setup: &Setup, text: &str) {
    loop {
        tokio::time::sleep(CONFIG_POLL).await;
        if let Ok(Some(now)) = setup.store.config().await
            && now != text
            && flannel_backend::judge_config(&now, setup.store.subnets()).is_ok()
        {
            return;
        }
    }
}
