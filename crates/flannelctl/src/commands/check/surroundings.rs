//! What this node is, or will be, a part of: the networks by their configs, their leases, the underlay. By the flanneld
//! that runs here, its store and its own word, or by what the operator names.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser};
use flannel_backend::{Answers, Connected, Judged, Node, Stack, Underlay, WantedBy};
use flannel_common::OperatorCommands;
use flannel_kernel::{Engine, Facts};
use flannel_kube::api::Api;
use flannel_lease::{Lease, NetworkConfig, NetworkName, SubnetOrigin};
use flannel_state::{DaemonState, PeerCondition, PeerState};
use flannel_store::Admin;
use flannel_trace::{NodeInNetwork, Peer, Tunnel};
use flanneld::iface::{self, Selection};
use flanneld::machine::Machine;
use flanneld::options::{Serve, StoreOptions};
use ipnet::IpNet;

use super::finding::Finding;
use crate::commands::daemon::client;
use crate::commands::daemon_process::{self, DaemonProcess};
use crate::commands::page::PROBE_PORT;
use crate::commands::store_args::{StoreArgs, block_on};

/// Whatever does not answer by then counts as unreachable: the operator is waiting.
const PATIENCE: Duration = Duration::from_secs(4);
/// As many peers are looked at one by one.
pub(crate) const PEERS: usize = 256;

/// Where it is asked
#[derive(Debug, Args)]
pub(crate) struct Knowing {
    /// A network config to judge this node by, where no flanneld runs that says which
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon's socket, beside its subnet file
    #[arg(long, default_value = flannel_state::SOCKET)]
    pub(crate) socket: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) struct Surroundings {
    pub(crate) networks: Vec<Network>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) engine: Engine<WantedBy>,
    /// What the daemon that runs here says.
    pub(crate) state: Option<DaemonState>,
    pub(crate) peer_states: Vec<PeerState>,
    /// A flanneld runs here, of whatever make.
    pub(crate) is_running: bool,
    /// It listens, and does not answer.
    pub(crate) hangs: bool,
    /// What an operator types, by the daemon that runs here.
    pub(crate) commands: OperatorCommands,
    /// Where daemons tell their state over the network: as the one that runs here, else where it is usual.
    pub(crate) probe_port: u16,
}

/// A network that this node is a part of.
pub(crate) struct Network {
    pub(crate) name: String,
    pub(crate) stack: Stack,
    /// Empty as long as no config is known.
    pub(crate) ranges: Vec<IpNet>,
    pub(crate) backend: String,
    /// iptables or nftables, where the config is known.
    pub(crate) nftables: Option<bool>,
    pub(crate) tunnel: Tunnel,
    /// Why there is none is a finding of its own.
    pub(crate) underlay: Option<Underlay>,
    /// Why none was chosen.
    pub(crate) no_underlay: Option<String>,
    /// What pods are to have.
    pub(crate) mtu: Option<u32>,
    /// Flannel's own.
    pub(crate) devices: Vec<String>,
    /// What lies in, or around, its ranges and is not flannel's.
    pub(crate) connected: Vec<Connected>,
    /// This node's own subnet.
    pub(crate) own: Vec<IpNet>,
    /// Its MACs in the tunnel, of each family, as others are told.
    pub(crate) own_macs: Vec<String>,
    /// The hash of its machine id, as others are told; without a lease, as they would be.
    pub(crate) own_machine: Option<NonZeroU64>,
    pub(crate) peers: Vec<Peer>,
}

/// A network as far as it is known by its config.
struct Known {
    name: String,
    judged: Judged,
    leases: Vec<Lease>,
}

impl Knowing {
    /// As the daemon that runs here knows it.
    pub(crate) fn of_daemon(socket: &Path) -> Self {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            knowing: Knowing,
        }
        let none: [&str; 0] = [];
        let mut knowing = Flags::parse_from(none).knowing;
        knowing.socket = socket.to_owned();
        knowing
    }
}

