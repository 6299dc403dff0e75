//! A bridge of pods and its ports, and the table by which a vxlan device finds nodes.

use std::net::IpAddr;

use flannel_common::Mac;
use flannel_kernel::look::Device;
use flannel_state::{Finding, Layer};

use super::{HopJudgement, broken, fault};
use crate::Peer;

const LAYER: Layer = Layer::Bridge;

pub(crate) fn bridge(bridge: &Device) -> HopJudgement {
    let name = &bridge.name;
    if bridge.up && bridge.carrier {
        return Ok(format!("{name} is up, MTU {}", bridge.mtu));
    }
    let what = if bridge.up { "has nobody on it" } else { "is down" };
    fault(LAYER, format!("{name} {what}"), format!("ip link set {name} up"))
}

/// `mtu`: what the network carries.
pub(crate) fn bridge_mtu(bridge: &Device, mtu: Option<u32>) -> Result<(), Finding> {
    let (name, has) = (&bridge.name, bridge.mtu);
    let Some(mtu) = mtu.filter(|mtu| has < *mtu) else { return Ok(()) };
    let what = format!("{name} has an MTU of {has}, and pods send packets of up to {mtu} bytes");
    Err(broken(LAYER, what, format!("ip link set {name} mtu {mtu}")))
}

/// `state`: as the kernel numbers it; `None` if it is not known.
pub(crate) fn port_state(bridge: &str, port: &str, state: Option<u8>) -> Result<(), Finding> {
    let state = match state {
        Some(0) => "disabled",
        Some(1) => "listening",
        Some(2) => "learning",
        Some(4) => "blocking",
        _ => return Ok(()),
    };
    let fix = format!(
        "ip link set {bridge} type bridge stp_state 0, then ip link set {port} down; ip link set {port} up"
    );
    Err(broken(LAYER, format!("the port {port} of {bridge} is {state}: it passes nothing on"), fix))
}

/// What of the frames for a pod a port of its bridge passes on; `None` if that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortFlags {
    pub(crate) broadcast_flood: Option<bool>,
    pub(crate) multicast_flood: Option<bool>,
    pub(crate) unicast_flood: Option<bool>,
    pub(crate) learning: Option<bool>,
}

pub(crate) fn port_flood(
    bridge: &str,
    port: &str,
    v4: bool,
    flags: PortFlags,
) -> Result<(), Finding> {
    let (passes, kind, option) = match v4 {
        true => (flags.broadcast_flood, "broadcasts", "bcast_flood"),
        false => (flags.multicast_flood, "multicasts", "mcast_flood"),
    };
    if passes != Some(false) {
        return Ok(());
    }
    let what = format!(
        "the port {port} of {bridge} passes no {kind} on: nobody can ask the pod behind it for its MAC"
    );
    Err(broken(LAYER, what, format!("bridge link set dev {port} {option} on")))
}

pub(crate) fn port_learning(
    bridge: &str,
    port: &str,
    mac: Mac,
    flags: PortFlags,
) -> Result<(), Finding> {
    if (flags.learning, flags.unicast_flood) != (Some(false), Some(false)) {
        return Ok(());
    }
    let what = format!(
        "the port {port} of {bridge} neither learns nor gets what is for nobody known: what is for {mac} behind it goes nowhere"
    );
    Err(broken(LAYER, what, format!("bridge link set dev {port} learning on flood on")))
}

pub(crate) fn wrong_port(bridge: &str, pod: IpAddr, mac: Mac, has: &str, is: &str) -> Finding {
    let what = format!(
        "{bridge} sends what is for {pod} ({mac}) to its port {has}, and the pod is behind {is}"
    );
    broken(LAYER, what, format!("bridge fdb del {mac} dev {has} master"))
}

/// `public`: the node that the device has for the MAC.
pub(crate) fn fdb(peer: &Peer, link: &str, mac: Mac, public: Option<IpAddr>) -> HopJudgement {
    let Some(public) = public else {
        let what = format!("{link} does not know behind which node {mac} is");
        return fault(LAYER, what, format!("flannelctl repair (bridge fdb show dev {link})"));
    };
    if peer.public.is_empty() || peer.public.contains(&public) {
        return Ok(format!("{mac} is behind {public}"));
    }
    let wanted: Vec<String> = peer.public.iter().map(ToString::to_string).collect();
    let what =
        format!("{link} sends to {mac} at {public}, and that node is at {}", wanted.join(" or "));
    let fix = format!(
        "flannelctl repair (bridge fdb replace {mac} dev {link} dst {} self)",
        wanted.join(" ")
    );
    fault(LAYER, what, fix)
}

#[cfg(test)]
mod tests {
    use super::super::answers_twice;
    use super::*;

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
}
