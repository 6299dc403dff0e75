//! What is wrong with what was read of the kernel. Pure.

use std::net::IpAddr;

use flannel_kernel::Mac;
use flannel_kernel::look::{Decision, Device};
use flannel_netlink::NetlinkError;
use netlink_packet_route::route::RouteType;

use crate::firewall::guards::is_own;
use crate::firewall::{Drop, TOO_FEW_HOPS};
use crate::walk::{InsidePod, TtlSetting};
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
pub(crate) fn bridge_mtu(bridge: &Device, mtu: Option<u32>) -> Result<(), Fault> {
    let name = &bridge.name;
    match mtu.filter(|mtu| bridge.mtu < *mtu) {
        Some(mtu) => Err(Fault {
            what: format!(
                "{name} has an MTU of {}, and pods send packets of up to {mtu} bytes",
                bridge.mtu
            ),
            fix: format!("ip link set {name} mtu {mtu}"),
        }),
        None => Ok(()),
    }
}

/// A port whose MTU its bridge has taken over: a bridge follows the smallest of its ports.
pub(crate) fn narrowing_port(
    bridge: &Device,
    ports: &[Device],
    mtu: Option<u32>,
) -> Result<(), Fault> {
    let is_narrow =
        |port: &&Device| port.mtu == bridge.mtu && mtu.is_some_and(|mtu| port.mtu < mtu);
    let (Some(port), Some(mtu)) = (ports.iter().find(is_narrow), mtu) else { return Ok(()) };
    let (port, narrow, bridge) = (&port.name, port.mtu, &bridge.name);
    Err(Fault {
        what: format!(
            "{port} has an MTU of {narrow}, and so has {bridge}, whose port it is: pods send packets of up to {mtu} bytes"
        ),
        fix: format!("ip link set {port} mtu {mtu}; ip link set {bridge} mtu {mtu}"),
    })
}

/// A device that does not say which addresses this node has.
pub(crate) fn arp(device: &Device) -> Result<(), Fault> {
    let name = &device.name;
    if device.noarp && !device.loopback && device.vxlan.is_none() && device.mac.is_some() {
        return Err(Fault {
            what: format!("ARP is switched off on {name}: nobody on its wire finds this node"),
            fix: format!("ip link set {name} arp on"),
        });
    }
    let ignores = |of: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{of}/arp_ignore");
        std::fs::read_to_string(path).is_ok_and(|value| value.trim() == NEVER_ANSWER)
    };
    match ["all", name.as_str()].into_iter().find(|of| ignores(of)) {
        Some(of) => Err(Fault {
            what: format!(
                "net/ipv4/conf/{of}/arp_ignore is {NEVER_ANSWER}: this node does not say on {name} that it has its address"
            ),
            fix: format!("sysctl -w net/ipv4/conf/{of}/arp_ignore=0"),
        }),
        None => Ok(()),
    }
}

/// Of `arp_ignore`: for no address of this node.
const NEVER_ANSWER: &str = "8";

/// `state`: as the kernel numbers it; `None` if it is not known.
pub(crate) fn port_state(bridge: &str, port: &str, state: Option<u8>) -> Result<(), Fault> {
    let state = match state {
        Some(0) => "disabled",
        Some(1) => "listening",
        Some(2) => "learning",
        Some(4) => "blocking",
        _ => return Ok(()),
    };
    Err(Fault {
        what: format!("the port {port} of {bridge} is {state}: it passes nothing on"),
        fix: format!(
            "ip link set {bridge} type bridge stp_state 0, then ip link set {port} down; ip link set {port} up"
        ),
    })
}

/// What of the frames for a pod a port of its bridge passes on; `None` if that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortFlags {
    pub(crate) broadcast_flood: Option<bool>,
    pub(crate) multicast_flood: Option<bool>,
    pub(crate) unicast_flood: Option<bool>,
    pub(crate) learning: Option<bool>,
}

/// Whether a port passes the question on who has the pod's address.
pub(crate) fn port_flood(
    bridge: &str,
    port: &str,
    v4: bool,
    flags: PortFlags,
) -> Result<(), Fault> {
    let (passes, kind, option) = match v4 {
        true => (flags.broadcast_flood, "broadcasts", "bcast_flood"),
        false => (flags.multicast_flood, "multicasts", "mcast_flood"),
    };
    match passes {
        Some(false) => Err(Fault {
            what: format!(
                "the port {port} of {bridge} passes no {kind} on: nobody can ask the pod behind it for its MAC"
            ),
            fix: format!("bridge link set dev {port} {option} on"),
        }),
        _ => Ok(()),
    }
}

