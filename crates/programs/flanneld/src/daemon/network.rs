//! The network as this node takes part in it: config, backend, and the underlay chosen from facts.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use flannel_backend::{
    Answers, Backend, Connected, Encapsulation, LanOverlap, LinkIdentity, Node, NodeMemory,
    OverlapKind, Stack, Underlay, Wishes,
};
use flannel_common::{Family, IfName, Throttle};
use flannel_entries::facts::{Facts, Path};
use flannel_entries::kernel::{Blackhole, Entry};
use flannel_lease::{
    Lease, LeaseAttrs, NetworkConfig, Subnet, UnusableAddress, check_public_address,
};
use flannel_node::iface;
use flannel_node::options::Options;
use flannel_state::{Finding, Layer};
use ipnet::IpNet;

use super::Setup;
use super::now::Now;

/// Above any route that leads somewhere: the pods' own bridge always wins.
const BLACKHOLE_METRIC: u32 = 65535;
const REMINDER: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct JoinedNetwork {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) node: Node,
    /// Subnets of pods may come from the nodes' own LAN.
    lan: Option<LanOverlap>,
    routing_version: u64,
    /// Why the interface cannot be used as it is.
    pub(super) lost: Option<LostInterface>,
    reminder: Throttle,
}

#[derive(Clone, Debug, Default)]
pub(super) struct HostFacts {
    pub(super) facts: Arc<Facts>,
    /// Path to the address by which the interface is chosen (`--iface-can-reach`).
    pub(super) path: Option<Path>,
}

/// What becomes of a network whose subnets may come from the nodes' own LAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnLan {
    /// It is refused: nothing depends on it yet.
    Refuse,
    /// It is refused if all of it lies in the LAN. A wider one may have worked for years, as with the Go flannel.
    RefuseInside,
    /// It goes on working as far as it did, with a warning.
    Warn,
}

impl OnLan {
    fn refuses(self, lan: &LanOverlap) -> bool {
        match self {
            Self::Refuse => true,
            Self::RefuseInside => lan.is_inside_lan(),
            Self::Warn => false,
        }
    }
}

/// An interface that is not there as it was, while what was set up for it stays.
#[derive(Clone)]
pub(super) struct LostInterface {
    pub(super) why: String,
    pub(super) since: SystemTime,
}

/// Names the backends that could do with the interface that there is, if this one cannot.
fn suggest_another(
    error: iface::SelectError,
    backend: &dyn Backend,
    config: &NetworkConfig,
    select: impl Fn(Stack) -> Result<Underlay, iface::SelectError>,
) -> anyhow::Error {
    let tried = backend.underlays(config);
    let other = [Stack::V4, Stack::V6]
        .into_iter()
        .find(|other| !tried.contains(other) && select(*other).is_ok());
    let Some(other) = other else { return error.into() };
    let (kind, has) = (backend.kind(), if other.v4 { Family::V4 } else { Family::V6 });
    anyhow!("{error}; or use vxlan or wireguard, which need only {has}, while {kind} needs more")
}

impl JoinedNetwork {
    /// Claims what the network needs of this node, in place of what it had claimed.
    pub(super) fn new(
        setup: &Setup,
        config: NetworkConfig,
        answers: Answers,
        host: &HostFacts,
        on_lan: OnLan,
    ) -> anyhow::Result<Self> {
        let network = Self::unclaimed(setup, config, answers, host, on_lan)?;
        setup.claims.take(&setup.report.network, &network.networks(), &network.devices())?;
        Ok(network)
    }

    /// The network as it would be, whoever else wants its addresses and devices.
    pub(super) fn unclaimed(
        setup: &Setup,
        config: NetworkConfig,
        answers: Answers,
        host: &HostFacts,
        on_lan: OnLan,
    ) -> anyhow::Result<Self> {
        let backend: Arc<dyn Backend> = flannel_backend::create(&config.backend)?.into();
        let HostFacts { facts, path } = host;
        let selection = &setup.options.underlay;
        let select = |stack| iface::select(selection, stack, facts, &|_| path.clone());
        let underlay =
            iface::select_one_of(&backend.underlays(&config), Stack::of(&config), select)
                .map_err(|error| suggest_another(error, &*backend, &config, select))?;
        let (kernel, paths, connected) = (facts.kernel, Default::default(), Vec::new());
        let mut node = Node { network: config, underlay, kernel, paths, connected, answers };
        let networks: Vec<IpNet> = node.network.networks().collect();
        node.connected = Connected::of(facts, &networks, &backend.devices(&node));
        backend.check(&node)?;
        let lan = flannel_backend::lan_overlap(&node);
        if let Some(lan) = lan.as_ref().filter(|lan| on_lan.refuses(lan)) {
            return Err(lan.clone().into());
        }
        let (routing_version, reminder) = (facts.routing_version, Throttle::new(REMINDER));
        Ok(Self { backend, node, lan, routing_version, lost: None, reminder })
    }

