//! Part of the rim: before its first lease, a node waits for a config that it can use and joins the network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use flannel_backend::{Answers, Stack, UsableConfig};
use flannel_common::{Backoff, Throttle};
use flannel_entries::facts::Facts;
use flannel_lease::NetworkConfig;
use flannel_node::host_checks;
use flannel_store::{Cursor, Snapshot};
use flannel_wanted::Stopped;
use tokio::sync::{mpsc, watch};

use super::config_changes::say_remarks;
use super::config_check::ConfigCheck;
use super::event_loop::EventLoop;
use super::lease_task::LeaseTask;
use super::network::{HostFacts, JoinedNetwork, OnLan};
use super::requests::NodeNow;
use super::{Joined, Setup, former_config, identity, needs};
use crate::appliers::Appliers;
use crate::link_holders_file::LinkHoldersFile;
use crate::readiness::Readiness;

const CONFIG_POLL: Duration = Duration::from_secs(1);
const CONFIG_REMINDER: Duration = Duration::from_secs(10);
const ADDRESSES_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

pub(super) async fn run(
    mut setup: Setup,
    appliers: Appliers,
    show_node: watch::Sender<Option<Arc<NodeNow>>>,
    config_checks: mpsc::Receiver<ConfigCheck>,
) -> anyhow::Result<()> {
    take_public_addresses(&mut setup).await;
    let setup = Arc::new(setup);
    let (text, membership) = loop {
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
                break (text, found?);
            }
            () = another_config(&setup, &text) => {
                tracing::info!("The network config has changed: starting with the new one");
            }
        }
    };
    EventLoop::new(setup, appliers, membership, show_node, config_checks).run(text).await
}

/// Takes the public addresses that an operator has written into the store. Waits for an answer rather than guess.
async fn take_public_addresses(setup: &mut Setup) {
    let mut tries = ADDRESSES_RETRY.tries(fastrand::Rng::with_seed(setup.seed));
    let written = loop {
        let error = match setup.store.public_addresses().await {
            Ok(written) => break written,
            Err(error) => error,
        };
        let pause = tries.pause();
        tracing::error!(
            "Cannot ask for this node's public addresses: {error}; next try in {pause:.0?}"
        );
        setup.report.say(Readiness::not_ready(error.to_string()));
        tokio::time::sleep(pause).await;
    };
    let wish = &mut setup.options.underlay;
    wish.public_ip = written.v4.or(wish.public_ip);
    wish.public_ipv6 = written.v6.or(wish.public_ipv6);
}

/// Joins the network that a config describes, or the one it had before if only the backend is another.
async fn join_network(
    setup: &Arc<Setup>,
    appliers: &Appliers,
    text: &str,
    judged: UsableConfig,
) -> anyhow::Result<Membership> {
    // At a start a config without a backend means udp, whatever was in use: the Go flannel has it so.
    if judged.names_backend
        && let Some(before) =
            former_config::join_as_before(setup, appliers, text, &judged.config).await
    {
        return Ok(before);
    }
    let config = judged.config;
    host_checks::bridge_filter(Stack::of(&config), config.nftables).map_err(anyhow::Error::msg)?;
    let answers = needs::resolve_needs_with_retry(setup, judged.backend.needs()).await;
    match Membership::try_join(setup, appliers, text.to_owned(), config, answers).await {
        Ok(membership) => Ok(membership),
        Err(error) => bail!("{error}"),
    }
}

/// Membership of this node in a network: how it takes part in it, and its subnet.
pub(super) struct Membership {
    pub(super) joined: Joined,
    pub(super) facts: watch::Receiver<Arc<Facts>>,
    pub(super) lease_task: LeaseTask,
    /// Where the store's events go on from the leases that were listed.
    pub(super) cursor: Cursor,
}

impl Membership {
    /// Takes as long as it takes to get a subnet. `text` is the config.
    pub(super) async fn try_join(
        setup: &Arc<Setup>,
        appliers: &Appliers,
        text: String,
        config: NetworkConfig,
        answers: Answers,
    ) -> anyhow::Result<Self> {
        let mut facts = appliers.kernel.facts.clone();
        let now = facts.borrow_and_update().clone();
        let host = read_host(setup, appliers, now).await?;
        let was_in = identity::was_in(setup, &config, &host.facts);
        let on_lan = if was_in { OnLan::Warn } else { OnLan::RefuseInside };
        let network = JoinedNetwork::new(setup, config, answers, &host, on_lan)?;
        network.say_underlay();
        let (lease_task, own, Snapshot { leases: others, cursor }) =
            LeaseTask::acquire(setup, appliers, &network, host.facts.clone()).await;
        let holders = LinkHoldersFile::new(&setup.options.data_dir, &setup.subnet_file).read();
        let joined = Joined { text, host, network, own, others, holders };
        Ok(Self { joined, facts, lease_task, cursor })
    }
}

/// Completes the kernel's facts by what has to be asked for.
pub(super) async fn read_host(
    setup: &Setup,
    appliers: &Appliers,
    facts: Arc<Facts>,
) -> Result<HostFacts, Stopped> {
    let path = match setup.options.underlay.can_reach {
        Some(ip) => appliers.kernel.lookup(vec![ip]).await?.into_iter().next().flatten(),
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
