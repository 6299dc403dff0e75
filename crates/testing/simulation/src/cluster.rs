//! A cluster: a lease server, nodes, and what starts, stops and asks them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
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
use flannel_server::{Embedded, EmbeddedOptions, LeaseService as _, Limits, Options, Server};
use flannel_state::NetworkState;
use flannel_store::KeptLease;
use flannel_store::remote::Listen;
use flanneld::door::Question;
use flanneld::joined_networks::JoinedNetworks;
use flanneld::readiness::Report;
use flanneld::stopping::{StopRequest, stopping};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tracing::Instrument as _;

use crate::clib;
use crate::contenders;
use crate::history;
use crate::host::{DiskFault, Families, Host, SERVER};
use crate::network::Network;
use crate::operations;
use crate::operator::{Operator, Served};
use crate::world::SimulatedWorld;

const PORT: u16 = 10_253;
/// A service manager starts a daemon again after this.
const RESTART_PAUSE: Duration = Duration::from_secs(2);
/// A daemon that is asked to stop has stopped after this.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// A daemon answers a question within this time.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Tasks that are told of the end of others are over after so many turns.
const TURNS_TO_END: usize = 32;

pub(crate) struct Cluster {
    pub(crate) hosts: Vec<Rc<Host>>,
    pub(crate) network: Network,
    pub(crate) rng: fastrand::Rng,
    pub(crate) families: Families,
    /// A log of the lease server that is shorter is not compacted.
    min_compaction_bytes: u64,
    programs: BTreeMap<usize, Program>,
    server: Arc<Served>,
    /// What was acknowledged before the lease server last ended.
    pub(crate) acknowledged: RefCell<Rc<Acknowledged>>,
    /// What the lease server that runs had when somebody last asked, and at which revision.
    last_stored: RefCell<Option<(u64, Rc<Acknowledged>)>>,
    /// Subnets of machines, as they were when their programs last ran.
    last_subnets: RefCell<BTreeMap<usize, Option<Subnet>>>,
}

/// A running program, which the service manager starts again when it ends.
struct Program {
    task: JoinHandle<()>,
    stop: Option<StopRequest>,
    report: SharedReport,
}

/// Whom to ask for the state of a daemon.
type SharedReport = Arc<Mutex<Option<Report>>>;