    /// Refuses the fall to an address of the link alone: a card that goes down and up has that one first.
    pub(super) fn check_no_worse_than(&self, before: &Underlay) -> anyhow::Result<()> {
        let now = self.underlay();
        let v4 = |underlay: &Underlay| underlay.v4.is_some_and(|ip| ip.is_link_local());
        let v6 = |underlay: &Underlay| underlay.v6.is_some_and(|ip| ip.is_unicast_link_local());
        if v4(now) && !v4(before) || v6(now) && !v6(before) {
            bail!("{} has only link-local addresses left in a family that is in use", now.link);
        }
        let uses = Stack::of(&self.node.network);
        let has =
            |it: &Underlay, family| it.addresses().into_iter().any(|ip| Family::of(ip) == family);
        let gone = |it: &Family| uses.has(*it) && has(before, *it) && !has(now, *it);
        match Family::BOTH.into_iter().find(gone) {
            Some(family) => Err(iface::SelectError::no_usable_address(now.link, family).into()),
            None => Ok(()),
        }
    }

    pub(super) fn config(&self) -> &NetworkConfig {
        &self.node.network
    }

    pub(super) fn underlay(&self) -> &Underlay {
        &self.node.underlay
    }

    pub(super) fn mtu(&self) -> u32 {
        self.backend.mtu(&self.node)
    }

    /// Claims for this network what it uses, in place of what was claimed for another config.
    pub(super) fn retake(&self, setup: &Setup) {
        let (name, devices) = (&setup.report.network, self.devices());
        if let Err(conflict) = setup.claims.take(name, &self.networks(), &devices) {
            tracing::warn!("{conflict}");
        }
    }

    pub(super) fn networks(&self) -> Vec<IpNet> {
        self.node.network.networks().collect()
    }

    pub(super) fn encapsulation(&self) -> Encapsulation {
        self.backend.encapsulation(Stack::of(&self.node.network))
    }

    pub(super) fn devices(&self) -> Vec<IfName> {
        self.backend.devices(&self.node)
    }

    /// Takes over the networks that `newer` is connected to. Returns those that are new or gone.
    pub(super) fn reconnect(&mut self, newer: Self) -> Vec<Connected> {
        let before = std::mem::replace(&mut self.node.connected, newer.node.connected);
        let now = &self.node.connected;
        let gone = before.iter().filter(|connected| !now.contains(connected));
        let new = now.iter().filter(|connected| !before.contains(connected));
        gone.chain(new).cloned().collect()
    }

    /// Where a peer that is used meets a network that this node is connected to, for people.
    pub(super) fn overlap(&self, peer: &Lease) -> Option<(OverlapKind, Finding)> {
        let (connected, theirs, overlap) =
            flannel_backend::connected_overlaps(&self.node, peer).next()?;
        let subnet = peer.subnet;
        let finding = match overlap {
            OverlapKind::Around => Finding::broken(
                Layer::Lease,
                format!("{connected}, which this node is directly connected to"),
                format!(
                    "it lies inside the subnet {theirs} of the lease {subnet}: pods of that node with such addresses are \
                     unreachable from here"
                ),
                format!(
                    "remove that address of {}, or give the lease back if its node is gone",
                    connected.link
                ),
            ),
            OverlapKind::Inside | OverlapKind::Displaces => Finding::warning(
                Layer::Lease,
                format!("the subnet {theirs} of the lease {subnet}"),
                format!(
                    "it lies inside {connected}, which this node is directly connected to: hosts there with such \
                     addresses are unreachable from here"
                ),
                format!("choose a Network that is not part of {}", connected.net()),
            ),
        };
        Some((overlap, finding))
    }

    pub(super) fn say_underlay(&self) {
        let underlay = self.underlay();
        for (own, public) in [
            (underlay.v4.map(IpAddr::V4), underlay.public_v4.map(IpAddr::V4)),
            (underlay.v6.map(IpAddr::V6), underlay.public_v6.map(IpAddr::V6)),
        ] {
            let Some(public) = public else { continue };
            if let Some(own) = own {
                tracing::info!("Using interface with name {} and address {own}", underlay.link);
            }
            if own == Some(public) {
                tracing::info!("Defaulting external address to interface address ({public})");
            } else {
                tracing::info!("Using {public} as external address");
            }
        }
        let Underlay { link, why, mtu, .. } = underlay;
        tracing::info!(event = "interface-chosen", "Interface {link}: {why}; MTU {mtu}");
    }

