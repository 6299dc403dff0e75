//! Reasons for refusing a request, in words for the client.

use std::net::IpAddr;

use flannel_backend::{BackendError, LinkIdentity};
use flannel_lease::{
    AcquireError, ConfigError, MAX_DATA_BYTES, NetworkName, NoAddress, Subnet, owner_name,
};

use super::KeptLease;
use crate::MAX_STANDING_REQUESTS;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error(
        "there is no network {0}: write its config first, `flannelctl config set FILE{flag}`, or start the \
         lease server with --net-config-path=FILE",
        flag = .0.flag()
    )]
    NoNetwork(NetworkName),
    /// The new config could be used by no node.
    #[error("{0}")]
    BadConfig(Box<BackendError>),
    /// The present config was written by another version and cannot be used.
    #[error(
        "the network's config cannot be used by this version of the lease server: {0}; leases that there are live \
         on, new ones are not given out: write a config that can be used, `flannelctl config set FILE`, or run \
         the version that wrote this one (`flannelctl config get --raw` shows it)"
    )]
    UnusableConfig(Box<ConfigError>),
    #[error(
        "{count} live leases do not fit the new config, {example} for one: their nodes would get other \
         subnets and their pods other addresses; force it if that is what you want"
    )]
    Stranded { count: usize, example: Subnet },
    #[error("the network still has {0} leases: release them first, or force it")]
    InUse(usize),
    #[error(transparent)]
    NoAddress(#[from] NoAddress),
    #[error("{0} is not an address this client may announce")]
    ForeignAddress(IpAddr),
    #[error("{0}")]
    OutOfSubnets(Box<AcquireError>),
    #[error("there is no lease {0:#}; `flannelctl leases` shows those that there are")]
    Gone(Subnet),
    #[error("the lease {0} belongs to another node{at}", at = at(.1))]
    Taken(Subnet, Box<KeptLease>),
    #[error("{}", not_yours(.0, .1))]
    NotYours(Subnet, Box<KeptLease>),
    #[error(
        "the lease attributes carry {0} bytes of a backend's data, and a lease may carry {MAX_DATA_BYTES}: \
         shorten BackendData"
    )]
    TooLarge(usize),
    /// The identity is that of another node's lease.
    #[error(
        "{identity} is that of the lease {subnet}{at}, which had it first, and packets for both would go to one \
         node; {fix}",
        at = at(.entry), fix = .identity.fix()
    )]
    IdentityTaken { identity: LinkIdentity, subnet: Subnet, entry: Box<KeptLease> },
    #[error("{0} is reserved: remove the reservation first, `flannelctl unreserve`")]
    Reserved(Subnet),
    #[error("{}", already(*.node, *.has, *.reserved))]
    NodeHasLease { node: IpAddr, has: Subnet, reserved: bool },
    #[error(
        "{0} is not a subnet that this network hands out: see SubnetLen, SubnetMin and SubnetMax"
    )]
    NotInPool(Subnet),
    #[error("{0} overlaps the lease {1}")]
    Overlaps(Subnet, Subnet),
    /// Subnets are assigned, and this node has none yet.
    #[error("{reason}; {fix}")]
    NotAssignedYet { reason: String, fix: String },
    /// Only Kubernetes can do it.
    #[error("{0}")]
    KubernetesOwns(String),
    #[error(
        "the Node {node} announces this address already: two nodes cannot have one; if that Node is gone for good, \
         `kubectl delete node {node}`"
    )]
    AddressOfNode { node: String },
    #[error(
        "the server does not know which Node this client is: it needs a token or a certificate that bears the \
         Node's name (flannelctl pki token NAME)"
    )]
    NoName,
    #[error("{0}")]
    Elsewhere(String),
}

impl Refusal {
    /// The most requests stand already.
    pub fn too_many_requests() -> Self {
        Self::Elsewhere(format!(
            "{MAX_STANDING_REQUESTS} requests of operators stand in this network already: wait until one of them has ended, \
             at most some seconds after whoever placed it is gone"
        ))
    }
}

fn at(entry: &KeptLease) -> String {
    let address = entry.attrs.public_addresses().next();
    address.map(|address| format!(", at {address}")).unwrap_or_default()
}

fn already(node: IpAddr, has: Subnet, reserved: bool) -> String {
    if reserved {
        return format!(
            "{has} is reserved for {node} already, and a node has one subnet: `flannelctl unreserve {has}` and \
             `flannelctl release {has}` first"
        );
    }
    format!(
        "{node} has the lease {has}, and would stay there or move at some later start: reserve that one. To \
         move the node, stop its flanneld, `flannelctl release {has}`, reserve, and start it again; its pods \
         get new addresses"
    )
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        Self::BadConfig(Box::new(error))
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        Self::from(BackendError::from(error))
    }
}

/// Whose it is, and what an operator can do if that node will not come back.
fn not_yours(subnet: &Subnet, entry: &KeptLease) -> String {
    let text = subnet.nets().map(|net| net.to_string()).collect::<Vec<_>>().join(",");
    let whose = match (&entry.owner, entry.attrs.public_addresses().next()) {
        (Some(owner), _) => owner_name(owner).to_owned(),
        (None, Some(address)) => format!("the node at {address}"),
        (None, None) => "another node".to_owned(),
    };
    let unreserve = || format!("`flannelctl unreserve {text}` and ");
    let reserved = entry.expires.is_none().then(unreserve).unwrap_or_default();
    format!(
        "the lease {text} is not this client's to change: it belongs to {whose}; if that node is gone, and this \
         one has taken its place, an operator frees it with {reserved}`flannelctl release {text}`"
    )
}

impl From<AcquireError> for Refusal {
    fn from(error: AcquireError) -> Self {
        Self::OutOfSubnets(Box::new(error))
    }
}