impl Surroundings {
    /// With what is wrong with finding it out.
    pub(crate) fn gather(args: &Knowing) -> anyhow::Result<(Self, Vec<Finding>)> {
        let mut findings = Vec::new();
        let process = DaemonProcess::find()?;
        let asked = block_on(async {
            let asked = client::read::<DaemonState>(&args.socket, "/v1/state");
            Ok(tokio::time::timeout(PATIENCE, asked).await)
        })?;
        let hangs = asked.is_err();
        let state = asked.ok().and_then(Result::ok);
        let mut peer_states = Vec::new();
        if state.is_some() {
            let _ = block_on(async {
                let asked = client::lines(&args.socket, "/v1/peers", |peer: PeerState| {
                    peer_states.push(peer);
                    Ok(())
                });
                Ok(tokio::time::timeout(PATIENCE, asked).await)
            });
        }
        // It opens sockets, and writes nothing before it is told what is wanted.
        let engine = Engine::<WantedBy>::start(fastrand::u64(..)).context("ask the kernel")?;
        let facts = engine.facts().borrow().clone();
        let mut around = Self {
            networks: Vec::new(),
            facts,
            engine,
            state,
            peer_states,
            is_running: process.is_some(),
            hangs,
            commands: daemon_process::operator_commands(),
            probe_port: PROBE_PORT,
        };
        let mut selection = Selection::default();
        let mut known = Vec::new();
        match &process {
            Some(process) => match process.options() {
                Ok(options) => {
                    for joined in &options.networks {
                        let asked = match (&joined.store, &options.serve) {
                            (StoreOptions::Own, Some(serve)) => ask_own_server(serve, &joined.name),
                            (store, _) => around.ask(process, store, joined.name.as_str()),
                        };
                        known.extend(asked.unwrap_or_else(|finding| {
                            findings.push(finding);
                            None
                        }));
                    }
                    around.probe_port = options.probe.map_or(PROBE_PORT, |probe| probe.port);
                    selection = options.underlay;
                }
                Err(error) => findings.push(Finding::broken(
                    "flags",
                    format!("{} cannot start with its flags: {error}", process.describe()),
                    "it ends as soon as it is started again",
                    "mend the flag, see docs/flags.md",
                )),
            },
            None => known.extend(args.named().unwrap_or_else(|finding| {
                findings.push(finding);
                None
            })),
        }
        for known in known {
            let network = around.network(known, &selection);
            around.networks.push(network);
        }
        around.add_by_its_word();
        if around.networks.is_empty() {
            findings.push(Finding::note(
                "config",
                "no network config is known, so this node is judged as for vxlan and IPv4",
                "flannelctl check --config FILE, or the flags of the store, say which",
            ));
            let assumed = around.assumed(&selection);
            around.networks.push(assumed);
        }
        Ok((around, findings))
    }

    fn ask(
        &self,
        process: &DaemonProcess,
        store: &StoreOptions,
        name: &str,
    ) -> Result<Option<Known>, Finding> {
        let asked = block_on(async {
            let asked = tokio::time::timeout(PATIENCE, process.ask(store)).await;
            asked.unwrap_or_else(|_| anyhow::bail!("it does not answer within {PATIENCE:?}"))
        });
        let (config, leases) = asked.map_err(|error| {
            let seen = self.state.as_ref().and_then(|state| {
                state.networks.iter().find(|one| one.name == name)?.store.clone()
            });
            let store = seen.map_or("the store".to_owned(), |store| store.name);
            Finding::broken(
                "store",
                format!("{store} cannot be asked: {error:#}"),
                "no node hears of others that come, go or change; traffic that flows goes on until leases end",
                "look whether it runs and whether a firewall is between, from this node: the flags of flanneld say where it is",
            )
        })?;
        judged(&config, daemon_process::subnets(store), name, leases).map(Some)
    }

    fn network(&self, known: Known, selection: &Selection) -> Network {
        let Known { name, judged: Judged { config, backend, .. }, leases } = known;
        let stack = Stack::of(&config);
        let underlay = self.select(selection, &backend.underlays(&config), stack);
        let mut network = Network {
            name,
            stack,
            ranges: ranges(&config),
            backend: backend.kind().to_owned(),
            nftables: Some(config.nftables),
            tunnel: Tunnel::of(&config),
            underlay: None,
            no_underlay: None,
            mtu: None,
            devices: Vec::new(),
            connected: Vec::new(),
            own: Vec::new(),
            own_macs: Vec::new(),
            own_machine: Machine::read(&mut fastrand::Rng::new()).hash,
            peers: Vec::new(),
        };
        let underlay = match underlay {
            Ok(underlay) => underlay,
            Err(error) => {
                network.no_underlay = Some(error);
                network.take_leases(&leases);
                return network;
            }
        };
        let mut node = Node {
            network: config,
            underlay: underlay.clone(),
            kernel: self.facts.kernel,
            paths: Default::default(),
            connected: Vec::new(),
            answers: Answers::default(),
        };
        let devices = backend.devices(&node);
        node.connected = Connected::of(&self.facts, &network.ranges, &devices);
        network.connected = node.connected.clone();
        network.devices = devices.iter().map(ToString::to_string).collect();
        network.mtu = Some(backend.mtu(&node));
        network.no_underlay = backend.check(&node).err().map(|error| error.to_string());
        network.underlay = Some(underlay);
        let own = self.own(&network.name);
        network.own = own;
        network.take_leases(&leases);
        network
    }

