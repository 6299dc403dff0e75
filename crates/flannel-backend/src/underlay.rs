//! The underlay: the interface and addresses through which this node reaches its peers. Chosen by
//! the daemon from the node's facts, taken by every backend as an input.

use std::net::{Ipv4Addr, Ipv6Addr};

use flannel_kernel::IfName;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    pub link: IfName,
    pub mtu: u32,
    /// Addresses of the interface, one per family the network uses.
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
    /// Addresses announced to peers; behind a NAT they are not those of the interface.
    pub public_v4: Option<Ipv4Addr>,
    pub public_v6: Option<Ipv6Addr>,
    /// Why this interface, for the log.
    pub why: String,
}
