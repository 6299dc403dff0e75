//! Which objects in the kernel are flannel's: those that are not wanted are removed.

use std::collections::BTreeSet;

use flannel_common::IfName;
use ipnet::IpNet;

use super::Route;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Devices that are entirely ours.
    pub links: BTreeSet<IfName>,
    /// Networks whose subnets we have routes to, and those of a config before this one.
    pub networks: Vec<IpNet>,
    /// Where the Go flannel may have put unmarked routes through somebody else's device.
    pub legacy: Vec<LegacyRoutes>,
}

/// Shape of the Go flannel's routes: `<subnet> via <gateway> dev <link> [onlink]`, protocol boot, default metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyRoutes {
    pub link: IfName,
    pub network: IpNet,
    /// Prefix length of the subnets; `None` for any.
    pub subnet_len: Option<u8>,
    pub onlink: bool,
}

impl Ownership {
    /// Whether a route leads to a peer; false for a route to a whole pod network.
    pub fn leads_to_a_peer(&self, route: &Route) -> bool {
        !self.networks.contains(&route.dst)
    }

    pub fn is_within(&self, net: IpNet) -> bool {
        self.networks.iter().any(|network| network.contains(&net))
    }

    pub fn overlaps(&self, net: IpNet) -> bool {
        self.is_within(net) || self.networks.iter().any(|network| net.contains(network))
    }
}
