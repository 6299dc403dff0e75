//! Ownership: decides whether an entry that nobody wants any more is removed, or left alone.
//!
//! Ours are: the devices named here and, on them, what lies inside our networks; routes of our protocol number into
//! our networks, on any device. Everything else belongs to others, whatever it looks like. What the Go flannel left
//! behind has no mark; it is taken over by its exact shape, and only when a network is taken over as a whole.

use flannel_common::IfName;
use flannel_common::xfrm::ESP_REQID;
use flannel_entries::facts::InterfaceAddress;
use flannel_entries::kernel::{IPV6_DEFAULT_METRIC, LegacyRoutes, Ownership, ROUTE_PROTOCOL};
use flannel_netlink::xfrm::ObservedPolicy;
use ipnet::IpNet;

use crate::flannel_devices;
use crate::links::Links;
use crate::observed::{ObservedLink, ObservedRoute, RouteKind};

/// Protocol of routes that name none, such as those of `ip route add` and the Go flannel.
const PROTOCOL_BOOT: u8 = 3;
pub(crate) const PROTOCOL_KERNEL: u8 = 2;

pub(crate) fn owns_route(
    ownership: &Ownership,
    route: &ObservedRoute,
    links: &Links,
    taking_over: bool,
) -> bool {
    if !ownership.is_within(route.dst) || route.protocol == PROTOCOL_KERNEL {
        return false;
    }
    let on_ours = |index| links.name(index).is_some_and(|name| ownership.links.contains(&name));
    route.protocol == ROUTE_PROTOCOL
        || route.hops.iter().any(|hop| on_ours(hop.link))
        || taking_over && ownership.legacy.iter().any(|legacy| is_legacy(legacy, route, links))
}

/// Whether a neighbour or a forwarding entry is ours. Those that the kernel has learned are not permanent.
pub(crate) fn owns_neighbour(ownership: &Ownership, name: IfName, permanent: bool) -> bool {
    ownership.links.contains(&name) && permanent
}

/// Whether a device is of an earlier config: named as flannel names them and holding an address of ours, where
/// another flanneld's device on this host holds an address of another network. Or whether it was left of a trial when
/// a daemon was killed.
pub(crate) fn owns_orphan(
    ownership: &Ownership,
    link: &ObservedLink,
    addresses: &[InterfaceAddress],
) -> bool {
    let was_in_use = || addresses.iter().any(|address| ownership.is_within(address.addr));
    flannel_devices::is_trial_device(link) || flannel_devices::can_be_ours(link) && was_in_use()
}

/// Whether a policy is between our pods. Those of the Go flannel look the same.
pub(crate) fn owns_policy(ownership: &Ownership, policy: &ObservedPolicy) -> bool {
    is_flannel_policy(policy) && ownership.is_within(policy.src) && ownership.is_within(policy.dst)
}

/// Whether a policy has the shape of every flannel's. strongSwan gives those that it makes itself a priority.
pub fn is_flannel_policy(policy: &ObservedPolicy) -> bool {
    policy.plain && policy.tunnel.is_some_and(|tunnel| tunnel.reqid == ESP_REQID)
}

fn is_legacy(legacy: &LegacyRoutes, route: &ObservedRoute, links: &Links) -> bool {
    let metric = if route.dst.addr().is_ipv4() { 0 } else { IPV6_DEFAULT_METRIC };
    let [hop] = route.hops.as_slice() else { return false };
    route.kind == RouteKind::Unicast
        && route.protocol == PROTOCOL_BOOT
        && route.metric == metric
        && is_subnet(legacy, route.dst)
        && hop.via.is_some()
        && hop.onlink == legacy.onlink
        && links.name(hop.link) == Some(legacy.link)
}

/// Whether a route leads to a subnet. A route to the whole network does not lead to a peer, so somebody else made it.
fn is_subnet(legacy: &LegacyRoutes, dst: IpNet) -> bool {
    legacy.subnet_len.is_none_or(|len| dst.prefix_len() == len)
        && legacy.network.contains(&dst)
        && dst.prefix_len() > legacy.network.prefix_len()
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
            has_extras: false,
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
        assert!(owns_route(&ownership(), &ours, &links(), false));
        let another_network = route("10.99.7.0/24", ROUTE_PROTOCOL, 2, Some("192.168.100.7"));
        assert!(!owns_route(&ownership(), &another_network, &links(), false));
    }

    #[test]
    fn the_nodes_own_pod_bridge_route_is_never_ours() {
        let bridge = route("10.244.1.0/24", PROTOCOL_KERNEL, 4, None);
        assert!(!owns_route(&ownership(), &bridge, &links(), true));
    }

    #[test]
    fn go_flannels_routes_are_taken_over_by_exact_shape_and_only_at_take_over() {
        let legacy = route("10.244.7.0/24", PROTOCOL_BOOT, 2, Some("192.168.100.7"));
        assert!(owns_route(&ownership(), &legacy, &links(), true));
        assert!(!owns_route(&ownership(), &legacy, &links(), false));
        for other in [
            route("10.244.7.0/25", PROTOCOL_BOOT, 2, Some("192.168.100.7")),
            route("10.244.7.0/24", 4, 2, Some("192.168.100.7")),
            route("10.244.7.0/24", PROTOCOL_BOOT, 4, Some("192.168.100.7")),
            route("10.244.7.0/24", PROTOCOL_BOOT, 2, None),
            route("10.7.0.0/24", PROTOCOL_BOOT, 2, Some("192.168.100.7")),
            ObservedRoute { metric: 5, ..legacy },
        ] {
            assert!(!owns_route(&ownership(), &other, &links(), true), "{other:?}");
        }
    }

    #[test]
    fn where_subnets_are_assigned_go_flannels_routes_are_taken_over_whatever_their_length() {
        let mut ownership = ownership();
        ownership.legacy[0].subnet_len = None;
        let owns = |dst: &str, link: u32| {
            let legacy = route(dst, PROTOCOL_BOOT, link, Some("192.168.100.7"));
            owns_route(&ownership, &legacy, &links(), true)
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