    /// As the daemon chooses it.
    fn select(
        &self,
        selection: &Selection,
        stacks: &[Stack],
        uses: Stack,
    ) -> Result<Underlay, String> {
        let towards = selection.can_reach.map(|address| vec![address]).unwrap_or_default();
        let path = block_on(async { Ok(self.engine.lookup(towards).await?) })
            .map_err(|error| error.to_string())?
            .into_iter()
            .next()
            .flatten();
        let select = |stack| iface::select(selection, stack, &self.facts, &|_| path.clone());
        iface::select_one_of(stacks, uses, select).map_err(|error| error.to_string())
    }

    /// Nodes of which the daemon that runs here says that something is wrong.
    pub(crate) fn unreached_by_daemon(&self) -> impl Iterator<Item = IpAddr> {
        let networks = self.state.iter().flat_map(|state| &state.networks);
        let probing = networks.filter_map(|network| network.probing.as_ref());
        let probed =
            probing.flat_map(|probing| probing.findings.iter().filter_map(|found| found.node));
        let bad = [PeerCondition::Incomplete, PeerCondition::Unusable];
        let unprogrammed =
            self.peer_states.iter().filter(move |peer| bad.contains(&peer.condition));
        probed.chain(unprogrammed.flat_map(|peer| {
            let v4 = peer.public_ip.map(IpAddr::from);
            v4.into_iter().chain(peer.public_ipv6.map(IpAddr::from))
        }))
    }

    /// This node's subnets, as the daemon says.
    fn own(&self, name: &str) -> Vec<IpNet> {
        let network = self
            .state
            .as_ref()
            .and_then(|state| state.networks.iter().find(|network| network.name == name));
        let lease = network.and_then(|network| network.lease.as_ref());
        let subnets = lease.map(|lease| [&lease.subnet, &lease.ipv6_subnet]);
        subnets.into_iter().flatten().flatten().filter_map(|net| net.parse().ok()).collect()
    }

    /// Networks of which the store has said nothing, as the daemon has them.
    fn add_by_its_word(&mut self) {
        let Some(state) = &self.state else { return };
        let mut added = Vec::new();
        for said in &state.networks {
            if self.networks.iter().any(|known| known.name == said.name) || said.networks.is_empty()
            {
                continue;
            }
            let ranges: Vec<IpNet> =
                said.networks.iter().filter_map(|net| net.parse().ok()).collect();
            let has = |v4: bool| ranges.iter().any(|net| net.addr().is_ipv4() == v4);
            let backend = said.backend.clone().unwrap_or_default();
            let underlay = said.underlay.as_ref().and_then(|said| {
                let first = |v4: bool| said.addresses.iter().find(|ip| ip.is_ipv4() == v4).copied();
                Some(Underlay {
                    link: flannel_kernel::IfName::new(&said.interface).ok()?,
                    mtu: said.mtu,
                    v4: first(true).and_then(v4),
                    v6: first(false).and_then(v6),
                    public_v4: said.public_ip,
                    public_v6: said.public_ipv6,
                    why: said.why.clone(),
                })
            });
            let devices: Vec<flannel_kernel::IfName> = self
                .facts
                .interfaces
                .iter()
                .map(|interface| interface.name)
                .filter(|name| name.as_str().starts_with("flannel"))
                .collect();
            let peers = self.peer_states.iter().filter(|peer| peer.network == said.name);
            added.push(Network {
                name: said.name.clone(),
                stack: Stack { v4: has(true), v6: has(false) },
                connected: Connected::of(&self.facts, &ranges, &devices),
                tunnel: Tunnel::usual(&backend),
                backend,
                nftables: None,
                underlay,
                no_underlay: None,
                mtu: said.mtu,
                devices: devices.iter().map(ToString::to_string).collect(),
                own: self.own(&said.name),
                own_macs: Vec::new(),
                own_machine: None,
                ranges,
                peers: peers.map(peer_of).collect(),
            });
        }
        self.networks.extend(added);
    }

