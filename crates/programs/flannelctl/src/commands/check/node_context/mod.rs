//! Networks of this node with config, leases and underlay: by the flanneld that runs here, or as the operator says.

mod known_networks;
mod network;
mod network_source;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flannel_common::OperatorCommands;
use flannel_node::iface::Selection;
use flannel_state::{DaemonState, Finding, Layer, PeerCondition, PeerState};
use tokio::time::error::Elapsed;

pub(crate) use self::network::Network;
pub(crate) use self::network_source::NetworkSource;
use crate::commands::daemon::client::Daemon;
use crate::commands::daemon_process::{self, DaemonProcess};
use crate::commands::page::PROBE_PORT;
use crate::commands::store_args::block_on;
use crate::commands::this_host::ThisHost;

/// Whatever does not answer by then counts as unreachable: the operator is waiting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
pub(crate) const MAX_PEERS: usize = 256;

pub(crate) struct NodeContext {
    pub(crate) networks: Vec<Network>,
    pub(crate) host: ThisHost,
    pub(crate) state: Option<DaemonState>,
    pub(crate) peer_states: Vec<PeerState>,
    /// A flanneld runs here, of whatever make.
    pub(crate) is_running: bool,
    pub(crate) hangs: bool,
    pub(crate) commands: OperatorCommands,
    pub(crate) socket: PathBuf,
    /// Where daemons tell their state over the network: as the one that runs here, else where it is usual.
    pub(crate) probe_port: u16,
}

impl NodeContext {
    /// With what is wrong with finding it out.
    pub(crate) fn gather(args: &NetworkSource) -> anyhow::Result<(Self, Vec<Finding>)> {
        let mut findings = Vec::new();
        let process = DaemonProcess::find()?;
        let asked = read_state(&args.socket);
        let hangs = asked.is_err();
        let state = asked.ok().and_then(Result::ok);
        let peer_states = state.as_ref().and_then(|_| {
            let asked = Daemon::Here(&args.socket).list("/v1/peers");
            block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, asked).await? }).ok()
        });
        let mut context = Self {
            networks: Vec::new(),
            host: ThisHost::look()?,
            state,
            socket: args.socket.clone(),
            peer_states: peer_states.unwrap_or_default(),
            is_running: process.is_some(),
            hangs,
            commands: daemon_process::operator_commands(),
            probe_port: PROBE_PORT,
        };
        let mut selection = Selection::default();
        let described = process.as_ref().map(DaemonProcess::describe);
        // A file is for where no flanneld runs that says which config it is.
        let stores = match &args.config {
            Some(_) if process.is_none() => Ok(None),
            _ => args.stores(process),
        };
        match (stores, described) {
            (Ok(Some(stores)), described) => {
                if described.is_some() {
                    let probe = stores.options.probe.as_ref();
                    context.probe_port = probe.map_or(PROBE_PORT, |probe| probe.port);
                    selection = stores.options.underlay.clone();
                }
                for joined in &stores.options.networks {
                    findings.extend(context.add_stored(&stores, joined, &selection).err());
                }
            }
            (Ok(None), _) => findings.extend(context.add_of_file(args, &selection).err()),
            (Err(error), Some(described)) => findings.push(Finding::broken(
                Layer::Flags,
                format!("{described} cannot start with its flags: {error}"),
                "it ends as soon as it is started again",
                "correct the flag, see docs/flags.md",
            )),
            (Err(error), None) => return Err(error),
        }
        context.add_reported_by_daemon();
        if context.networks.is_empty() {
            let what = "no network config is known, so this node is judged as for vxlan and IPv4";
            let why = "flannelctl check --config FILE, or the flags of the store, say which";
            findings.push(Finding::note(Layer::Config, what, why));
            let assumed = context.assumed(&selection);
            context.networks.push(assumed);
        }
        Ok((context, findings))
    }

    pub(crate) fn unreached_by_daemon(&self) -> impl Iterator<Item = IpAddr> {
        let networks = self.state.iter().flat_map(|state| &state.networks);
        let probing = networks.filter_map(|network| network.probing.as_ref());
        let probed =
            probing.flat_map(|probing| probing.findings.iter().filter_map(|found| found.node));
        let bad = [PeerCondition::Incomplete, PeerCondition::Unusable];
        let unprogrammed =
            self.peer_states.iter().filter(move |peer| bad.contains(&peer.condition));
        probed.chain(unprogrammed.flat_map(PeerState::addresses))
    }

    /// Whether the daemon that runs here has joined this network, and so reports what it finds in it.
    pub(crate) fn reports(&self, network: &Network) -> bool {
        let mut networks = self.state.iter().flat_map(|state| &state.networks);
        networks.any(|it| it.name == network.name && it.lease.is_some())
    }

    pub(super) fn ask_daemon(&self) -> Option<DaemonState> {
        read_state(&self.socket).ok().and_then(Result::ok)
    }
}

/// Fails if the daemon listens and does not answer.
fn read_state(socket: &Path) -> Result<anyhow::Result<DaemonState>, Elapsed> {
    let asked = block_on(async {
        let asked = Daemon::Here(socket).read::<DaemonState>("/v1/state");
        Ok(tokio::time::timeout(ANSWER_TIMEOUT, asked).await)
    });
    asked.unwrap_or_else(|error| Ok(Err(error)))
}
