//! Pods of this node: their veths, who answers for their addresses, and what they have inside.

use std::net::IpAddr;

use flannel_common::Mac;
use flannel_kernel::look::Device;
use flannel_state::{Finding, Layer};
use netlink_packet_route::route::RouteType;

use super::routes::{leads_nowhere, refusing_kind};
use super::{HopJudgement, broken, fault};
use crate::firewall::TOO_FEW_HOPS;
use crate::walk::InsidePod;

const LAYER: Layer = Layer::Pods;

/// A port whose MTU its bridge has taken over: a bridge follows the smallest of its ports.
pub(crate) fn narrowing_port(
    bridge: &Device,
    ports: &[Device],
    mtu: Option<u32>,
) -> Result<(), Finding> {
    let is_narrow =
        |port: &&Device| port.mtu == bridge.mtu && mtu.is_some_and(|mtu| port.mtu < mtu);
    let (Some(port), Some(mtu)) = (ports.iter().find(is_narrow), mtu) else { return Ok(()) };
    let (port, narrow, bridge) = (&port.name, port.mtu, &bridge.name);
    let what = format!(
        "{port} has an MTU of {narrow}, and so has {bridge}, whose port it is: pods send packets of up to {mtu} bytes"
    );
    let fix = format!("ip link set {port} mtu {mtu}; ip link set {bridge} mtu {mtu}");
    Err(broken(LAYER, what, fix))
}

pub(crate) fn no_answer(bridge: &str, pod: IpAddr) -> Finding {
    let what =
        format!("nobody on {bridge} answers for {pod}: the pod is gone, or its interface is down");
    let fix = "look for the pod (crictl pods; or docker ps, podman ps), and restart it".to_owned();
    broken(LAYER, what, fix)
}

pub(crate) fn duplicates(bridge: &str, pod: IpAddr, answering: &[Mac]) -> Option<Finding> {
    let [first, second, ..] = answering else { return None };
    let what = format!(
        "two on {bridge} answer for {pod}, {first} and {second}: the address is given out twice, and packets go to either"
    );
    let fix = format!(
        "bridge fdb show br {bridge} says behind which ports they are; take the address from the one that is not to have it, or restart it; flannelctl ipam check"
    );
    Some(broken(LAYER, what, fix))
}

/// Somebody on this node's bridge who has the address of a pod of another node.
pub(crate) fn has_address_of_others(bridge: &str, ip: IpAddr, mac: Mac) -> Finding {
    broken(
        LAYER,
        format!(
            "somebody on {bridge} of this node ({mac}) answers for {ip}, which is an address of another node's pods: it is given out twice"
        ),
        format!(
            "bridge fdb show br {bridge} says behind which port {mac} is; take the address from it, or restart it"
        ),
    )
}

