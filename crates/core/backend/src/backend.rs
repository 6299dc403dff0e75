//! The [`Backend`] trait.
//!
//! A backend turns leases into wishes and does nothing else: no I/O, no state, no clock. That it repairs itself,
//! removes what is stale, restarts without losing a packet and starts ten thousand peers in one batch follows from
//! the appliers that all backends share. A new backend is one file with an implementation of this trait, and its
//! module and a line in `BACKENDS` in `lib.rs`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use flannel_common::{Family, IfName, InvalidIfName};
use flannel_entries::facts::{Facts, KernelVersion, Path};
use flannel_entries::kernel::LegacyRoutes;
use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, Subnet, UnusableAddress};
use ipnet::IpNet;

use crate::{
    Answers, Connected, Encapsulation, LinkIdentity, Need, Privilege, Stack, Underlay, Wishes,
};

/// Everything that a backend may look at besides leases.
#[derive(Clone, Debug)]
pub struct Node {
    pub network: NetworkConfig,
    pub underlay: Underlay,
    pub kernel: KernelVersion,
    /// Paths to peers' public addresses; known for backends that ask for them.
    pub paths: BTreeMap<IpAddr, Path>,
    /// Networks on other devices of this node that overlap the pod network.
    pub connected: Vec<Connected>,
    pub answers: Answers,
}

/// What is known of this node from before, so that it keeps its identity over restarts and reboots.
pub struct NodeMemory<'a> {
    /// What this node last announced in the store.
    pub announced: Option<&'a LeaseAttrs>,
    /// Facts of the node: a device that survived the last daemon is in here.
    pub facts: &'a Facts,
    /// Identities that other nodes announced first: this node announces none of them, if it has a choice.
    pub taken: &'a [LinkIdentity],
}

/// Longest description of a problem with a peer's data, which it may quote.
const MAX_MESSAGE_BYTES: usize = 200;

impl PeerProblem {
    /// A problem with the data that the peer has written for its backend.
    pub(crate) fn data(why: impl ToString) -> Self {
        Self::Data(flannel_common::shorten(&why.to_string(), MAX_MESSAGE_BYTES).into_owned())
    }

    /// The peer has written no data for its backend.
    pub(crate) fn no_data() -> Self {
        Self::Data("it has none; is it still starting?".to_owned())
    }

    pub const KINDS: [&'static str; 11] = [
        "other-backend",
        "unclaimed",
        "outside-network",
        "overlaps-ours",
        "our-address",
        "identity-taken",
        "displaces",
        "no-address",
        "other-family",
        "bad-data",
        "unreachable",
    ];

    pub fn kind(&self) -> &'static str {
        match self {
            Self::OtherBackend { .. } => "other-backend",
            Self::Unclaimed => "unclaimed",
            Self::OutsideNetwork => "outside-network",
            Self::OverlapsOurs => "overlaps-ours",
            Self::OurAddress => "our-address",
            Self::IdentityTaken { .. } | Self::IdentityDisputed { .. } => "identity-taken",
            Self::Displaces { .. } => "displaces",
            Self::NoAddress(_) | Self::UnusableAddress(..) => "no-address",
            Self::Apart(_) => "other-family",
            Self::Data(_) => "bad-data",
            Self::Unreachable(_) => "unreachable",
        }
    }

    pub fn fix(&self) -> Option<&'static str> {
        match self {
            Self::IdentityTaken { identity, .. } | Self::IdentityDisputed { identity, .. } => {
                Some(identity.fix())
            }
            _ => None,
        }
    }

    /// Whether two nodes claim the same addresses for their pods.
    pub fn is_clash(&self) -> bool {
        *self == Self::OverlapsOurs
    }

    /// Whether it also occurs while nothing is wrong.
    pub fn is_expected(&self) -> bool {
        *self == Self::Unclaimed
    }
}