/// Of a pod whose MAC its bridge does not know: whether frames come to it all the same.
pub(crate) fn port_learning(
    bridge: &str,
    port: &str,
    mac: Mac,
    flags: PortFlags,
) -> Result<(), Fault> {
    match (flags.learning, flags.unicast_flood) {
        (Some(false), Some(false)) => Err(Fault {
            what: format!(
                "the port {port} of {bridge} neither learns nor gets what is for nobody known: what is for {mac} behind it goes nowhere"
            ),
            fix: format!("bridge link set dev {port} learning on flood on"),
        }),
        _ => Ok(()),
    }
}

/// More than one on the way to another node that answers for an address.
pub(crate) fn answers_twice(device: &str, ip: IpAddr, answering: &[Mac]) -> Option<String> {
    let [first, second, ..] = answering else { return None };
    Some(format!(
        "two on {device} answer for {ip}, {first} and {second}: the address is given out twice, or one host has two \
         cards on this wire; packets may go to either"
    ))
}

/// A bridge that sends what is for a pod to another port.
pub(crate) fn wrong_port(bridge: &str, pod: IpAddr, mac: Mac, has: &str, is: &str) -> Fault {
    Fault {
        what: format!(
            "{bridge} sends what is for {pod} ({mac}) to its port {has}, and the pod is behind {is}"
        ),
        fix: format!("bridge fdb del {mac} dev {has} master"),
    }
}

pub(crate) fn no_answer(bridge: &str, pod: IpAddr) -> Fault {
    Fault {
        what: format!(
            "nobody on {bridge} answers for {pod}: the pod is gone, or its interface is down"
        ),
        fix: "look for the pod (crictl pods; or docker ps, podman ps), and restart it".to_owned(),
    }
}

/// More than one that answers for a pod's address.
pub(crate) fn duplicates(bridge: &str, pod: IpAddr, answering: &[Mac]) -> Option<Fault> {
    let [first, second, ..] = answering else { return None };
    Some(Fault {
        what: format!(
            "two on {bridge} answer for {pod}, {first} and {second}: the address is given out twice, and packets go to either"
        ),
        fix: format!(
            "bridge fdb show br {bridge} says behind which ports they are; take the address from the one that is not to have it, or restart it; flannelctl ipam check"
        ),
    })
}

/// Somebody on this node's bridge who has the address of a pod of another node.
pub(crate) fn has_address_of_others(bridge: &str, ip: IpAddr, mac: Mac) -> Fault {
    Fault {
        what: format!(
            "somebody on {bridge} of this node ({mac}) answers for {ip}, which is an address of another node's pods: it is given out twice"
        ),
        fix: format!(
            "bridge fdb show br {bridge} says behind which port {mac} is; take the address from it, or restart it"
        ),
    }
}

/// `mac`: what the kernel has for an address. `answering`: who answers for it, as far as that is known.
pub(crate) fn neighbour_on_wire(
    device: &str,
    ip: IpAddr,
    mac: Mac,
    answering: &[Mac],
) -> Result<(), Fault> {
    match answering.first() {
        Some(real) if !answering.contains(&mac) => Err(Fault {
            what: format!("{ip} is {mac} on {device}, and the one who answers for it is {real}"),
            fix: format!("ip neigh del {ip} dev {device}: the kernel then asks who it is"),
        }),
        _ => Ok(()),
    }
}

/// Why the kernel has no way for a packet. `see`: the command that shows it.
pub(crate) fn no_route(error: &NetlinkError, see: &str) -> Judged {
    match refusing_kind(error) {
        Some(kind) => fault(
            format!("the kernel sends it nowhere: a rule or a route of the type {kind} is for it"),
            format!(
                "{see}; ip rule; ip route show table all type {kind}: delete what is not meant to be there"
            ),
        ),
        None => fault(
            format!("the kernel sends it nowhere: {error}"),
            format!("{see}; flannelctl repair puts flannel's own routes back"),
        ),
    }
}

/// The kind of route that refuses packets on purpose, by what the kernel says of it.
fn refusing_kind(error: &NetlinkError) -> Option<&'static str> {
    match error.errno {
        libc::EACCES => Some("prohibit"),
        libc::EINVAL => Some("blackhole"),
        libc::EHOSTUNREACH => Some("unreachable"),
        _ => None,
    }
}

