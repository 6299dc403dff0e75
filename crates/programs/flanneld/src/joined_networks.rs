//! The networks that this node joins, each with a daemon, store and appliers of its own, so that none affects another.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_backend::PrivilegePolicy;
use flannel_common::Backoff;
use flannel_node::machine::read_machine_hash;
use flannel_node::options::{Joined, Options};
use flannel_probe::{Listeners, Prober};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use crate::appliers::Appliers;
use crate::daemon::{self, NetworkClaims, Setup};
use crate::readiness::{Readiness, Report, reports};
use crate::serve::Served;
use crate::stopping::Stopping;
use crate::{store, subnet_file};

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

pub struct Watched {
    pub readiness: watch::Receiver<Readiness>,
    /// That of any network, if one is joined.
    pub report: Option<Report>,
}

pub struct JoinedNetworks {
    options: Options,
    served: Option<Served>,
    machine_hash: Option<NonZeroU64>,
    claims: Arc<NetworkClaims>,
    stopping: Stopping,
    listeners: Option<Arc<Listeners>>,
}

impl JoinedNetworks {
    pub fn new(options: Options, served: Option<Served>, stopping: Stopping) -> Self {
        let machine_hash = read_machine_hash();
        let order = options.networks.iter().map(|network| network.name.clone()).collect();
        let claims = Arc::new(NetworkClaims::new(order));
        let listeners = options.peer_probe_port.map(|port| Arc::new(Listeners::new(port.get())));
        Self { options, served, machine_hash, claims, stopping, listeners }
    }

    /// Runs until it is dropped or asked to stop. What only a person can fix ends a single network; of several it is retried.
    pub fn run(self) -> (Watched, impl Future<Output = anyhow::Result<()>> + Send) {
        let networks = self.options.networks.clone();
        let (reports, readiness) = reports(networks.iter().map(|network| network.name.clone()));
        let report = reports.first().cloned();
        let all = async move {
            let each: Vec<_> = networks.into_iter().zip(reports).collect();
            if let [(network, report)] = each.as_slice() {
                return self.join(network, report.clone(), self.privileges(network)).await;
            }
            let this = Arc::new(self);
            let mut running = JoinSet::new();
            for (network, report) in each {
                let span = tracing::info_span!("join", network = network.name.as_str());
                running.spawn(this.clone().keep(network, report).instrument(span));
            }
            // None of them ends unless asked to; if one panics, so do we.
            running.join_all().await;
            Ok(())
        };
        (Watched { readiness, report }, all)
    }

    /// One of several networks, again and again until asked to stop.
    async fn keep(self: Arc<Self>, network: Joined, report: Report) {
        let mut tries = RETRY.tries(fastrand::Rng::new());
        let mut stopping = self.stopping.clone();
        let privileges = self.privileges(&network);
        loop {
            let began = Instant::now();
            let joined = self.join(&network, report.clone(), privileges.clone()).await;
            let Err(error) = joined else { return };
            if began.elapsed() > RETRY.most {
                tries.reset();
            }
            let pause = tries.pause();
            tracing::error!("{error:#}; next try in {pause:.0?}");
            report.say(Readiness::not_ready(format!("{error:#}")));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stopping.requested() => return,
            }
        }
    }

    fn privileges(&self, network: &Joined) -> PrivilegePolicy {
        PrivilegePolicy::new(self.options.allow_commands, network.store.config_origin())
    }

    async fn join(
        &self,
        network: &Joined,
        report: Report,
        privileges: PrivilegePolicy,
    ) -> anyhow::Result<()> {
        let previous = subnet_file::previous(&network.subnet_file).unwrap_or_else(|error| {
            tracing::warn!("{error}; going on without what it says of the previous subnet");
            Default::default()
        });
        let mut rng = fastrand::Rng::new();
        let (served, data_dir) = (self.served.as_ref(), &self.options.data_dir);
        let store =
            store::open(network, previous.lease_subnet(), rng.u64(..), served, data_dir).await?;
        tracing::info!("Created subnet manager: {}", store.name());
        let prober = self.listeners.as_ref();
        let prober = prober.map(|at| Prober::new(network.name.as_str(), at.clone()));
        // Before the rules of any other network are written, so that ours are not taken for leftovers.
        let (run, resync) = (run_directory(&network.subnet_file), self.options.traffic.resync);
        let appliers = Appliers::start(rng.u64(..), run, resync, &previous.all_networks())?;
        let setup = Setup {
            store,
            prober,
            report,
            privileges,
            claims: self.claims.clone(),
            subnet_file: network.subnet_file.clone(),
            machine_hash: self.machine_hash,
            previous,
            seed: rng.u64(..),
            options: self.options.clone(),
        };
        daemon::run(setup, appliers, self.stopping.clone()).await
    }
}

/// Where the daemon keeps what lives as long as the machine is up: beside its subnet file.
fn run_directory(subnet_file: &Path) -> &Path {
    subnet_file.parent().unwrap_or(Path::new("/run/flannel"))
}