    /// Keeps what is programmed for an interface that is not there as it was, until there is a better answer.
    pub(super) fn lost(&mut self, error: &anyhow::Error, now: &Now) {
        let why = format!("{error}; keeping what was set up for {}", self.underlay().link);
        let is_news = self.lost.as_ref().is_none_or(|lost| lost.why != why);
        if is_news || self.reminder.pass(now.instant).is_some() {
            tracing::error!("{why}");
        }
        let since = self.lost.take().filter(|_| !is_news);
        let since = since.map_or(now.time, |lost| lost.since);
        self.lost = Some(LostInterface { why, since });
    }

    pub(super) fn found(&mut self) {
        if self.lost.take().is_some() {
            let link = self.underlay().link;
            tracing::info!(event = "interface-found", "{link} is usable again");
        }
    }

    /// How this node is announced, given how it was.
    pub(super) fn attrs(
        &self,
        announced: Option<&LeaseAttrs>,
        facts: &Facts,
        setup: &Setup,
    ) -> LeaseAttrs {
        self.attrs_without(&[], announced, facts, setup)
    }

    /// What a node that announces this is known by at the link, whatever its backend: this node may change to that one.
    pub(super) fn link_identities(&self, announced: &LeaseAttrs) -> Vec<LinkIdentity> {
        if announced.backend_type.eq_ignore_ascii_case(self.backend.lease_type()) {
            self.backend.link_identities(announced)
        } else {
            flannel_backend::link_identities(announced)
        }
    }

    /// The same, and nothing of what others were known by first.
    pub(super) fn attrs_without(
        &self,
        taken: &[LinkIdentity],
        announced: Option<&LeaseAttrs>,
        facts: &Facts,
        setup: &Setup,
    ) -> LeaseAttrs {
        let memory = NodeMemory { announced, facts, taken };
        let attrs = self.backend.announce(&self.node, &memory);
        // Where nobody knows what packets travel in, nobody probes.
        let is_probed = self.encapsulation() != Encapsulation::Unknown;
        LeaseAttrs {
            probe_port: setup.options.peer_probe_port.filter(|_| is_probed),
            machine: setup.machine_hash,
            ..attrs
        }
    }

    pub(super) fn base(&self, own: &Lease, options: &Options) -> Wishes {
        let mut wishes = self.backend.base(&self.node, own);
        if options.blackhole_route {
            let blackhole = |dst| Entry::Blackhole(Blackhole { dst, metric: BLACKHOLE_METRIC });
            wishes.kernel.extend(own.subnet.nets().map(blackhole));
        }
        wishes
    }

    pub(super) fn peer(
        &self,
        own: &Lease,
        peer: &Lease,
    ) -> Result<Wishes, flannel_backend::PeerProblem> {
        flannel_backend::peer_wishes(&*self.backend, &self.node, own, peer)
    }

    pub(super) fn addresses_to_look_up<'a>(
        &self,
        peers: impl Iterator<Item = (&'a Subnet, &'a LeaseAttrs)>,
    ) -> Vec<IpAddr> {
        if !self.backend.wants_paths() {
            return Vec::new();
        }
        peers.flat_map(|(_, attrs)| attrs.public_addresses()).collect()
    }

    pub(super) fn set_paths(&mut self, paths: Vec<(IpAddr, Option<Path>)>) {
        for (address, path) in paths {
            match path {
                Some(path) => self.node.paths.insert(address, path),
                None => self.node.paths.remove(&address),
            };
        }
    }

    /// Whether routes of others have changed since the paths were looked up.
    pub(super) fn wants_paths_again(&mut self, facts: &Facts) -> bool {
        let changed = self.routing_version != facts.routing_version;
        self.routing_version = facts.routing_version;
        changed && self.backend.wants_paths()
    }

    pub(super) fn remarks(&self) -> Vec<String> {
        let networks = self.networks();
        let underlay = self.underlay();
        let announced = [underlay.public_v4.map(IpAddr::V4), underlay.public_v6.map(IpAddr::V6)];
        let unusable = announced.into_iter().flatten().filter_map(|ip| {
            let why = check_public_address(ip, &networks).err();
            let why = why.filter(|why| match why {
                UnusableAddress::LinkLocal => false,
                // That is told of the whole LAN.
                UnusableAddress::InPodNetwork(_) => self.lan.is_none(),
                _ => true,
            })?;
            Some(format!(
                "This node announces the public address {ip}, which {why}: nodes with this flannel send nothing there; \
                 give it another one (--public-ip, --iface)"
            ))
        });
        let lan = self.lan.as_ref().map(ToString::to_string);
        self.backend.remarks(&self.node).into_iter().chain(lan).chain(unusable).collect()
    }
}