/// Files of a lease server's data directory, as they once were.
#[derive(Clone)]
pub(crate) struct Backup {
    files: Vec<(OsString, Vec<u8>)>,
    /// What clients had been told by then.
    pub(crate) acknowledged: Rc<Acknowledged>,
}

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
        let families = match rng.u8(..5) {
            0..=2 => Families::V4,
            3 => Families::V6,
            _ => Families::Both,
        };
        let min_compaction_bytes = rng.u64(512..4_096);
        // The last one is there for a copy of another.
        let host = |number| Host::new(number, families, directory, &mut rng).map(Rc::new);
        let hosts: Vec<Rc<Host>> = (0..=nodes + 1).map(host).collect::<Result<_, _>>()?;
        hosts[nodes + 1].exists.set(false);
        let network = Network::new(rng.fork());
        history::set_hosts(&hosts);
        let world = SimulatedWorld { hosts: hosts.clone(), network: network.clone() };
        replace_world(Some(Rc::new(world)));
        Ok(Self {
            hosts,
            network,
            rng,
            families,
            min_compaction_bytes,
            programs: BTreeMap::new(),
            server: Arc::default(),
            acknowledged: RefCell::default(),
            last_stored: RefCell::default(),
            last_subnets: RefCell::default(),
        })
    }

    /// Numbers of the nodes, and of the copy of one if there is one.
    pub(crate) fn nodes(&self) -> std::ops::Range<usize> {
        let copy = self.spare();
        SERVER + 1..copy + usize::from(self.hosts[copy].exists.get())
    }

    /// Number of the machine that a copy of another may become.
    fn spare(&self) -> usize {
        self.hosts.len() - 1
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
            let address = self.server_address();
            let (data, min_compaction_bytes) = (host.data_directory(), self.min_compaction_bytes);
            let place = ServerPlace { data, address, min_compaction_bytes };
            let task =
                tokio::spawn(keep_serving(self.server.clone(), place, seed).instrument(span));
            let report = SharedReport::default();
            self.programs.insert(number, Program { task, stop: None, report });
            return;
        }
        let arguments = arguments(&host, self.server_address());
        let (request, stopping) = stopping();
        let report = SharedReport::default();
        let shared = report.clone();
        let daemon = async move {
            loop {
                let parsed = options::parse(arguments.clone(), []);
                let Ok(Parsed::Run { options, .. }) = parsed else {
                    tracing::error!("the options are wrong: {parsed:?}");
                    return;
                };
                let (watched, run) = JoinedNetworks::new(*options, None, stopping.clone()).run();
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = watched.report.clone();
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
        self.programs.insert(number, Program { task, stop: Some(request), report });
    }

    /// Stops the daemon of a machine as an upgrade does, and starts the next one.
    pub(crate) async fn upgrade(&mut self, number: usize) {
        if let Some(mut program) = self.programs.remove(&number) {
            if let Some(stop) = &program.stop {
                stop.stop();
            }
            let _ = tokio::time::timeout(STOP_LIMIT, &mut program.task).await;
            program.task.abort();
        }
        self.end_tasks().await;
        self.start(number);
    }

    /// Kills the program of a machine, wherever it is. Its connections end.
    pub(crate) async fn kill(&mut self, number: usize) {
        if number == SERVER {
            self.note_acknowledged();
        }
        // Who is killed writes nothing more.
        let host = self.hosts[number].clone();
        let before = host.disk.replace(DiskFault::Off);
        if number == SERVER {
            self.server.end();
            self.last_stored.take();
        }
        if let Some(program) = self.programs.remove(&number) {
            program.task.abort();
        }
        self.end_tasks().await;
        host.disk.set(before);
    }

    async fn end_tasks(&self) {
        for _ in 0..TURNS_TO_END {
            yield_now().await;
        }
    }

    /// Makes a machine whose disk is a copy of another's, with a card and an address of its own. Returns its number;
    /// `None` if there is one already.
    pub(crate) fn copy_machine(&mut self, original: usize, machine_id: bool) -> Option<usize> {
        let copy = self.spare();
        let host = self.hosts[copy].clone();
        if host.exists.get() {
            return None;
        }
        host.exists.set(true);
        host.copy_disk(&self.hosts[original], machine_id).ok()?;
        self.boot(copy);
        Some(copy)
    }

    /// Copies the files of the lease server; `None` while it does not run.
    pub(crate) fn back_up(&self) -> Option<Backup> {
        let acknowledged = self.stored()?;
        let mut files = Vec::new();
        for entry in fs::read_dir(self.hosts[SERVER].data_directory()).ok()? {
            let entry = entry.ok()?;
            files.push((entry.file_name(), fs::read(entry.path()).ok()?));
        }
        files.sort();
        Some(Backup { files, acknowledged })
    }

    /// Puts the files of a backup in the place of the lease server's, which must not run.
    pub(crate) fn restore(&self, backup: &Backup) -> std::io::Result<()> {
        let host = &self.hosts[SERVER];
        let data = host.data_directory();
        for entry in fs::read_dir(&data)? {
            fs::remove_file(entry?.path())?;
        }
        for (name, content) in &backup.files {
            fs::write(data.join(name), content)?;
        }
        host.note_all_synced()?;
        self.acknowledged.replace(backup.acknowledged.clone());
        operations::store_replaced();
        Ok(())
    }

    /// The state of a daemon as it says itself; `None` if it does not answer.
    pub(crate) async fn state_of(&self, number: usize) -> Option<NetworkState> {
        let report = {
            let program = self.programs.get(&number)?;
            program.report.lock().unwrap_or_else(PoisonError::into_inner).clone()?
        };
        let ask = report.of_each_network().into_iter().next()?.ask?;
        let (answer, answered) = oneshot::channel();
        let asked = async {
            ask.send(Question::State(answer)).await.ok()?;
            answered.await.ok()
        };
        tokio::time::timeout(ANSWER_LIMIT, asked).await.ok().flatten()
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

    fn note_acknowledged(&self) {
        if let Some(now) = self.stored() {
            self.acknowledged.replace(now);
        }
    }

    /// What the lease server that runs tells its clients; `None` while none runs.
    /// The same as long as nothing changes.
    pub(crate) fn stored(&self) -> Option<Rc<Acknowledged>> {
        let logs = self.server.embedded()?.watch_logs().clone();
        let log = logs.get(&NetworkName::default());
        let revision = log.map_or(0, |log| *log.changes().borrow());
        if let Some((at, stored)) = &*self.last_stored.borrow()
            && *at == revision
        {
            return Some(stored.clone());
        }
        let stored = Rc::new(Acknowledged::of(&logs));
        self.last_stored.replace(Some((revision, stored.clone())));
        Some(stored)
    }

    /// An operator asks the lease server for something; `None` while none runs.
    pub(crate) async fn ask(&self, request: Request) -> Option<Result<Reply, AskError>> {
        self.operator().ask(&NetworkName::default(), request).await
    }

    fn operator(&self) -> Operator {
        Operator::new(self.server.clone())
    }

    fn server_address(&self) -> IpAddr {
        self.hosts[SERVER].addresses().next().unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// Starts clients that contend for leases, on machines of nodes, until the faults end.
    pub(crate) fn start_contenders(&self, seed: u64, faults_end: Duration) {
        let server = SocketAddr::new(self.server_address(), PORT);
        let hosts = &self.hosts[SERVER + 1..self.spare()];
        let server = format!("http://{server}");
        contenders::start(hosts, &server, &self.operator(), seed, faults_end);
    }

    /// The subnet that a machine that is on believes to have.
    pub(crate) fn subnet_of(&self, number: usize) -> Option<Subnet> {
        let host = &self.hosts[number];
        if !host.is_up.get() {
            return None;
        }
        // Nobody else writes that file.
        if host.has_run.replace(false) {
            let text = std::fs::read_to_string(host.subnet_file());
            let subnet = text.ok().and_then(|text| SubnetFile::parse(&text).0.lease_subnet());
            self.last_subnets.borrow_mut().insert(number, subnet);
            return subnet;
        }
        self.last_subnets.borrow().get(&number).copied().flatten()
    }

    /// A number that stays the same while no kernel is written, nothing is stored, and nothing starts or ends.
    pub(crate) fn changes(&self) -> u64 {
        let kernels: u64 = self.hosts.iter().map(|host| host.kernel.writes.get()).sum();
        let running = (0..self.hosts.len()).filter(|number| self.runs(*number)).count() as u64;
        let is_served = u64::from(self.stored().is_some());
        let revision = self.last_stored.borrow().as_ref().map_or(0, |(revision, _)| *revision);
        let mut sum = 0_u64;
        for part in [kernels, running, is_served, revision] {
            sum = (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        sum
    }
}

/// Where a lease server runs.
struct ServerPlace {
    data: std::path::PathBuf,
    address: IpAddr,
    min_compaction_bytes: u64,
}

/// Serves leases; starts again when the store cannot be opened.
async fn keep_serving(served: Arc<Served>, place: ServerPlace, seed: u64) {
    let mut seeds = fastrand::Rng::with_seed(seed);
    loop {
        if let Err(error) = serve(&served, &place, seeds.u64(..)).await {
            tracing::error!("the lease server ends: {error:#}");
        }
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

async fn serve(served: &Served, place: &ServerPlace, seed: u64) -> anyhow::Result<()> {
    let min_compaction_bytes = place.min_compaction_bytes;
    let options = EmbeddedOptions { min_compaction_bytes, ..EmbeddedOptions::new(seed) };
    let embedded =
        Embedded::open_with(&place.data, &options).map_err(|error| anyhow::anyhow!("{error}"))?;
    let server = Server::bind(Options {
        listen: Listen::Address { host: place.address.to_string(), port: PORT },
        tls: None,
        tokens: None,
        reviewer: None,
        insecure: true,
        limits: Limits::default(),
    });
    let server = server.await?;
    served.begin(embedded.clone());
    match server.run(Arc::new(embedded)).await {}
}

fn arguments(host: &Host, server: IpAddr) -> Vec<OsString> {
    let server = SocketAddr::new(server, PORT);
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
