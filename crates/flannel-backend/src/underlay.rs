//! The underlay: the interface and addresses through which this node reaches its peers. Chosen by
//! the daemon from the node's facts, taken by every backend as an input.

use std::net::{Ipv4Addr, Ipv6Addr};

use flannel_kernel::IfName;

#[derive(Clone, Debug)]
pub struct Underlay {
    pub link: IfName,
    pub mtu: u32,
    /// Addresses of the interface, one per family the network uses.
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
    /// Addresses announced to peers; behind a NAT they are not those of the interface.
    pub public_v4: Option<Ipv4Addr>,
    pub public_v6: Option<Ipv6Addr>,
    /// Why this interface, for the log. No part of what it is: two underlays that differ only in
    /// this are equal, so that a new metric of a route does not cause anything to be built again.
    pub why: String,
}

impl PartialEq for Underlay {
    fn eq(&self, other: &Self) -> bool {
        let Self { link, mtu, v4, v6, public_v4, public_v6, why: _ } = self;
        (link, mtu, v4, v6, public_v4, public_v6)
            == (&other.link, &other.mtu, &other.v4, &other.v6, &other.public_v4, &other.public_v6)
    }
}

impl Eq for Underlay {}