/// What a pod's own settings do to its packets. `bridge`: its gateway. `veth`: the other end of its device.
pub(crate) fn inside_pod(
    inside: &InsidePod,
    pod: IpAddr,
    other: IpAddr,
    bridge: &Device,
    veth: Option<&Device>,
) -> Option<Fault> {
    let device = inside.device.name.as_str();
    let gateways = || bridge.addresses.iter().map(ipnet::IpNet::addr);
    let gateway = gateways().find(|ip| ip.is_ipv4() == pod.is_ipv4());
    let gateway = gateway.map_or_else(|| "GATEWAY".to_owned(), |ip| ip.to_string());
    let add = format!(
        "restart the pod; or in its network namespace: ip route replace default via {gateway} dev {device}"
    );
    let fault = |what: String, fix: String| Some(Fault { what, fix });
    if !inside.device.up || !inside.device.carrier {
        return fault(
            format!("{device} of the pod {pod} is down"),
            format!(
                "restart the pod; or in its network namespace: ip link set {device} up, and its routes"
            ),
        );
    }
    if inside.device.noarp {
        return fault(
            format!("ARP is switched off on {device} of the pod {pod}"),
            format!("restart the pod; or in its network namespace: ip link set {device} arp on"),
        );
    }
    if let Some(ignored) = &inside.ignores_arp {
        return Some(in_pod(pod, Fault { what: ignored.what.clone(), fix: ignored.fix.clone() }));
    }
    if let Some(TtlSetting { name, value }) =
        inside.ttl.as_ref().filter(|ttl| u64::from(ttl.value) <= TOO_FEW_HOPS)
    {
        return fault(
            format!(
                "the pod {pod} sends its packets with a TTL of {value} ({name}): they end before they come to another node's pod"
            ),
            format!("in its network namespace: sysctl -w {name}=64"),
        );
    }
    let way = match &inside.way {
        Ok(way) if !leads_nowhere(way.kind) => way,
        Err(error) if refusing_kind(error).is_some() => {
            let kind = refusing_kind(error).unwrap_or_default();
            return fault(
                format!(
                    "the pod {pod} sends what is for {other} nowhere: a rule or a route of the type {kind} in it is for that"
                ),
                format!(
                    "in its network namespace: ip rule; ip route show table all type {kind}: delete what is not meant to be there"
                ),
            );
        }
        _ => {
            return fault(
                format!("the pod {pod} has no route to {other}: its default route is missing"),
                add,
            );
        }
    };
    if way.kind == RouteType::Local {
        return fault(
            format!(
                "the pod {pod} has {other} itself, which is another's address: it is given out twice"
            ),
            format!(
                "restart the pod; or in its network namespace: ip addr del {other} dev {device}"
            ),
        );
    }
    let on_the_bridge = bridge.addresses.iter().any(|net| net.contains(&other));
    match way.via {
        _ if way.link != device => {
            return fault(format!("the pod {pod} sends what is for {other} by {}", way.link), add);
        }
        Some(via) if !gateways().any(|ip| ip == via) => {
            return fault(
                format!(
                    "the pod {pod} sends what is for {other} to {via}, and its gateway, {}, is {gateway}",
                    bridge.name
                ),
                add,
            );
        }
        None if !on_the_bridge => {
            return fault(
                format!(
                    "the pod {pod} looks for {other} on its own wire: its route names no gateway"
                ),
                add,
            );
        }
        _ => {}
    }
    if let (Some(written), Some(real)) = (inside.written_gateway, bridge.mac)
        && written != real
    {
        return fault(
            format!(
                "somebody has written into the pod {pod} that its gateway is {written}, and {} is {real}",
                bridge.name
            ),
            format!(
                "restart the pod; or in its network namespace: ip neigh del {gateway} dev {device}"
            ),
        );
    }
    match veth.filter(|veth| veth.mtu > inside.device.mtu) {
        Some(veth) => fault(
            format!(
                "{device} of the pod {pod} has an MTU of {}, and its other end, {}, of {}: larger packets are dropped between",
                inside.device.mtu, veth.name, veth.mtu
            ),
            format!(
                "restart the pod; or in its network namespace: ip link set {device} mtu {}",
                veth.mtu
            ),
        ),
        None => None,
    }
}

/// Something inside of a pod.
pub(crate) fn in_pod(pod: IpAddr, fault: Fault) -> Fault {
    Fault {
        what: format!("in the pod {pod}: {}", fault.what),
        fix: format!("in its network namespace: {}", fault.fix),
    }
}

