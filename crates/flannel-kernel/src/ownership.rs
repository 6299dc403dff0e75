//! Whose is it? The rule by which an entry nobody wants any more is removed, or left alone.
//!
//! Ours are: the devices named here and, on them, what lies inside our networks; routes of our
//! protocol number into our networks, on any device. Everything else is somebody else's, whatever it
//! looks like. What the Go flannel left behind bears no mark; it is taken over by its exact shape,
//! and only when a network is taken over as a whole.

use std::collections::BTreeSet;

use flannel_netlink::xfrm::ObservedPolicy;
use ipnet::IpNet;

use crate::flannel_devices;
use crate::links::Links;
use crate::observed::{
    ObservedAddress, ObservedFdb, ObservedLink, ObservedNeighbour, ObservedRoute, RouteKind,
};
use crate::{ESP_REQID, IPV6_DEFAULT_METRIC, IfName, ROUTE_PROTOCOL};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Devices that are wholly ours.
    pub links: BTreeSet<IfName>,
    /// The networks whose subnets we lead to, and those this node led to before a change of config.
    pub networks: Vec<IpNet>,
    /// Where the Go flannel may have put unmarked routes through somebody else's device.
    pub legacy: Vec<LegacyRoutes>,
}

/// `<subnet> via <gateway> dev <link>`, with or without `onlink`, protocol boot, metric as the kernel gives
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyRoutes {
    pub link: IfName,
    pub network: IpNet,
    /// `None`: subnets of any length.
    pub subnet_len: Option<u8>,
    pub onlink: bool,
}

/// `ip route add` and the Go flannel name no protocol; the kernel files that as "boot".
const PROTOCOL_BOOT: u8 = 3;
pub(crate) const PROTOCOL_KERNEL: u8 = 2;

impl Ownership {
    pub(crate) fn owns_route(
        &self,
        route: &ObservedRoute,
        links: &Links,
        taking_over: bool,
    ) -> bool {
        if !self.is_within(route.dst) || route.protocol == PROTOCOL_KERNEL {
            return false;
        }
        let on_ours = |index| links.name(index).is_some_and(|name| self.links.contains(&name));
        route.protocol == ROUTE_PROTOCOL
            || route.hops.iter().any(|hop| on_ours(hop.link))
            || taking_over && self.legacy.iter().any(|legacy| legacy.matches(route, links))
    }

    pub(crate) fn owns_address(&self, address: &ObservedAddress, name: IfName) -> bool {
        self.links.contains(&name) && self.is_within(address.addr)
    }

    /// Entries the kernel has learned by itself are not permanent, and not ours.
    pub(crate) fn owns_neighbour(&self, neighbour: &ObservedNeighbour, name: IfName) -> bool {
        self.links.contains(&name) && neighbour.permanent
    }

    pub(crate) fn owns_fdb(&self, fdb: &ObservedFdb, name: IfName) -> bool {
        self.links.contains(&name) && fdb.permanent
    }

    /// A device of an earlier config: named as flannel names them and holding an address of ours.
    /// Another flanneld's device on this host holds an address of another network.
    /// And what was left of a trial when a daemon was killed.
    pub(crate) fn owns_orphan(&self, link: &ObservedLink, addresses: &[ObservedAddress]) -> bool {
        let was_in_use = || addresses.iter().any(|address| self.is_within(address.addr));
        flannel_devices::is_trial_device(link) || flannel_devices::can_be_ours(link) && was_in_use()
    }

    /// Policies between our pods. Those of the Go flannel look the same.
    pub(crate) fn owns_policy(&self, policy: &ObservedPolicy) -> bool {
        is_flannel_policy(policy) && self.is_within(policy.src) && self.is_within(policy.dst)
    }

    /// False for a route to a whole pod network.
    pub(crate) fn leads_to_a_peer(&self, route: &crate::Route) -> bool {
        !self.networks.contains(&route.dst)
    }

    pub(crate) fn is_within(&self, net: IpNet) -> bool {
        self.networks.iter().any(|network| network.contains(&net))
    }

    /// Whether any of it is within our networks.
    pub(crate) fn meets(&self, net: IpNet) -> bool {
        self.is_within(net) || self.networks.iter().any(|network| net.contains(network))
    }
}

/// Whether a policy is of the shape that every flannel's is. strongSwan gives those that it makes itself a priority.
pub fn is_flannel_policy(policy: &ObservedPolicy) -> bool {
    policy.plain && policy.tunnel.is_some_and(|tunnel| tunnel.reqid == ESP_REQID)
}