/// What a pod's own settings do to its packets. `bridge`: its gateway. `veth`: the other end of its device.
pub(crate) fn inside_pod(
    inside: &InsidePod,
    pod: IpAddr,
    other: IpAddr,
    bridge: &Device,
    veth: Option<&Device>,
) -> Option<Finding> {
    let device = inside.device.name.as_str();
    let gateways = || bridge.addresses.iter().map(ipnet::IpNet::addr);
    let gateway = gateways().find(|ip| ip.is_ipv4() == pod.is_ipv4());
    let gateway = gateway.map_or_else(|| "GATEWAY".to_owned(), |ip| ip.to_string());
    let in_pod = "restart the pod; or in its network namespace";
    let add = format!("{in_pod}: ip route replace default via {gateway} dev {device}");
    let found = |what: String, fix: String| Some(broken(LAYER, what, fix));
    if !inside.device.up || !inside.device.carrier {
        let fix = format!("{in_pod}: ip link set {device} up, and its routes");
        return found(format!("{device} of the pod {pod} is down"), fix);
    }
    if inside.device.noarp {
        let fix = format!("{in_pod}: ip link set {device} arp on");
        return found(format!("ARP is switched off on {device} of the pod {pod}"), fix);
    }
    if let Some(ignored) = &inside.ignores_arp {
        return Some(self::in_pod(pod, ignored.clone()));
    }
    let short = inside.ttl.as_ref().filter(|(_, ttl)| u64::from(*ttl) <= TOO_FEW_HOPS);
    if let Some((name, value)) = short {
        let what = format!(
            "the pod {pod} sends its packets with a TTL of {value} ({name}): they end before they come to another node's pod"
        );
        return found(what, format!("in its network namespace: sysctl -w {name}=64"));
    }
    let way = match &inside.way {
        Ok(way) if !leads_nowhere(way.kind) => way,
        Err(error) if refusing_kind(error).is_some() => {
            let kind = refusing_kind(error).unwrap_or_default();
            return found(
                format!(
                    "the pod {pod} sends what is for {other} nowhere: a rule or a route of the type {kind} in it is for that"
                ),
                format!(
                    "in its network namespace: ip rule; ip route show table all type {kind}: delete what is not meant to be there"
                ),
            );
        }
        _ => {
            let what =
                format!("the pod {pod} has no route to {other}: its default route is missing");
            return found(what, add);
        }
    };
    if way.kind == RouteType::Local {
        let what = format!(
            "the pod {pod} has {other} itself, which is another's address: it is given out twice"
        );
        let fix = format!("{in_pod}: ip addr del {other} dev {device}");
        return found(what, fix);
    }
    let on_the_bridge = bridge.addresses.iter().any(|net| net.contains(&other));
    match way.via {
        _ if way.link != device => {
            return found(format!("the pod {pod} sends what is for {other} by {}", way.link), add);
        }
        Some(via) if !gateways().any(|ip| ip == via) => {
            let what = format!(
                "the pod {pod} sends what is for {other} to {via}, and its gateway, {}, is {gateway}",
                bridge.name
            );
            return found(what, add);
        }
        None if !on_the_bridge => {
            let what = format!(
                "the pod {pod} looks for {other} on its own wire: its route names no gateway"
            );
            return found(what, add);
        }
        _ => {}
    }
    if let (Some(written), Some(real)) = (inside.written_gateway, bridge.mac)
        && written != real
    {
        return found(
            format!(
                "somebody has written into the pod {pod} that its gateway is {written}, and {} is {real}",
                bridge.name
            ),
            format!("{in_pod}: ip neigh del {gateway} dev {device}"),
        );
    }
    let veth = veth.filter(|veth| veth.mtu > inside.device.mtu)?;
    let what = format!(
        "{device} of the pod {pod} has an MTU of {}, and its other end, {}, of {}: larger packets are dropped between",
        inside.device.mtu, veth.name, veth.mtu
    );
    found(what, format!("{in_pod}: ip link set {device} mtu {}", veth.mtu))
}

pub(crate) fn in_pod(pod: IpAddr, finding: Finding) -> Finding {
    let fix = format!("in its network namespace: {}", finding.fix);
    Finding { fix, ..perhaps_in_pod(pod, finding) }
}

/// Something inside of a pod that may be as it is meant.
pub(crate) fn perhaps_in_pod(pod: IpAddr, finding: Finding) -> Finding {
    Finding { about: format!("in the pod {pod}: {}", finding.about), layer: LAYER, ..finding }
}

/// `mtu`: what the network carries.
pub(crate) fn veth(port: &Device, pod: IpAddr, mac: Mac, mtu: Option<u32>) -> HopJudgement {
    let name = &port.name;
    if !port.up || !port.carrier {
        return fault(LAYER, format!("{name} of {pod} is down"), format!("ip link set {name} up"));
    }
    match mtu.filter(|mtu| port.mtu != *mtu) {
        Some(mtu) if port.mtu < mtu => fault(
            LAYER,
            format!(
                "{name} of {pod} has an MTU of {}, and packets of up to {mtu} bytes come there: the bridge drops larger ones",
                port.mtu
            ),
            format!("ip link set {name} mtu {mtu}"),
        ),
        Some(mtu) => fault(
            LAYER,
            format!("{name} of {pod} has an MTU of {}, and the network carries {mtu}", port.mtu),
            "restart the pod: it takes the MTU that fits",
        ),
        None => Ok(format!("{pod} is {mac} on {name}, MTU {}", port.mtu)),
    }
}

/// A pod that has answered before, and is behind none of the ports of its bridge.
pub(crate) fn no_veth(bridge: &str, pod: IpAddr, mac: Mac, ports: &[Device]) -> Finding {
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
    let what = format!(
        "{pod} ({mac}) is behind no port of {bridge}: its veth is down, or was taken off the bridge{down}"
    );
    broken(LAYER, what, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_whose_mtu_a_bridge_has_taken_over_is_named_and_not_the_bridge() {
        let device = |name: &str, mtu| Device { mtu, ..Device::plain(1, name) };
        let ports = [device("veth1", 1450), device("veth2", 1000)];
        let found = narrowing_port(&device("cni0", 1000), &ports, Some(1450)).unwrap_err();
        assert!(found.about.starts_with("veth2 has an MTU of 1000"), "{}", found.about);
        assert!(narrowing_port(&device("cni0", 1450), &ports, Some(1450)).is_ok());
        assert!(narrowing_port(&device("cni0", 900), &ports, Some(1450)).is_ok(), "its own");
    }
}
