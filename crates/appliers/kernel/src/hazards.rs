//! Hazards: what the host itself does that cuts pods off from those of other nodes. They are the operator's decision,
//! so they are not undone; but they are reported, with a fix.

use flannel_common::IfName;
use flannel_state::{Finding, Layer};
use ipnet::IpNet;

use crate::links::Links;
use crate::observed::{ObservedRoute, RouteKind};

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

/// Describes a route as `ip route` does.
pub(crate) fn describe(route: &ObservedRoute, links: &Links) -> String {
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