impl LegacyRoutes {
    fn matches(&self, route: &ObservedRoute, links: &Links) -> bool {
        let metric = if route.dst.addr().is_ipv4() { 0 } else { IPV6_DEFAULT_METRIC };
        let [hop] = route.hops.as_slice() else { return false };
        route.kind == RouteKind::Unicast
            && route.protocol == PROTOCOL_BOOT
            && route.metric == metric
            && self.is_subnet(route.dst)
            && hop.via.is_some()
            && hop.onlink == self.onlink
            && links.name(hop.link) == Some(self.link)
    }

    /// A route to the whole network does not lead to a peer, so somebody else made it.
    fn is_subnet(&self, dst: IpNet) -> bool {
        self.subnet_len.is_none_or(|len| dst.prefix_len() == len)
            && self.network.contains(&dst)
            && dst.prefix_len() > self.network.prefix_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Hop;

    fn name(text: &str) -> IfName {
        IfName::new(text).unwrap()
    }

    fn links() -> Links {
        let mut links = Links::default();
        for (index, text) in [(2, "eth0"), (3, "flannel.1"), (4, "cni0")] {
            links.put(ObservedLink::plain(index, text));
        }
        links
    }

    fn route(dst: &str, protocol: u8, link: u32, via: Option<&str>) -> ObservedRoute {
        ObservedRoute {
            dst: dst.parse().unwrap(),
            metric: 0,
            protocol,
            kind: RouteKind::Unicast,
            tos: 0,
            embellished: false,
            hops: vec![Hop { link, via: via.map(|v| v.parse().unwrap()), onlink: false }],
        }
    }

    fn ownership() -> Ownership {
        Ownership {
            links: [name("flannel.1")].into(),
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            legacy: vec![LegacyRoutes {
                link: name("eth0"),
                network: "10.244.0.0/16".parse().unwrap(),
                subnet_len: Some(24),
                onlink: false,
            }],
        }
    }

    #[test]
    fn a_marked_route_into_our_network_is_ours_on_any_device() {
        let ours = route("10.244.7.0/24", ROUTE_PROTOCOL, 2, Some("192.168.100.7"));
        assert!(ownership().owns_route(&ours, &links(), false));
        let another_network = route("10.99.7.0/24", ROUTE_PROTOCOL, 2, Some("192.168.100.7"));
        assert!(!ownership().owns_route(&another_network, &links(), false));
    }

    #[test]
    fn the_nodes_own_pod_bridge_route_is_never_ours() {
        let bridge = route("10.244.1.0/24", PROTOCOL_KERNEL, 4, None);
        assert!(!ownership().owns_route(&bridge, &links(), true));
    }

    #[test]
    fn go_flannels_routes_are_taken_over_by_exact_shape_and_only_at_take_over() {
        let legacy = route("10.244.7.0/24", PROTOCOL_BOOT, 2, Some("192.168.100.7"));
        assert!(ownership().owns_route(&legacy, &links(), true));
        assert!(!ownership().owns_route(&legacy, &links(), false));
        for other in [
            route("10.244.7.0/25", PROTOCOL_BOOT, 2, Some("192.168.100.7")),
            route("10.244.7.0/24", 4, 2, Some("192.168.100.7")),
            route("10.244.7.0/24", PROTOCOL_BOOT, 4, Some("192.168.100.7")),
            route("10.244.7.0/24", PROTOCOL_BOOT, 2, None),
            route("10.7.0.0/24", PROTOCOL_BOOT, 2, Some("192.168.100.7")),
            ObservedRoute { metric: 5, ..legacy },
        ] {
            assert!(!ownership().owns_route(&other, &links(), true), "{other:?}");
        }
    }

    #[test]
    fn where_subnets_are_assigned_go_flannels_routes_are_taken_over_whatever_their_length() {
        let mut ownership = ownership();
        ownership.legacy[0].subnet_len = None;
        let owns = |dst: &str, link: u32| {
            let legacy = route(dst, PROTOCOL_BOOT, link, Some("192.168.100.7"));
            ownership.owns_route(&legacy, &links(), true)
        };
        for subnet in ["10.244.7.0/24", "10.244.7.128/25", "10.244.128.0/17"] {
            assert!(owns(subnet, 2), "{subnet}");
            assert!(!owns(subnet, 4), "{subnet} on somebody else's device");
        }
        for other in ["10.244.0.0/16", "10.0.0.0/8", "10.7.0.0/24"] {
            assert!(!owns(other, 2), "{other}");
        }
    }
}
