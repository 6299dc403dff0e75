//! What is wrong with what was read of the kernel. Pure.

use std::net::IpAddr;

use flannel_kernel::Mac;
use flannel_kernel::look::{Decision, Device};
use netlink_packet_route::route::RouteType;

use crate::{End, NodeInNetwork, Peer, Tunnel};

/// What is right in words, or what is wrong.
pub(crate) type Judged = Result<String, Fault>;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) fix: String,
}

fn fault(what: impl Into<String>, fix: impl Into<String>) -> Judged {
    Err(Fault { what: what.into(), fix: fix.into() })
}

pub(crate) fn bridge(bridge: &Device) -> Judged {
    let name = &bridge.name;
    if bridge.up && bridge.carrier {
        return Ok(format!("{name} is up, MTU {}", bridge.mtu));
    }
    let what = if bridge.up { "has nobody on it" } else { "is down" };
    fault(format!("{name} {what}"), format!("ip link set {name} up"))
}

/// `mtu`: what the network carries.
pub(crate) fn veth(port: &Device, pod: IpAddr, mac: Mac, mtu: Option<u32>) -> Judged {
    let name = &port.name;
    if !port.up || !port.carrier {
        return fault(format!("{name} of {pod} is down"), format!("ip link set {name} up"));
    }
    match mtu.filter(|mtu| port.mtu > *mtu) {
        Some(mtu) => fault(
            format!("{name} of {pod} has an MTU of {}, and the network carries {mtu}", port.mtu),
            "restart the pod: it takes the MTU that fits",
        ),
        None => Ok(format!("{pod} is {mac} on {name}, MTU {}", port.mtu)),
    }
}

/// Of a pod that has answered before, and is behind none of the ports of its bridge.
pub(crate) fn no_veth(bridge: &str, pod: IpAddr, mac: Mac, ports: &[Device]) -> Fault {
    let down: Vec<&str> = ports
        .iter()
        .filter(|port| !port.up || !port.carrier)
        .map(|port| port.name.as_str())
        .collect();
    let (down, fix) = match down.as_slice() {
        [] => (String::new(), format!("bridge link show master {bridge}; restart the pod")),
        [one] => (format!(" ({one} is down)"), format!("ip link set {one} up")),
        [first, ..] => (
            format!(" ({} are down)", down.join(", ")),
            format!("ip link set {first} up, and the others too; else restart the pod"),
        ),
    };
    Fault {
        what: format!(
            "{pod} ({mac}) is behind no port of {bridge}: its veth is down, or was taken off the bridge{down}"
        ),
        fix,
    }
}

pub(crate) fn tunnel(node: &NodeInNetwork, name: &str, device: Option<&Device>) -> Judged {
    let Some(device) = device else {
        return fault(
            format!("{name} is not there"),
            "flannelctl repair; if no flanneld runs, start it",
        );
    };
    if !device.up {
        return fault(
            format!("{name} is down"),
            format!("ip link set {name} up, then flannelctl repair"),
        );
    }
    if let Some(mtu) = node.mtu.filter(|mtu| device.mtu < *mtu) {
        return fault(
            format!("{name} has an MTU of {}, and pods have {mtu}", device.mtu),
            format!("ip link set {name} mtu {mtu}"),
        );
    }
    match (&device.vxlan, node.tunnel) {
        (Some(vxlan), Tunnel::Udp(port)) if vxlan.port != port => fault(
            format!("{name} uses UDP port {}, and the network uses {port}", vxlan.port),
            "flannelctl repair: it makes the device anew",
        ),
        _ => Ok(format!("{name} is up, MTU {}", device.mtu)),
    }
}

fn leads_nowhere(kind: RouteType) -> bool {
    matches!(kind, RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit)
}

/// `bridge`: the device of this node's pods.
pub(crate) fn route(
    node: &NodeInNetwork,
    end: End<'_>,
    way: &Decision,
    to: IpAddr,
    bridge: Option<&str>,
) -> Judged {
    let said = by(to, way);
    let see = format!("ip route get {to}; ip rule; flannelctl repair puts flannel's own back");
    match misled(node, end, way, bridge) {
        Some(problem) => fault(format!("{said}: {problem}"), see),
        None => Ok(said),
    }
}

pub(crate) fn by(to: IpAddr, way: &Decision) -> String {
    match way.via {
        Some(via) => format!("{to} via {via} dev {}", way.link),
        None => format!("{to} dev {}", way.link),
    }
}

/// What is wrong with that way.
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
            // With host-gw, and with DirectRouting, the peer itself is the gateway; a cloud knows the way by its own
            // table.
            let clouds = node.devices.is_empty() && node.backend != "host-gw";
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