    fn assumed(&self, selection: &Selection) -> Network {
        let stack = Stack::V4;
        let underlay = self.select(selection, &[stack], stack);
        Network {
            name: "_".to_owned(),
            stack,
            ranges: Vec::new(),
            backend: "vxlan".to_owned(),
            nftables: None,
            tunnel: Tunnel::usual("vxlan"),
            no_underlay: underlay.as_ref().err().cloned(),
            underlay: underlay.ok(),
            mtu: None,
            devices: vec!["flannel.1".to_owned()],
            connected: Vec::new(),
            own: Vec::new(),
            own_macs: Vec::new(),
            own_machine: None,
            peers: Vec::new(),
        }
    }
}

impl Knowing {
    /// The store of a network, for an operator: the one that is named, else the one that the flanneld here uses.
    pub(crate) fn operators_store(&self, network: &str) -> anyhow::Result<Box<dyn Admin>> {
        if self.store.is_named() {
            return self.store.open();
        }
        self.store.open_network(network.parse()?)
    }

    /// The API server: the one that is named, else the one that the flanneld here uses, if it uses one.
    pub(crate) fn kubernetes_api(&self) -> anyhow::Result<Option<Api>> {
        if let Some(named) = self.store.named_kubernetes()? {
            return Ok(Some(named));
        }
        let Some(process) = DaemonProcess::find()? else { return Ok(None) };
        process.kubernetes_api(&process.options()?)
    }

    /// The network configs, as they were written. There may be secrets in them.
    pub(crate) fn configs(&self) -> Vec<serde_json::Value> {
        let process = DaemonProcess::find().ok().flatten();
        let stores = process.as_ref().and_then(|process| Some((process, process.options().ok()?)));
        let mut texts = Vec::new();
        for (process, joined) in stores
            .iter()
            .flat_map(|(process, options)| options.networks.iter().map(move |it| (process, it)))
        {
            let asked = block_on(async {
                Ok(tokio::time::timeout(PATIENCE, process.ask(&joined.store)).await??.0)
            });
            texts.extend(asked.ok());
        }
        if process.is_none() && self.store.is_named() {
            let asked = block_on(async {
                let store = self.store.open()?;
                Ok(tokio::time::timeout(PATIENCE, store.config_as_written()).await??)
            });
            texts.extend(asked.ok().flatten());
        }
        texts.extend(self.config.as_ref().and_then(|file| std::fs::read_to_string(file).ok()));
        texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect()
    }

    /// By a file, or by a store that the operator names.
    fn named(&self) -> Result<Option<Known>, Finding> {
        if let Some(file) = &self.config {
            let text = std::fs::read_to_string(file).map_err(|error| {
                let what = format!("{} cannot be read: {error}", file.display());
                Finding::broken(
                    "config",
                    what,
                    "nothing is known of the network",
                    "name another file",
                )
            })?;
            let origin = self.store.subnets().unwrap_or(SubnetOrigin::Pool);
            return judged(&text, origin, "_", Vec::new()).map(Some);
        }
        if !self.store.is_named() {
            return Ok(None);
        }
        let asked = self.store.open().and_then(ask_admin);
        let why = "a node that joins waits for it";
        let fix = "look whether it runs and whether a firewall is between, and at the flags";
        let (config, leases, origin) = asked.map_err(|error| {
            Finding::broken("store", format!("the store cannot be asked: {error:#}"), why, fix)
        })?;
        let config = config.ok_or_else(|| {
            let what = "there is no network config in the store";
            Finding::broken("config", what, "nodes wait for it", "flannelctl config set FILE")
        })?;
        judged(&config, origin, "_", leases).map(Some)
    }
}

impl Network {
    /// For a walk over this node.
    pub(crate) fn node(&self) -> NodeInNetwork {
        NodeInNetwork {
            backend: self.backend.clone(),
            tunnel: self.tunnel,
            underlay: self.underlay.clone(),
            mtu: self.mtu,
            devices: self.devices.clone(),
            own: self.own.clone(),
        }
    }

    /// By which packets of a family go to other nodes, where that is a device of flannel's.
    pub(crate) fn tunnel_device(&self, v4: bool) -> Option<&str> {
        flannel_trace::tunnel_device(&self.devices, v4)
    }

    /// The addresses by which others reach this node.
    pub(crate) fn public(&self) -> Vec<IpAddr> {
        let public = self.underlay.iter().flat_map(|underlay| {
            [underlay.public_v4.map(IpAddr::from), underlay.public_v6.map(IpAddr::from)]
        });
        public.flatten().collect()
    }

