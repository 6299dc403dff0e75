//! A cluster: a lease server, nodes, and what starts, stops and asks them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flannel_common::simulation::replace_world;
use flannel_lease::{NetworkName, Subnet, SubnetFile};
use flannel_node::options::{self, Parsed};
use flannel_server::embedded::AskError;
use flannel_server::lease_state::{Reply, Request};
use flannel_server::watch_log::WatchLogs;
use flannel_server::{Embedded, LeaseService as _, Limits, Options, Server};
use flannel_store::KeptLease;
use flannel_store::remote::Listen;
use flanneld::joined_networks::JoinedNetworks;
use flanneld::stopping::{StopRequest, stopping};
use tokio::task::{JoinHandle, yield_now};
use tracing::Instrument as _;

use crate::clib;
use crate::history;
use crate::host::{DiskFault, Host, SERVER};
use crate::network::Network;
use crate::world::SimulatedWorld;

const PORT: u16 = 10_253;
/// A service manager starts a daemon again after this.
const RESTART_PAUSE: Duration = Duration::from_secs(2);
/// Tasks that are told of the end of others are over after so many turns.
const TURNS_TO_END: usize = 32;

pub(crate) struct Cluster {
    pub(crate) hosts: Vec<Rc<Host>>,
    pub(crate) network: Network,
    pub(crate) rng: fastrand::Rng,
    programs: BTreeMap<usize, Program>,
    server: Served,
    /// What was acknowledged before the lease server last ended.
    pub(crate) acknowledged: RefCell<Acknowledged>,
}

/// A running program, which the service manager starts again when it ends.
struct Program {
    task: JoinHandle<()>,
    _stop: Option<StopRequest>,
}

/// The store of the lease server that runs.
type Served = Arc<Mutex<Option<Embedded>>>;

/// What clients have been told.
#[derive(Clone, Default)]
pub(crate) struct Acknowledged {
    pub(crate) config: Option<String>,
    pub(crate) leases: BTreeMap<Subnet, KeptLease>,
}

impl Acknowledged {
    fn of(logs: &WatchLogs) -> Self {
        let Some(log) = logs.get(&NetworkName::default()) else { return Self::default() };
        let snapshot = log.snapshot();
        let config = snapshot.config.as_deref().map(str::to_owned);
        let leases = snapshot.into_snapshot().leases.into_iter();
        let kept = leases.filter_map(|it| Some((it.lease.subnet, log.lease(&it.lease.subnet)?)));
        Self { config, leases: kept.collect() }
    }
}

impl Cluster {
    /// Makes the hosts, all of them off.
    pub(crate) fn new(
        nodes: usize,
        directory: &Path,
        mut rng: fastrand::Rng,
    ) -> anyhow::Result<Self> {
        let hosts: Result<Vec<_>, _> =
            (0..=nodes).map(|number| Host::new(number, directory, &mut rng).map(Rc::new)).collect();
        let hosts = hosts?;
        let network = Network::new(rng.fork());
        history::set_hosts(&hosts);
        let world = SimulatedWorld { hosts: hosts.clone(), network: network.clone() };
        replace_world(Some(Rc::new(world)));
        Ok(Self {
            hosts,
            network,
            rng,
            programs: BTreeMap::new(),
            server: Served::default(),
            acknowledged: RefCell::default(),
        })
    }

    /// Numbers of the nodes.
    pub(crate) fn nodes(&self) -> std::ops::Range<usize> {
        SERVER + 1..self.hosts.len()
    }

    pub(crate) fn runs(&self, host: usize) -> bool {
        self.programs.get(&host).is_some_and(|program| !program.task.is_finished())
    }

    /// Switches a machine on, and starts its program.
    pub(crate) fn boot(&mut self, number: usize) {
        let host = self.hosts[number].clone();
        history::note(format_args!("{} boots", host.name()));
        host.reboot();
        host.disk.set(DiskFault::None);
        host.power_ends_after_syncs.set(None);
        host.is_up.set(true);
        self.network.set_off(number, false);
        self.start(number);
    }