/// `mac`: what the device has for the gateway.
pub(crate) fn neighbour(peer: &Peer, link: &str, via: IpAddr, mac: Option<Mac>) -> Judged {
    let Some(mac) = mac else {
        return fault(
            format!("{link} has no MAC for {via}"),
            format!("flannelctl repair (ip neigh show {via} dev {link})"),
        );
    };
    if peer.macs.is_empty() || peer.macs.contains(&mac.to_string()) {
        return Ok(format!("{via} is {mac} on {link}"));
    }
    let wanted = peer.macs.join(" or ");
    fault(
        format!("{via} is {mac} on {link}, and that node says it is {wanted}"),
        format!(
            "flannelctl repair (ip neigh replace {via} lladdr {wanted} dev {link} nud permanent)"
        ),
    )
}

/// `public`: the node that the device has for the MAC.
pub(crate) fn fdb(peer: &Peer, link: &str, mac: Mac, public: Option<IpAddr>) -> Judged {
    let Some(public) = public else {
        return fault(
            format!("{link} does not know behind which node {mac} is"),
            format!("flannelctl repair (bridge fdb show dev {link})"),
        );
    };
    if peer.public.is_empty() || peer.public.contains(&public) {
        return Ok(format!("{mac} is behind {public}"));
    }
    let wanted: Vec<String> = peer.public.iter().map(ToString::to_string).collect();
    fault(
        format!("{link} sends to {mac} at {public}, and that node is at {}", wanted.join(" or ")),
        format!(
            "flannelctl repair (bridge fdb replace {mac} dev {link} dst {} self)",
            wanted.join(" ")
        ),
    )
}

/// How this node sends to another one.
pub(crate) fn underlay(public: IpAddr, way: &Decision, device: &Device) -> Judged {
    if leads_nowhere(way.kind) || way.kind == RouteType::Local {
        return fault(
            format!("what is sent to {public} stays on this node ({:?})", way.kind),
            format!("ip route get {public}"),
        );
    }
    if !device.up || !device.carrier {
        return fault(
            format!("{} towards {public} is down", device.name),
            format!("ip link set {} up, and look at its cable", device.name),
        );
    }
    Ok(by(public, way))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(backend: &str, devices: &[&str]) -> NodeInNetwork {
        NodeInNetwork {
            backend: backend.to_owned(),
            tunnel: Tunnel::usual(backend),
            underlay: Some(flannel_backend::Underlay {
                link: flannel_kernel::IfName::new("eth0").unwrap(),
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

    fn peer() -> Peer {
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

    #[test]
    fn what_leads_to_a_peer_is_compared_with_what_the_peer_says_of_itself() {
        let (peer, via) = (peer(), IpAddr::from([10, 244, 2, 0]));
        let (its, other) = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 9]));
        assert!(neighbour(&peer, "flannel.1", via, Some(its)).is_ok());
        assert!(neighbour(&peer, "flannel.1", via, Some(other)).is_err());
        assert!(neighbour(&peer, "flannel.1", via, None).is_err());
        assert!(neighbour(&Peer::default(), "flannel.1", via, Some(other)).is_ok(), "not known");
        assert!(fdb(&peer, "flannel.1", its, Some([192, 0, 2, 2].into())).is_ok());
        assert!(fdb(&peer, "flannel.1", its, Some([192, 0, 2, 9].into())).is_err());
        assert!(fdb(&peer, "flannel.1", its, None).is_err());
    }

    #[test]
    fn a_device_that_is_down_or_too_small_is_a_fault_with_the_command_that_mends_it() {
        let vxlan = node("vxlan", &["flannel.1"]);
        let device = Device { mtu: 1450, ..Device::plain(1, "flannel.1") };
        assert!(tunnel(&vxlan, "flannel.1", Some(&device)).is_ok());
        assert!(tunnel(&vxlan, "flannel.1", None).is_err());
        let smaller = Device { mtu: 1300, ..device.clone() };
        let said = tunnel(&vxlan, "flannel.1", Some(&smaller)).unwrap_err();
        assert_eq!(said.fix, "ip link set flannel.1 mtu 1450");
        let port = flannel_kernel::ObservedVxlan { port: 4789, ..Default::default() };
        let other_port = Device { vxlan: Some(port), ..device.clone() };
        assert!(tunnel(&vxlan, "flannel.1", Some(&other_port)).is_err());
        let (pod, mac) = (IpAddr::from([10, 244, 1, 2]), Mac([2, 0, 0, 0, 0, 1]));
        let port = Device { up: false, ..Device::plain(2, "veth2") };
        let said = no_veth("cni0", pod, mac, &[Device::plain(1, "veth1"), port.clone()]);
        assert_eq!(said.fix, "ip link set veth2 up");
        assert!(veth(&port, pod, mac, None).is_err() && bridge(&port).is_err());
        assert!(veth(&Device::plain(1, "veth1"), pod, mac, Some(1450)).is_err(), "its MTU");
    }
}