    /// Whether more than one lease has this address: what is sent there comes to one node, whichever it is for.
    pub(crate) fn is_shared(&self, address: IpAddr) -> bool {
        let peers = self.peers.iter().filter(|peer| peer.public.contains(&address)).count();
        peers + usize::from(self.public().contains(&address)) > 1
    }

    /// Of the store. Where no daemon says which lease is this node's own, its addresses do.
    fn take_leases(&mut self, leases: &[Lease]) {
        let public = self.public();
        for lease in leases {
            let peer = Peer::of_lease(lease);
            let mine = match self.own.is_empty() {
                true => peer.public.iter().any(|ip| public.contains(ip)),
                false => peer.subnets.iter().any(|net| self.own.contains(net)),
            };
            if !mine {
                self.peers.push(peer);
                continue;
            }
            self.own_macs = peer.macs;
            self.own_machine = peer.machine;
            self.own = peer.subnets;
        }
    }
}

/// As a daemon sees it.
fn peer_of(state: &PeerState) -> Peer {
    let subnets = [&state.subnet, &state.ipv6_subnet].into_iter().flatten();
    let public = state.public_ip.map(IpAddr::from).into_iter();
    Peer {
        subnets: subnets.filter_map(|net| net.parse().ok()).collect(),
        public: public.chain(state.public_ipv6.map(IpAddr::from)).collect(),
        backend: state.backend.clone(),
        ..Peer::default()
    }
}

/// Config, leases, and whence nodes have their subnets.
fn ask_admin(store: Box<dyn Admin>) -> anyhow::Result<(Option<String>, Vec<Lease>, SubnetOrigin)> {
    block_on(async {
        let asked = async {
            let config = store.config_as_written().await?;
            let leases = store.snapshot().await?.leases;
            let leases = leases.into_iter().map(|stored| stored.lease).collect();
            Ok::<_, anyhow::Error>((config, leases, store.subnets()))
        };
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        asked.unwrap_or_else(|_| anyhow::bail!("it does not answer within {PATIENCE:?}"))
    })
}

/// The lease server in the daemon itself. Where it answers operators alone, the daemon's word must do.
fn ask_own_server(serve: &Serve, name: &NetworkName) -> Result<Option<Known>, Finding> {
    match daemon_process::own_server(serve, name.clone()).and_then(ask_admin) {
        Ok((Some(config), leases, origin)) => {
            judged(&config, origin, name.as_str(), leases).map(Some)
        }
        Ok((None, ..)) | Err(_) => Ok(None),
    }
}

fn judged(
    text: &str,
    origin: SubnetOrigin,
    name: &str,
    leases: Vec<Lease>,
) -> Result<Known, Finding> {
    let judged = flannel_backend::judge(text, origin).map_err(|error| {
        Finding::broken(
            "config",
            format!("no node can use the network config: {error}"),
            "a node that starts waits for one that it can use",
            "mend it in a file, then flannelctl config set FILE",
        )
    })?;
    Ok(Known { name: name.to_owned(), judged, leases })
}

fn ranges(config: &NetworkConfig) -> Vec<IpNet> {
    let v4 = config.v4.map(|source| IpNet::V4(source.network()));
    v4.into_iter().chain(config.v6.map(|source| IpNet::V6(source.network()))).collect()
}

fn v4(ip: IpAddr) -> Option<std::net::Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

fn v6(ip: IpAddr) -> Option<std::net::Ipv6Addr> {
    match ip {
        IpAddr::V6(ip) => Some(ip),
        IpAddr::V4(_) => None,
    }
}

#[cfg(test)]
impl Network {
    /// One of vxlan and IPv4, on eth0.
    pub(crate) fn sample() -> Self {
        let underlay = Underlay {
            link: flannel_kernel::IfName::new("eth0").unwrap(),
            mtu: 1500,
            v4: Some([192, 0, 2, 1].into()),
            v6: None,
            public_v4: Some([192, 0, 2, 1].into()),
            public_v6: None,
            why: String::new(),
        };
        Self {
            name: "_".to_owned(),
            stack: Stack { v4: true, v6: false },
            ranges: vec!["10.244.0.0/16".parse().unwrap()],
            backend: "vxlan".to_owned(),
            nftables: Some(false),
            tunnel: Tunnel::usual("vxlan"),
            underlay: Some(underlay),
            no_underlay: None,
            mtu: Some(1450),
            devices: vec!["flannel.1".to_owned()],
            connected: Vec::new(),
            own: vec!["10.244.1.0/24".parse().unwrap()],
            own_macs: Vec::new(),
            own_machine: None,
            peers: Vec::new(),
        }
    }
}
