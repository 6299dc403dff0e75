//! Identity of a node whose address has changed. A lease names its holder by public address alone, which
//! every flannel understands; what a node remembers of itself distinguishes its own lease from another's
//! when the address does not. The rule and its reasons: docs/decisions/0007.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{KnownBy, Lease, LeaseAttrs, NetworkConfig, Subnet, Version};

/// Most former attributes that are kept: a store restored from a backup may know a node by a former address.
const MAX_FORMER_ATTRS: usize = 4;

/// Record that a node keeps of itself: its subnet, and the attributes it announced there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NodeIdentity {
    subnet: Subnet,
    /// The store's version of the lease as this node last wrote it. Who writes the same again, as another
    /// node does that was given the address meanwhile, makes another version.
    version: Version,
    /// The latest first.
    announced: Vec<LeaseAttrs>,
}

/// Evidence of a node's earlier runs when it starts or has lost its lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityEvidence<'a> {
    pub previous: Option<Subnet>,
    /// Record kept on this machine.
    pub remembered: Option<&'a NodeIdentity>,
    /// All addresses of this node: no other node has one of them.
    pub addresses: &'a [IpAddr],
    pub running: SystemEvidence,
}

/// Evidence of the running system for the former subnet, which a copy of a disk does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SystemEvidence {
    /// Its subnet file or its devices were made since it was switched on, and the lease fits them.
    SinceBoot,
    #[default]
    Nothing,
}

/// Ownership of a lease on this node's former subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOwnership {
    /// It bears our present address: nothing has changed.
    Present,
    Former,
    /// Ours if there is no answer at this address, which the lease bears.
    IfSilent(IpAddr),
    Anothers,
}

impl NodeIdentity {
    pub fn new(lease: &Lease, version: Version) -> Self {
        Self { subnet: lease.subnet, version, announced: vec![lease.attrs.clone()] }
    }

    pub fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// Notes the lease as this node has written it, and forgets announcements of another subnet.
    pub fn note(&mut self, lease: &Lease, version: Version) {
        if self.subnet != lease.subnet {
            *self = Self::new(lease, version);
            return;
        }
        self.version = version;
        self.announced.retain(|attrs| *attrs != lease.attrs);
        self.announced.insert(0, lease.attrs.clone());
        self.announced.truncate(MAX_FORMER_ATTRS);
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    pub fn wrote(&self, lease: &Lease, version: Version) -> bool {
        version != Version::UNKNOWN
            && self.version == version
            && self.subnet == lease.subnet
            && self.announced.first().is_some_and(|last| last.announce_the_same_as(&lease.attrs))
    }
}

impl<'a> IdentityEvidence<'a> {
    pub fn subnet(&self) -> Option<Subnet> {
        self.previous.or(self.remembered.map(NodeIdentity::subnet))
    }

    /// Ownership of the lease on that subnet, of which the store has this version. `now`: what this node would announce.
    pub fn ownership(
        &self,
        config: &NetworkConfig,
        now: &LeaseAttrs,
        lease: &Lease,
        version: Version,
    ) -> LeaseOwnership {
        if same_node(config, now, &lease.attrs) {
            return LeaseOwnership::Present;
        }
        let address = lease.attrs.public_addresses().next();
        let own = self.remembered();
        let resembles = own.is_some_and(|own| own.announced.contains(&lease.attrs))
            || self.running == SystemEvidence::SinceBoot;
        match address {
            _ if own.is_some_and(|own| own.wrote(lease, version)) => LeaseOwnership::Former,
            Some(address) if self.addresses.contains(&address) => LeaseOwnership::Former,
            Some(address) if resembles => LeaseOwnership::IfSilent(address),
            _ => LeaseOwnership::Anothers,
        }
    }

    /// Another flannel that ran here since has written the subnet file and not what we keep.
    fn remembered(&self) -> Option<&'a NodeIdentity> {
        let subnet = self.subnet();
        self.remembered.filter(|own| Some(own.subnet) == subnet)
    }
}

pub fn same_node(config: &NetworkConfig, one: &LeaseAttrs, other: &LeaseAttrs) -> bool {
    KnownBy::of(Some(config)).same_node(one, other)
}

/// Whether both announce one and the same device: peers could send to only one of them.
pub fn same_device(one: &LeaseAttrs, other: &LeaseAttrs) -> bool {
    let same = |one: &Option<_>, other: &Option<_>| one.is_some() && one == other;
    one.backend_type.eq_ignore_ascii_case(&other.backend_type)
        && (same(&one.backend_data, &other.backend_data)
            || same(&one.backend_v6_data, &other.backend_v6_data))
}