    /// Starts the program of a machine that is on.
    pub(crate) fn start(&mut self, number: usize) {
        let span = tracing::info_span!("simulated host", number = number as u64);
        debug_assert_eq!(span.metadata().map(|it| it.name()), Some(history::HOST_SPAN));
        let seed = self.rng.u64(..);
        let host = self.hosts[number].clone();
        if number == SERVER {
            let task = tokio::spawn(
                keep_serving(self.server.clone(), host_files(&host), seed).instrument(span),
            );
            self.programs.insert(number, Program { task, _stop: None });
            return;
        }
        let arguments = arguments(&host, self.hosts[SERVER].ip.get());
        let (request, stopping) = stopping();
        let daemon = async move {
            loop {
                let parsed = options::parse(arguments.clone(), []);
                let Ok(Parsed::Run { options, .. }) = parsed else {
                    tracing::error!("the options are wrong: {parsed:?}");
                    return;
                };
                let (_watched, run) = JoinedNetworks::new(*options, None, stopping.clone()).run();
                match run.await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::error!("flanneld ends: {error:#}");
                        if let Some(host) = clib::current_host() {
                            host.program_ended.replace(Some(format!("{error:#}")));
                        }
                    }
                }
                tokio::time::sleep(RESTART_PAUSE).await;
            }
        };
        let task = tokio::spawn(daemon.instrument(span));
        self.programs.insert(number, Program { task, _stop: Some(request) });
    }

    /// Kills the program of a machine, wherever it is. Its connections end.
    pub(crate) async fn kill(&mut self, number: usize) {
        if number == SERVER {
            self.note_acknowledged();
            self.served().take();
        }
        if let Some(program) = self.programs.remove(&number) {
            program.task.abort();
        }
        for _ in 0..TURNS_TO_END {
            yield_now().await;
        }
    }

    /// A machine loses its power: nothing is written any more, and nobody hears of it.
    pub(crate) async fn switch_off(&mut self, number: usize) {
        let host = self.hosts[number].clone();
        host.disk.set(DiskFault::Off);
        host.is_up.set(false);
        self.network.set_off(number, true);
        self.kill(number).await;
        host.lose_unsynced(&mut self.rng);
    }

    fn served(&self) -> std::sync::MutexGuard<'_, Option<Embedded>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_acknowledged(&self) {
        if let Some(now) = self.stored() {
            self.acknowledged.replace(now);
        }
    }

    /// What the lease server that runs tells its clients; `None` while none runs.
    pub(crate) fn stored(&self) -> Option<Acknowledged> {
        let served = self.served();
        Some(Acknowledged::of(served.as_ref()?.watch_logs()))
    }

    /// An operator asks the lease server for something; `None` while none runs.
    pub(crate) async fn ask(&self, request: Request) -> Option<Result<Reply, AskError>> {
        let embedded = self.served().clone()?;
        let network = NetworkName::default();
        let answer = embedded.ask(&network, request);
        tokio::time::timeout(Duration::from_secs(10), answer).await.ok()
    }

    /// The subnet that a machine that is on believes to have.
    pub(crate) fn subnet_of(&self, number: usize) -> Option<Subnet> {
        let host = &self.hosts[number];
        if !host.is_up.get() {
            return None;
        }
        let text = std::fs::read_to_string(host.subnet_file()).ok()?;
        SubnetFile::parse(&text).0.lease_subnet()
    }
}

struct HostFiles {
    data: std::path::PathBuf,
    ip: Ipv4Addr,
}

fn host_files(host: &Host) -> HostFiles {
    HostFiles { data: host.data_directory(), ip: host.ip.get() }
}

/// Serves leases; starts again when the store cannot be opened.
async fn keep_serving(served: Served, files: HostFiles, seed: u64) {
    let mut seeds = fastrand::Rng::with_seed(seed);
    loop {
        if let Err(error) = serve(&served, &files, seeds.u64(..)).await {
            tracing::error!("the lease server ends: {error:#}");
        }
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

async fn serve(served: &Served, files: &HostFiles, seed: u64) -> anyhow::Result<()> {
    let embedded = Embedded::open(&files.data, seed).map_err(|error| anyhow::anyhow!("{error}"))?;
    let server = Server::bind(Options {
        listen: Listen::Address { host: files.ip.to_string(), port: PORT },
        tls: None,
        tokens: None,
        reviewer: None,
        insecure: true,
        limits: Limits::default(),
    });
    let server = server.await?;
    *served.lock().unwrap_or_else(PoisonError::into_inner) = Some(embedded.clone());
    match server.run(Arc::new(embedded)).await {}
}

fn arguments(host: &Host, server: Ipv4Addr) -> Vec<OsString> {
    let server = SocketAddr::new(IpAddr::V4(server), PORT);
    let words = [
        "flanneld".to_owned(),
        format!("--remote=http://{server}"),
        "--iface=eth0".to_owned(),
        format!("--subnet-file={}", host.subnet_file().display()),
        format!("--data-dir={}", host.data_directory().display()),
        "--ip-masq=false".to_owned(),
        "--iptables-forward-rules=false".to_owned(),
        "--peer-probe-port=0".to_owned(),
    ];
    words.map(OsString::from).into()
}
