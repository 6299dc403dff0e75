//! Routes: where the kernel sends a packet.

use std::net::IpAddr;

use flannel_backend::Encapsulation;
use flannel_kernel::look::Decision;
use flannel_netlink::NetlinkError;
use flannel_state::Layer;
use netlink_packet_route::route::RouteType;

use super::{HopJudgement, fault};
use crate::{End, NodeInNetwork};

const LAYER: Layer = Layer::Entries;

/// Why the kernel has no way for a packet. `see`: the command that shows it.
pub(crate) fn no_route(error: &NetlinkError, see: &str) -> HopJudgement {
    match refusing_kind(error) {
        Some(kind) => fault(
            LAYER,
            format!("the kernel sends it nowhere: a rule or a route of the type {kind} is for it"),
            format!(
                "{see}; ip rule; ip route show table all type {kind}: delete what is not meant to be there"
            ),
        ),
        None => fault(
            LAYER,
            format!("the kernel sends it nowhere: {error}"),
            format!("{see}; flannelctl repair puts flannel's own routes back"),
        ),
    }
}

/// The kind of route that refuses packets on purpose, by what the kernel says of it.
pub(super) fn refusing_kind(error: &NetlinkError) -> Option<&'static str> {
    match error.errno {
        libc::EACCES => Some("prohibit"),
        libc::EINVAL => Some("blackhole"),
        libc::EHOSTUNREACH => Some("unreachable"),
        _ => None,
    }
}

pub(super) fn leads_nowhere(kind: RouteType) -> bool {
    matches!(kind, RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit)
}

/// `bridge`: the device of this node's pods.
pub(crate) fn route(
    node: &NodeInNetwork,
    end: End<'_>,
    way: &Decision,
    to: IpAddr,
    bridge: Option<&str>,
) -> HopJudgement {
    let said = by(to, way);
    let see = format!("ip route get {to}; ip rule; flannelctl repair puts flannel's own back");
    match misled(node, end, way, bridge) {
        Some(problem) => fault(LAYER, format!("{said}: {problem}"), see),
        None => Ok(said),
    }
}

pub(super) fn by(to: IpAddr, way: &Decision) -> String {
    let via = way.via.map(|via| format!(" via {via}")).unwrap_or_default();
    format!("{to}{via} dev {}", way.link)
}

fn misled(
    node: &NodeInNetwork,
    end: End<'_>,
    way: &Decision,
    bridge: Option<&str>,
) -> Option<String> {
    let (link, kind) = (way.link.as_str(), way.kind);
    if leads_nowhere(kind) {
        return Some("a route that leads nowhere on purpose".to_owned());
    }
    match end {
        End::Peer(peer) => {
            let card = node.underlay.as_ref().map(|underlay| underlay.link.as_str());
            let ours = node.devices.iter().any(|device| device == link);
            // With host-gw and DirectRouting the peer is the gateway; a cloud has the way in its own table.
            let by_peers = node.encapsulation == Encapsulation::Underlay { direct: true };
            let clouds = node.devices.is_empty() && !by_peers;
            let to_peer = way.via.is_some_and(|via| peer.public.contains(&via));
            let direct = card == Some(link) && (clouds || to_peer);
            let by = node.devices.first().map(String::as_str).or(card);
            (!ours && !direct || kind == RouteType::Local).then(|| {
                let by = by.unwrap_or("flannel's device");
                format!("flannel's route, by {by}, is not the one that is taken")
            })
        }
        End::Pod => {
            let bridge = bridge?;
            (bridge != link).then(|| format!("not to {bridge}, where this node's pods are"))
        }
        End::Host => (kind != RouteType::Local).then(|| "not to this node itself".to_owned()),
        End::World => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::Peer;

    pub(in crate::judge) fn node(backend: &str, devices: &[&str]) -> NodeInNetwork {
        NodeInNetwork {
            encapsulation: Encapsulation::usual(backend, flannel_backend::Stack::V4),
            underlay: Some(flannel_backend::Underlay {
                link: flannel_common::IfName::new("eth0").unwrap(),
                mtu: 1500,
                v4: None,
                v6: None,
                public_v4: None,
                public_v6: None,
                why: String::new(),
            }),
            mtu: Some(1450),
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            own: vec!["10.244.1.0/24".parse().unwrap()],
        }
    }

    fn way(link: &str, via: Option<[u8; 4]>) -> Decision {
        let (link, via) = (link.to_owned(), via.map(IpAddr::from));
        Decision { kind: RouteType::Unicast, link, via, mtu: None }
    }

    pub(in crate::judge) fn peer() -> Peer {
        Peer {
            public: vec![[192, 0, 2, 2].into()],
            macs: vec!["02:00:00:00:00:02".to_owned()],
            ..Peer::default()
        }
    }

    #[test]
    fn a_route_to_a_peer_is_flannels_own_or_leads_to_the_peer_itself() {
        let (to, peer) = (IpAddr::from([10, 244, 2, 2]), peer());
        let right = |node: &NodeInNetwork, way: &Decision| {
            route(node, End::Peer(&peer), way, to, None).is_ok()
        };
        let vxlan = node("vxlan", &["flannel.1"]);
        assert!(right(&vxlan, &way("flannel.1", Some([10, 244, 2, 0]))));
        assert!(right(&vxlan, &way("eth0", Some([192, 0, 2, 2]))), "DirectRouting");
        assert!(!right(&vxlan, &way("eth0", Some([192, 0, 2, 254]))), "the default route");
        let nowhere = Decision { kind: RouteType::BlackHole, ..way("flannel.1", None) };
        assert!(!right(&vxlan, &nowhere));
        assert!(!right(&node("host-gw", &[]), &way("eth0", Some([192, 0, 2, 254]))));
        assert!(right(&node("alloc", &[]), &way("eth0", Some([192, 0, 2, 254]))), "a cloud's");
    }
}