impl Node {
    /// Device through which a peer is reached without a gateway, as far as [`Node::paths`] tells.
    pub(crate) fn direct_link(&self, public: IpAddr) -> Option<IfName> {
        let path = self.paths.get(&public)?;
        path.gateway.is_none().then_some(path.link)
    }

    /// Attributes that any backend announces: the node's public addresses of the families that its packets travel in.
    pub fn attrs(&self, backend_type: &str) -> LeaseAttrs {
        LeaseAttrs {
            public_ip: self.underlay.public_v4.filter(|_| self.sends_over(Family::V4)),
            public_ipv6: self.underlay.public_v6.filter(|_| self.sends_over(Family::V6)),
            backend_type: backend_type.into(),
            ..LeaseAttrs::default()
        }
    }
}

pub trait Backend: Send + Sync {
    /// Name of the backend in `Backend.Type` of the network config.
    fn kind(&self) -> &'static str;

    /// Type in its leases: the name, but for alloc, as with the Go flannel. Peers of another type cannot be used.
    fn lease_type(&self) -> &'static str {
        self.kind()
    }

    /// Whether nodes that announce no backend may be its peers: the Go flannel's udp nodes announce none.
    fn accepts_untyped(&self) -> bool {
        false
    }

    /// Names of its options in `Backend`, besides `Type`.
    fn options(&self) -> &'static [&'static str] {
        &[]
    }

    /// Refuses a network that this backend can serve on no node, naming the fix.
    fn check_network(&self, _network: &NetworkConfig) -> Result<(), BackendError> {
        Ok(())
    }

    /// Privileges that its options ask of a node. None is used before the node has granted it.
    fn privileges(&self) -> Vec<Privilege> {
        Vec::new()
    }

    /// Needs that must be answered before anything else is asked of it; they are answered once, and again when they
    /// change. By then the network has passed [`Backend::check_network`].
    fn needs(&self) -> Vec<Need> {
        Vec::new()
    }

    /// Refuses a node or network that this backend cannot serve, naming the fix.
    fn check(&self, _node: &Node) -> Result<(), BackendError> {
        Ok(())
    }

    /// Families that a node's interface may have for such a network, the best first. A node that lacks an address of
    /// a family in use can take part where that family's packets travel in the other.
    fn underlays(&self, network: &NetworkConfig) -> Vec<Stack> {
        vec![Stack::of(network)]
    }

    /// MTU that pods may use: the underlay's, less the overhead.
    fn mtu(&self, node: &Node) -> u32 {
        node.underlay.mtu
    }

    /// MTU of packets between nodes: the underlay's, or less if the config asks for that.
    fn outer_mtu(&self, node: &Node) -> u32 {
        node.underlay.mtu
    }

    /// Bytes that the backend adds to pods' packets between nodes.
    fn overhead(&self, node: &Node) -> u32 {
        self.outer_mtu(node).saturating_sub(self.mtu(node))
    }

    fn mtu_why(&self, node: &Node) -> String {
        let (outer, underlay) = (self.outer_mtu(node), &node.underlay);
        let found = match outer < underlay.mtu {
            true => format!("the network config asks for {outer}"),
            false => format!("{} has {outer}", underlay.link),
        };
        match self.overhead(node) {
            0 => format!("{found}, {} takes nothing of it", self.kind()),
            taken => format!("{found}, {} takes {taken}", self.kind()),
        }
    }

    /// Remarks for an operator on how the config is applied on this node. Logged once, and again when they change.
    fn remarks(&self, _node: &Node) -> Vec<String> {
        Vec::new()
    }

    fn announce(&self, node: &Node, _memory: &NodeMemory<'_>) -> LeaseAttrs {
        node.attrs(self.lease_type())
    }

    /// Identities at the link that a lease announces. Of two nodes with the same one, peers can send to only one.
    fn link_identities(&self, _announced: &LeaseAttrs) -> Vec<LinkIdentity> {
        Vec::new()
    }

    /// Whether `identity` follows from the lease's own public address, so that it is no other lease's.
    fn is_derived(&self, _identity: &LinkIdentity, _announced: &LeaseAttrs) -> bool {
        false
    }

    /// Whether a lease with this node's public address is its own: nodes behind one NAT have one address.
    fn is_own(&self, _node: &Node, _lease: &Lease) -> bool {
        true
    }

    /// Wishes of the node itself: its device, its address, its settings.
    fn base(&self, _node: &Node, _own: &Lease) -> Wishes {
        Wishes::default()
    }

    fn peer(&self, node: &Node, own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem>;

    /// Encapsulation of pods' packets in a network of these families.
    fn encapsulation(&self, _stack: Stack) -> Encapsulation {
        Encapsulation::Unknown
    }

    /// Devices that are entirely ours.
    fn devices(&self, _node: &Node) -> Vec<IfName> {
        Vec::new()
    }

    /// Shape of the unmarked routes of the Go flannel.
    fn legacy_routes(&self, _node: &Node) -> Vec<LegacyRoutes> {
        Vec::new()
    }

    /// Whether [`Node::paths`] is to be filled in.
    fn wants_paths(&self) -> bool {
        false
    }
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BackendError {
    #[error(transparent)]
    Config(#[from] flannel_lease::ConfigError),
    #[error(transparent)]
    DeviceName(#[from] InvalidIfName),
    #[error("{0}")]
    Unfit(String),
}

fn at(address: &Option<IpAddr>) -> String {
    address.map(|address| format!(" at {address}")).unwrap_or_default()
}

/// Why a peer gets no entries. It is logged once, and checked again when the peer's lease changes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PeerProblem {
    #[error(
        "it uses the backend '{theirs}', we use '{ours}': every node of a network needs the same"
    )]
    OtherBackend { theirs: String, ours: String },
    #[error(
        "its lease names no backend: it is reserved for a node that has not come yet, or that node uses \
         udp or alloc"
    )]
    Unclaimed,
    #[error("its subnet lies outside of our network")]
    OutsideNetwork,
    #[error("its subnet overlaps ours")]
    OverlapsOurs,
    #[error(
        "it announces our own public address: an old lease of this node, or a duplicate address"
    )]
    OurAddress,
    /// Another lease announced the identity before.
    #[error(
        "it announces {identity}, which the lease {holder}{at} had first; packets for both would go to one node, \
         so nothing is sent to this one",
        at = at(.address)
    )]
    IdentityTaken { identity: LinkIdentity, holder: Subnet, address: Option<IpAddr> },
    /// Another lease announces the identity too, and nothing tells which one was first.
    #[error(
        "it announces {identity}, as the lease {rival}{at} does, and neither this node nor the store knows which of them \
         had it first: one of them may have copied it to get the other's packets, so nothing is sent to either",
        at = at(.address)
    )]
    IdentityDisputed { identity: LinkIdentity, rival: Subnet, address: Option<IpAddr> },
    #[error(
        "its subnet {theirs} would take the place of the route {route}, by which this node is connected to its \
         own pods or its own network, so it gets no route here: if the lease's node is gone, or was this one \
         under another address, give the lease {key} back; else take that address off {link} \
         and restart the pods behind it"
    )]
    Displaces { key: Subnet, theirs: IpNet, route: String, link: IfName },
    #[error("it announces no usable public {0} address")]
    NoAddress(Family),
    #[error("it announces the public address {0}, which {1}")]
    UnusableAddress(IpAddr, UnusableAddress),
    /// The peer is reached in this family alone, and this node sends in the other.
    #[error(
        "it announces an address of {theirs} alone, and this node sends over {ours} alone: give all nodes an address \
         of one and the same family", theirs = .0, ours = .0.other()
    )]
    Apart(Family),
    #[error("its backend data is unusable: {0}")]
    Data(String),
    #[error("{0}")]
    Unreachable(String),
}
