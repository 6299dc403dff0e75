//! Hazards: what the host itself does that cuts pods off from those of other nodes. They are the operator's decision,
//! so they are not undone; but they are reported, with a fix.

use flannel_common::{Family, IfName};
use flannel_entries::kernel::{Entry, Ownership};
use flannel_state::{Finding, Layer};
use flannel_wanted::Wanted;
use ipnet::IpNet;

use crate::links::Links;
use crate::observed::{ObservedRoute, RouteKind};
use crate::wanted::{carriers, routes_to};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hazard {
    /// A kernel setting, by its path below `/proc/sys`, by which nothing is forwarded.
    ForwardingOff { sysctl: String },
    /// An address of this host lies in a peer's subnet, so that packets for it stay here.
    Address { addr: IpNet, link: IfName, subnet: IpNet },
    /// A route that is not flannel's has precedence over the one to a peer; as `ip route` writes it.
    Route { route: String, subnet: IpNet },
    /// A routing rule, or a route of another table, sends packets for a peer elsewhere.
    Rule { subnet: IpNet, to: String },
    /// The same for packets from a peer.
    RuleInward { subnet: IpNet, to: String },
}

impl Hazard {
    /// Peer whose packets are diverted; `None` for hazards that are seen without looking up a peer's path.
    pub(crate) fn diverted_peer(&self) -> Option<IpNet> {
        match self {
            Self::Rule { subnet, .. } | Self::RuleInward { subnet, .. } => Some(*subnet),
            Self::ForwardingOff { .. } | Self::Address { .. } | Self::Route { .. } => None,
        }
    }

    pub(crate) fn finding(&self) -> Finding {
        let diverted = "a routing rule or table that is not flannel's sends them there";
        let (about, cause, fix) = match self {
            Self::ForwardingOff { sysctl } => {
                // A device name with dots is written with slashes.
                let name =
                    if sysctl.contains('.') { sysctl.clone() } else { sysctl.replace('/', ".") };
                (
                    format!("{name} is 0"),
                    "this host does not forward packets of its pods, so they reach no other node"
                        .to_owned(),
                    format!("sysctl -w {name}=1"),
                )
            }
            Self::Address { addr, link, subnet } => (
                format!("the address {addr} of {link} lies in the subnet {subnet} of a peer"),
                "packets for that peer stay on this host".to_owned(),
                format!(
                    "ip addr del {addr} dev {link}; if that is the bridge of this node's pods, their addresses are of a \
                     former subnet: restart them"
                ),
            ),
            Self::Route { route, subnet } => (
                format!("the route {route}, which is not flannel's"),
                format!("it goes before the one to the peer {subnet}"),
                format!("ip route del {route}"),
            ),
            Self::Rule { subnet, to } => (
                format!("packets for the peer {subnet} go {to}"),
                diverted.to_owned(),
                format!(
                    "remove it, or except {subnet} (see ip rule, ip route get {})",
                    first_host(*subnet)
                ),
            ),
            Self::RuleInward { subnet, to } => (
                format!("packets from the peer {subnet} go {to}"),
                diverted.to_owned(),
                format!("remove it, or except {subnet} (see ip rule)"),
            ),
        };
        Finding::broken(Layer::Host, about, cause, fix)
    }
}

/// An address that a pod of the subnet's owner may have.
pub(crate) fn first_host(subnet: IpNet) -> std::net::IpAddr {
    subnet.hosts().nth(1).unwrap_or(subnet.addr())
}

