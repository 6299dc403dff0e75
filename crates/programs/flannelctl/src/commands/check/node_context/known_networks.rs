//! The networks of this node, found by the store, by what the daemon that runs here says, or assumed.

use std::net::IpAddr;

use flannel_backend::{Answers, Connected, Encapsulation, Node, Stack, Underlay, UsableConfig};
use flannel_common::IfName;
use flannel_lease::NetworkConfig;
use flannel_node::iface::{self, Selection};
use flannel_node::machine::read_machine_hash;
use flannel_node::options::StoreOptions;
use flannel_state::{Finding, Layer, PeerState};
use flannel_trace::Peer;
use ipnet::IpNet;

use super::network_source::{JudgedNetwork, judged};
use super::{ANSWER_TIMEOUT, Network, NodeContext};
use crate::commands::daemon_process::{self, DaemonProcess};
use crate::commands::store_args::block_on;

/// What most networks use, where none is known.
const ASSUMED_BACKEND: &str = "vxlan";

impl NodeContext {
    /// What the store of a daemon says of its network.
    pub(super) fn ask(
        &self,
        process: &DaemonProcess,
        store: &StoreOptions,
        name: &str,
    ) -> Result<Option<JudgedNetwork>, Finding> {
        let asked = block_on(async {
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, process.ask(store)).await;
            asked.unwrap_or_else(|_| anyhow::bail!("it does not answer within {ANSWER_TIMEOUT:?}"))
        });
        let (config, leases) = asked.map_err(|error| {
            let seen = self.state.as_ref().and_then(|state| {
                state.networks.iter().find(|one| one.name == name)?.store.clone()
            });
            let store = seen.map_or("the store".to_owned(), |store| store.name);
            Finding::broken(
                Layer::Store,
                format!("{store} cannot be asked: {error:#}"),
                "no node hears of others that come, go or change; traffic that flows goes on until leases end",
                "look whether it runs and whether a firewall is between, from this node: the flags of flanneld say where it is",
            )
        })?;
        judged(&config, daemon_process::subnets(store), name, leases).map(Some)
    }

    pub(super) fn network(&self, known: JudgedNetwork, selection: &Selection) -> Network {
        let JudgedNetwork { name, judged: UsableConfig { config, backend, .. }, leases } = known;
        let stack = Stack::of(&config);
        let underlay = self.select(selection, &backend.underlays(&config), stack);
        let mut network = Network {
            name,
            stack,
            ranges: ranges(&config),
            backend: backend.kind().to_owned(),
            nftables: Some(config.nftables),
            encapsulation: backend.encapsulation(stack),
            underlay: None,
            no_underlay: None,
            mtu: None,
            devices: Vec::new(),
            connected: Vec::new(),
            own: Vec::new(),
            own_machine: read_machine_hash(),
            peers: Vec::new(),
            leases: Vec::new(),
        };
        let underlay = match underlay {
            Ok(underlay) => underlay,
            Err(error) => {
                network.no_underlay = Some(error);
                network.take_leases(leases);
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
        network.take_leases(leases);
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
    pub(super) fn add_reported_by_daemon(&mut self) {
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
            let stack = Stack { v4: has(true), v6: has(false) };
            let backend = said.backend.clone().unwrap_or_default();
            let underlay = said.underlay.as_ref().and_then(|said| {
                let first = |v4: bool| said.addresses.iter().find(|ip| ip.is_ipv4() == v4).copied();
                Some(Underlay {
                    link: IfName::new(&said.interface).ok()?,
                    mtu: said.mtu,
                    v4: first(true).and_then(v4),
                    v6: first(false).and_then(v6),
                    public_v4: said.public_ip,
                    public_v6: said.public_ipv6,
                    why: said.why.clone(),
                })
            });
            let devices: Vec<IfName> = self
                .facts
                .interfaces
                .iter()
                .map(|interface| interface.name)
                .filter(|name| name.as_str().starts_with("flannel"))
                .collect();
            let peers = self.peer_states.iter().filter(|peer| peer.network == said.name);
            added.push(Network {
                name: said.name.clone(),
                stack,
                connected: Connected::of(&self.facts, &ranges, &devices),
                encapsulation: Encapsulation::usual(&backend, stack),
                backend,
                nftables: None,
                underlay,
                no_underlay: None,
                mtu: said.mtu,
                devices: devices.iter().map(ToString::to_string).collect(),
                own: self.own(&said.name),
                own_machine: None,
                ranges,
                peers: peers.map(peer_of).collect(),
                leases: Vec::new(),
            });
        }
        self.networks.extend(added);
    }

    pub(super) fn assumed(&self, selection: &Selection) -> Network {
        let stack = Stack::V4;
        let underlay = self.select(selection, &[stack], stack);
        Network {
            name: "_".to_owned(),
            stack,
            ranges: Vec::new(),
            backend: ASSUMED_BACKEND.to_owned(),
            nftables: None,
            encapsulation: Encapsulation::usual(ASSUMED_BACKEND, stack),
            no_underlay: underlay.as_ref().err().cloned(),
            underlay: underlay.ok(),
            mtu: None,
            devices: vec!["flannel.1".to_owned()],
            connected: Vec::new(),
            own: Vec::new(),
            own_machine: None,
            peers: Vec::new(),
            leases: Vec::new(),
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

fn ranges(config: &NetworkConfig) -> Vec<IpNet> {
    let v4 = config.v4.map(|source| IpNet::V4(source.network()));
    v4.into_iter().chain(config.v6.map(|source| IpNet::V6(source.network()))).collect()
}