/// Those who may drop packets that are worth to be named: three, and first who has dropped most.
pub(crate) fn some_of_many(mut perhaps: Vec<Drop>) -> Vec<Drop> {
    perhaps.retain(|drop| {
        let ours = is_own(&drop.rule);
        // What is marked is marked by those who mean to drop it, and most packets bear no mark.
        let by_mark = drop.rule.contains("--mark")
            && drop.packets == Some(0)
            && !asks_for_no_mark(&drop.rule);
        !ours && !by_mark
    });
    perhaps.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    perhaps.truncate(NAMED);
    perhaps
}

const NAMED: usize = 3;

/// Whether a rule is for packets without a mark. `rule`: in words of iptables.
fn asks_for_no_mark(rule: &str) -> bool {
    let zero = ["--mark 0x0 ", "--mark 0x0/", "--mark 0 "].iter().any(|it| rule.contains(it));
    zero && !rule.contains("! --mark")
}

/// Who may drop some packets, and how many it has dropped.
pub(crate) fn may_drop(drop: &Drop) -> String {
    let count = match drop.packets {
        Some(0) => "none so far".to_owned(),
        Some(count) => format!("{count} so far"),
        None => "it does not count how many".to_owned(),
    };
    format!("{} may drop some packets ({count}); to undo it: {}", drop.rule, drop.fix)
}

/// `mtu`: what the network carries.
pub(crate) fn veth(port: &Device, pod: IpAddr, mac: Mac, mtu: Option<u32>) -> Judged {
    let name = &port.name;
    if !port.up || !port.carrier {
        return fault(format!("{name} of {pod} is down"), format!("ip link set {name} up"));
    }
    match mtu.filter(|mtu| port.mtu != *mtu) {
        Some(mtu) if port.mtu < mtu => fault(
            format!(
                "{name} of {pod} has an MTU of {}, and packets of up to {mtu} bytes come there: the bridge drops larger ones",
                port.mtu
            ),
            format!("ip link set {name} mtu {mtu}"),
        ),
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

pub(crate) fn leads_nowhere(kind: RouteType) -> bool {
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
    fn the_port_whose_mtu_a_bridge_has_taken_over_is_named_and_not_the_bridge() {
        let device = |name: &str, mtu| Device { mtu, ..Device::plain(1, name) };
        let ports = [device("veth1", 1450), device("veth2", 1000)];
        let found = narrowing_port(&device("cni0", 1000), &ports, Some(1450)).unwrap_err();
        assert!(found.what.starts_with("veth2 has an MTU of 1000"), "{}", found.what);
        assert!(narrowing_port(&device("cni0", 1450), &ports, Some(1450)).is_ok());
        assert!(narrowing_port(&device("cni0", 900), &ports, Some(1450)).is_ok(), "its own");
    }

    #[test]
    fn a_port_that_passes_no_questions_on_or_forgets_its_pod_is_a_fault() {
        let all = PortFlags {
            broadcast_flood: Some(true),
            multicast_flood: Some(true),
            unicast_flood: Some(true),
            learning: Some(true),
        };
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        for flags in [all, PortFlags::default()] {
            assert!(port_flood("cni0", "veth1", true, flags).is_ok());
            assert!(port_learning("cni0", "veth1", mac, flags).is_ok());
        }
        let silent = PortFlags { broadcast_flood: Some(false), ..all };
        assert!(port_flood("cni0", "veth1", true, silent).is_err());
        assert!(port_flood("cni0", "veth1", false, silent).is_ok(), "IPv6 asks by multicast");
        let no_flood = PortFlags { unicast_flood: Some(false), ..all };
        assert!(port_learning("cni0", "veth1", mac, no_flood).is_ok(), "it learns");
        let forgetful = PortFlags { learning: Some(false), ..no_flood };
        assert!(port_learning("cni0", "veth1", mac, forgetful).is_err());
        let (two, ip) = (Mac([2, 0, 0, 0, 0, 2]), IpAddr::from([192, 0, 2, 2]));
        assert!(answers_twice("eth0", ip, &[mac]).is_none());
        assert!(answers_twice("eth0", ip, &[mac, two]).is_some());
    }

    #[test]
    fn a_rule_for_packets_without_a_mark_is_a_suspect_before_it_has_dropped_any() {
        let named = |rule: &str| {
            let rule = format!("the rule of iptables `FORWARD {rule} -j DROP`");
            !some_of_many(vec![Drop { rule, fix: String::new(), packets: Some(0) }]).is_empty()
        };
        assert!(named("-m mark --mark 0x0"));
        assert!(!named("-m mark --mark 0x4000"), "whoever marks packets means to drop them");
        assert!(!named("-m mark ! --mark 0x0"));
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