/// Hazards caused by addresses, or by routes of the main table. `foreign` are routes into our networks that are not
/// ours.
pub(crate) fn in_the_main_table<S: Ord + Clone>(
    wanted: &Wanted<S, Entry>,
    ownership: &Ownership,
    links: &Links,
    foreign: &[ObservedRoute],
) -> Vec<Hazard> {
    let mut hazards = Vec::new();
    for (link, addresses) in links.iter().filter(|(link, _)| !ownership.links.contains(&link.name))
    {
        for address in addresses.iter().filter(|address| ownership.is_within(address.addr)) {
            let host = IpNet::from(address.addr.addr());
            if let Some(subnet) =
                peers_around(wanted, ownership, host).next().map(|route| route.dst)
            {
                hazards.push(Hazard::Address { addr: address.addr, link: link.name, subnet });
            }
        }
    }
    for route in foreign {
        let before = peers_around(wanted, ownership, route.dst).find(|peer| {
            let narrower = route.dst.prefix_len() > peer.dst.prefix_len();
            let leads_there = route.kind == RouteKind::Unicast
                && matches!(route.hops.as_slice(), [hop]
                    if links.name(hop.link) == Some(peer.link) && hop.via == peer.via);
            (narrower || route.metric < peer.metric) && !leads_there
        });
        if let Some(peer) = before {
            hazards.push(Hazard::Route { route: describe(route, links), subnet: peer.dst });
        }
    }
    hazards
}

/// Wanted routes of peers that lead to all of this network. A route to a whole pod network does not belong to a peer:
/// it leads into a tunnel that knows the peers.
pub(crate) fn peers_around<'a, S: Ord + Clone>(
    wanted: &'a Wanted<S, Entry>,
    ownership: &'a Ownership,
    net: IpNet,
) -> impl Iterator<Item = &'a flannel_entries::kernel::Route> {
    (0..=net.prefix_len())
        .filter_map(move |length| IpNet::new(net.addr(), length).ok())
        .flat_map(|around| routes_to(wanted, around.trunc()))
        .filter_map(|entry| match entry {
            Entry::Route(route) if ownership.leads_to_a_peer(route) => Some(route),
            _ => None,
        })
}

/// Describes a route as `ip route` does.
fn describe(route: &ObservedRoute, links: &Links) -> String {
    let mut text = match route.kind {
        RouteKind::Unicast | RouteKind::Other => route.dst.to_string(),
        RouteKind::Blackhole => format!("blackhole {}", route.dst),
    };
    if let [hop] = route.hops.as_slice() {
        text.extend(hop.via.map(|via| format!(" via {via}")));
        text.extend(links.name(hop.link).map(|name| format!(" dev {name}")));
    }
    if route.metric != 0 {
        text += &format!(" metric {}", route.metric);
    }
    text
}

/// Settings that must not be 0 for packets to be forwarded between pods and peers.
pub(crate) fn forwarding_settings<S: Ord + Clone>(
    wanted: &Wanted<S, Entry>,
    ownership: &Ownership,
    links: &Links,
) -> Vec<String> {
    let mut settings = Vec::new();
    let mut devices: Vec<IfName> = carriers(wanted, Family::V4).collect();
    if !devices.is_empty() {
        devices.extend(pods_devices(wanted, ownership, links).map(|(link, _)| link));
        settings.push("net/ipv4/ip_forward".to_owned());
        // The device that a packet comes in by decides whether it is forwarded.
        settings.extend(devices.iter().map(|name| format!("net/ipv4/conf/{name}/forwarding")));
    }
    if carriers(wanted, Family::V6).next().is_some() {
        settings.push("net/ipv6/conf/all/forwarding".to_owned());
    }
    settings
}

/// Devices of others with an address of our network that does not belong to a peer: this node's pods are there.
pub(crate) fn pods_devices<S: Ord + Clone>(
    wanted: &Wanted<S, Entry>,
    ownership: &Ownership,
    links: &Links,
) -> impl Iterator<Item = (IfName, IpNet)> {
    links
        .iter()
        .filter(|(link, _)| link.up && link.carrier && !ownership.links.contains(&link.name))
        .flat_map(|(link, addresses)| addresses.iter().map(|address| (link.name, address.addr)))
        .filter(|(_, addr)| {
            addr.addr().is_ipv4()
                && ownership.is_within(*addr)
                && peers_around(wanted, ownership, IpNet::from(addr.addr())).next().is_none()
        })
}
