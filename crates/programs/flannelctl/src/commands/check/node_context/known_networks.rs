//! The networks of this node, found by the store, by what the daemon that runs here says, or assumed.

use std::net::IpAddr;

use flannel_backend::{Connected, Stack, Underlay};
use flannel_common::IfName;
use flannel_lease::{Lease, SubnetOrigin};
use flannel_node::iface::Selection;
use flannel_node::machine::read_machine_hash;
use flannel_node::options::{Joined, StoreOptions};
use flannel_state::{Finding, Layer, NetworkState, PeerState};
use flannel_trace::Peer;
use ipnet::IpNet;

use super::{ANSWER_TIMEOUT, Network, NetworkSource, NodeContext};
use crate::commands::store_args::block_on;
use crate::commands::stores::{StoredNetwork, Stores};

const ASSUMED_BACKEND: &str = "vxlan";
const UNNAMED: &str = "_";

impl NodeContext {
    pub(super) fn add_stored(
        &mut self,
        stores: &Stores,
        joined: &Joined,
        selection: &Selection,
    ) -> Result<(), Finding> {
        let asked = block_on(async {
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, stores.ask(joined)).await;
            asked.unwrap_or_else(|_| anyhow::bail!("it does not answer within {ANSWER_TIMEOUT:?}"))
        });
        let name = joined.name.as_str();
        let StoredNetwork { config, leases } = match asked {
            Ok(stored) => stored,
            // Where the lease server of the daemon itself answers operators alone, the daemon's word must do.
            Err(_) if matches!(joined.store, StoreOptions::Own) => return Ok(()),
            Err(error) => {
                let seen = self.reported(name).and_then(|network| network.store.as_ref());
                let store = seen.map_or("the store", |store| store.name.as_str());
                return Err(Finding::broken(
                    Layer::Store,
                    format!("{store} cannot be asked: {error:#}"),
                    "no node hears of others that come, go or change, and one that joins waits; traffic that flows goes on \
                     until leases end",
                    "look whether it runs and whether a firewall is between, from this node: the flags of flanneld say where it is",
                ));
            }
        };
        let config = config.ok_or_else(|| {
            let what = "there is no network config in the store";
            Finding::broken(Layer::Config, what, "nodes wait for it", "flannelctl config set FILE")
        })?;
        self.add_judged(&config, stores.subnets(), name, leases, selection)
    }

    pub(super) fn add_of_file(
        &mut self,
        args: &NetworkSource,
        selection: &Selection,
    ) -> Result<(), Finding> {
        let Some(file) = &args.config else { return Ok(()) };
        let text = std::fs::read_to_string(file).map_err(|error| {
            let what = format!("{} cannot be read: {error}", file.display());
            let why = "nothing is known of the network";
            Finding::broken(Layer::Config, what, why, "name another file")
        })?;
        let origin = args.store.stores().map_or(SubnetOrigin::Pool, |stores| stores.subnets());
        self.add_judged(&text, origin, UNNAMED, Vec::new(), selection)
    }

    fn add_judged(
        &mut self,
        config: &str,
        origin: SubnetOrigin,
        name: &str,
        leases: Vec<Lease>,
        selection: &Selection,
    ) -> Result<(), Finding> {
        let judged = flannel_backend::judge_config(config, origin).map_err(|error| {
            let what = format!("no node can use the network config: {error}");
            let why = "a node that starts waits for one that it can use";
            let fix = "correct it in a file, then flannelctl config set FILE";
            Finding::broken(Layer::Config, what, why, fix)
        })?;
        let (config, backend) = (&judged.config, &judged.backend);
        let stack = Stack::of(config);
        let mut network = Network {
            ranges: config.networks().collect(),
            nftables: Some(config.nftables),
            encapsulation: backend.encapsulation(stack),
            own_machine: read_machine_hash(),
            ..Network::unknown(name, stack, backend.kind())
        };
        match self.host.select(selection, &backend.underlays(config), stack) {
            Ok(underlay) => {
                let (node, devices) = self.host.node(&judged, underlay.clone());
                network.devices = devices.iter().map(ToString::to_string).collect();
                network.mtu = Some(backend.mtu(&node));
                network.no_underlay = backend.check(&node).err().map(|error| error.to_string());
                network.connected = node.connected;
                network.underlay = Some(underlay);
                network.own = self.own(name);
            }
            Err(error) => network.no_underlay = Some(error),
        }
        network.take_leases(leases);
        self.networks.push(network);
        Ok(())
    }

    fn reported(&self, name: &str) -> Option<&NetworkState> {
        self.state.as_ref()?.networks.iter().find(|network| network.name == name)
    }

    fn own(&self, name: &str) -> Vec<IpNet> {
        let lease = self.reported(name).and_then(|network| network.lease.as_ref());
        lease
            .into_iter()
            .flat_map(|lease| lease.subnets())
            .filter_map(|net| net.parse().ok())
            .collect()
    }

    pub(super) fn add_reported_by_daemon(&mut self) {
        let reported = self.state.iter().flat_map(|state| &state.networks);
        let is_new = |said: &&NetworkState| {
            !said.networks.is_empty() && !self.networks.iter().any(|it| it.name == said.name)
        };
        let added: Vec<Network> =
            reported.filter(is_new).map(|said| self.reported_network(said)).collect();
        self.networks.extend(added);
    }

    fn reported_network(&self, said: &NetworkState) -> Network {
        let ranges: Vec<IpNet> = said.networks.iter().filter_map(|net| net.parse().ok()).collect();
        let has = |v4: bool| ranges.iter().any(|net| net.addr().is_ipv4() == v4);
        let stack = Stack { v4: has(true), v6: has(false) };
        let underlay = said.underlay.as_ref().and_then(|said| {
            let (mut v4, mut v6) = (None, None);
            for ip in &said.addresses {
                match ip {
                    IpAddr::V4(ip) => v4 = v4.or(Some(*ip)),
                    IpAddr::V6(ip) => v6 = v6.or(Some(*ip)),
                }
            }
            let link = IfName::new(&said.interface).ok()?;
            let public_v4 = said.public_ip;
            let public_v6 = said.public_ipv6;
            let why = said.why.clone();
            Some(Underlay { link, mtu: said.mtu, v4, v6, public_v4, public_v6, why })
        });
        let devices = self.host.facts.interfaces.iter().map(|interface| interface.name);
        let devices: Vec<IfName> =
            devices.filter(|name| name.as_str().starts_with("flannel")).collect();
        let peers = self.peer_states.iter().filter(|peer| peer.network == said.name);
        Network {
            connected: Connected::of(&self.host.facts, &ranges, &devices),
            underlay,
            mtu: said.mtu,
            devices: devices.iter().map(ToString::to_string).collect(),
            own: self.own(&said.name),
            ranges,
            peers: peers.map(peer_of).collect(),
            ..Network::unknown(&said.name, stack, said.backend.as_deref().unwrap_or_default())
        }
    }

    pub(super) fn assumed(&self, selection: &Selection) -> Network {
        let stack = Stack::V4;
        let underlay = self.host.select(selection, &[stack], stack);
        Network {
            no_underlay: underlay.as_ref().err().cloned(),
            underlay: underlay.ok(),
            devices: vec!["flannel.1".to_owned()],
            ..Network::unknown(UNNAMED, stack, ASSUMED_BACKEND)
        }
    }
}

fn peer_of(state: &PeerState) -> Peer {
    Peer {
        subnets: state.subnets().filter_map(|net| net.parse().ok()).collect(),
        public: state.addresses().collect(),
        backend: state.backend.clone(),
        ..Peer::default()
    }
}
